// A row per work-item: from its values to items, sorted in its two pieces of scratch, to values and indices.

#define INSERTION_RUN 16
#define RADIX_ROW 256

inline void insertion_sort(__global Item* items, long n) {
  for (long i = 1; i < n; ++i) {
    const Item item = items[i];
    long at = i;
    for (; at > 0 && LESS(item, items[at - 1]); --at) items[at] = items[at - 1];
    items[at] = item;
  }
}

// Runs of INSERTION_RUN, then merges between the two buffers. Returns 1 if the result is in spare.
inline int merge_sort(__global Item* items, __global Item* spare, long n) {
  for (long at = 0; at < n; at += INSERTION_RUN) insertion_sort(items + at, min((long)INSERTION_RUN, n - at));
  int moved = 0;
  for (long run = INSERTION_RUN; run < n; run *= 2) {
    const __global Item* from = moved ? spare : items;
    __global Item* to = moved ? items : spare;
    for (long start = 0; start < n; start += 2 * run) {
      const long middle = min(start + run, n), end = min(start + 2 * run, n);
      long a = start, b = middle;
      for (long i = start; i < end; ++i) {
        const int second = a >= middle || (b < end && LESS(from[b], from[a]));
        to[i] = from[second ? b : a];
        b += second;
        a += 1 - second;
      }
    }
    moved ^= 1;
  }
  return moved;
}

// All digits counted in one reading, then a pass for each digit that differs.
inline int radix_sort(__global Item* items, __global Item* spare, long n) {
  uint counts[DIGITS * 256];
  for (int i = 0; i < DIGITS * 256; ++i) counts[i] = 0;
  for (long i = 0; i < n; ++i) {
    const Item item = items[i];
    for (int d = 0; d < DIGITS; ++d) ++counts[d * 256 + DIGIT(item, d)];
  }
  int moved = 0;
  for (int d = 0; d < DIGITS; ++d) {
    uint* places = counts + d * 256;
    if (places[DIGIT(items[0], d)] == (uint)n) continue;
    const __global Item* from = moved ? spare : items;
    __global Item* to = moved ? items : spare;
    uint start = 0;
    for (int value = 0; value < 256; ++value) {
      const uint count = places[value];
      places[value] = start;
      start += count;
    }
    for (long i = 0; i < n; ++i) {
      const Item item = from[i];
      to[places[DIGIT(item, d)]++] = item;
    }
    moved ^= 1;
  }
  return moved;
}

__kernel void sort_rows(VALUES_IN(self), VALUES_OUT(values), __global long* indices_base, long indices_offset,
                        ITEMS_PARAM(items), Walk walk, Rows rows) {
  const long row = get_global_id(0), n = rows.size;
  if (row >= rows.rows) return;
  Cursor c;
  cursor_set(&c, &walk, rows.first_row + row);
  const __global U* self = self_base + self_offset + c.at[0];
  __global Item* items = items_base + items_offset + row * 2 * n;
  __global Item* spare = items + n;
  const U flip = rows.descending ? ALL_ONES : (U)0;
  const long stride = rows.self_stride;
  if (stride == 1) {
    for (long i = 0; i < n; ++i) items[i] = MAKE_ITEM((U)(key_of(self[i]) ^ flip), i);
  } else {
    for (long i = 0; i < n; ++i) items[i] = MAKE_ITEM((U)(key_of(self[i * stride]) ^ flip), i);
  }
  const int moved = n < RADIX_ROW ? merge_sort(items, spare, n) : radix_sort(items, spare, n);
  const __global Item* sorted = moved ? spare : items;
  // Values are gathered first: self and values may be the same place.
  __global U* picked = (__global U*)(moved ? items : spare);
  for (long i = 0; i < rows.keep; ++i) picked[i] = self[POSITION(sorted[i]) * stride];
  write_row(sorted, 0, rows.keep, picked, values_base + values_offset + c.at[1], rows.value_stride,
            indices_base + indices_offset + c.at[2], rows.index_stride);
}
