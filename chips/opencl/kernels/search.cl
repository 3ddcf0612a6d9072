// searchsorted: for each value the first place of its sequence whose element is not below (right: not at or below) it;
// a NaN is above everything. PyTorch's own probes, so that sequences with NaN inside end at the same place.

typedef struct {
  long count;           // of values
  long length;          // of a sequence
  long values_per_row;  // sought in each sequence
  long shared;          // one sequence for all values
  long right;
} Search;

__kernel void search(IN(T, sequence), IN(T, values), IN(i64, sorter), OUT(O, out), ERRORS, Search s, long chunk) {
  OPERAND_IN(T, sequence);
  OPERAND_IN(T, values);
  OPERAND_OUT(O, out);
#ifdef SORTED
  OPERAND_IN(i64, sorter);
  int bad = 0;
#endif
  const long end = min((long)(get_global_id(0) + 1) * chunk, s.count);
  for (long i = get_global_id(0) * chunk; i < end; ++i) {
    const long start = s.shared ? 0 : i / s.values_per_row * s.length;
    const ACC(T) value = LOAD(T, values, i);
    long low = 0, high = s.length;
    while (low < high) {
      const long middle = low + (high - low) / 2;
#ifdef SORTED
      long at = sorter[start + middle];
      const int outside = (ulong)at >= (ulong)s.length;
      bad |= outside;
      const ACC(T) element = LOAD(T, sequence, start + (outside ? 0 : at));
#else
      const ACC(T) element = LOAD(T, sequence, start + middle);
#endif
      const int before = s.right ? !(element > value) : !(element >= value);
      low = before ? middle + 1 : low;
      high = before ? high : middle;
    }
    STORE(O, out, i, (ACC(O))low);
  }
#ifdef SORTED
  if (bad) {
    OPERAND_ERRORS;
    ERROR_INDEX(errors);
  }
#endif
}
