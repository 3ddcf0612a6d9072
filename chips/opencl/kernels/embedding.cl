// embedding_backward: gradient rows are grouped by the weight row that they belong to (a counting sort, so in their own
// order within a row), then each weight row is written once: zeros or a sum. Walk operands: gradient rows, indices.
// starts[rows + 2]; sources[n] holds gradient rows' element offsets.

__kernel void embedding_group(const __global MEM(I)*restrict index_base, long index_offset,
                              __global long*restrict starts_base, long starts_offset, ERRORS, Walk walk, long rows,
                              long padding) {
  if (get_global_id(0) != 0) return;
  OPERAND_IN(I, index);
  __global long* starts = starts_base + starts_offset;
  __global long* sources = starts + rows + 2;
  for (long v = 0; v < rows + 2; ++v) starts[v] = 0;
  int bad = 0;
  Cursor c;
  cursor_set(&c, &walk, 0);
  for (long i = 0; i < walk.numel; ++i) {
    const long row = index[c.at[1]];
    if (row != padding) {
      if ((ulong)row < (ulong)rows) ++starts[row + 2];
      else bad = 1;
    }
    cursor_advance(&c, &walk, 1);
  }
  for (long v = 2; v < rows + 2; ++v) starts[v] += starts[v - 1];
  // Filling moves starts[v + 1] to the end of row v, which is where row v + 1 starts.
  cursor_set(&c, &walk, 0);
  for (long i = 0; i < walk.numel; ++i) {
    const long row = index[c.at[1]];
    if (row != padding && (ulong)row < (ulong)rows) sources[starts[row + 1]++] = c.at[0];
    cursor_advance(&c, &walk, 1);
  }
  if (bad) {
    OPERAND_ERRORS;
    ERROR_INDEX(errors);
  }
}

typedef struct {
  long rows, columns, grad_stride, row_stride, column_stride, scaled;
} Sum;

// CPU: `chunk` weight rows. Else one element.
__kernel void embedding_sum(IN(T, grad), const __global long* starts_base, long starts_offset, OUT(T, out), Sum s,
                            long chunk) {
  OPERAND_IN(T, grad);
  OPERAND_OUT(T, out);
  const __global long* starts = starts_base + starts_offset;
  const __global long* sources = starts + s.rows + 2;
#ifdef CPU
  const long first = get_global_id(0) * chunk, last = min(first + chunk, s.rows);
  const long column_begin = 0, column_end = s.columns;
#else
  const long first = get_global_id(1), last = min(first + 1, s.rows);
  const long column_begin = get_global_id(0), column_end = min(column_begin + 1, s.columns);
#endif
  for (long v = first; v < last; ++v) {
    const long begin = starts[v], end = starts[v + 1];
    __global MEM(T)* to = out + v * s.row_stride;
    const ACC(T) scale = s.scaled && end > begin ? (ACC(T))1 / (ACC(T))(end - begin) : (ACC(T))1;
    long i = column_begin;
#ifdef CPU
    if (s.grad_stride == 1 && s.column_stride == 1) {
      for (; i + 16 <= column_end; i += 16) {
        ACC16(T) sum = 0;
        for (long k = begin; k < end; ++k) sum += LOAD16(T, grad, sources[k] + i);
        STORE16(T, to, i, sum * scale);
      }
    }
#endif
    for (; i < column_end; ++i) {
      ACC(T) sum = 0;
      for (long k = begin; k < end; ++k) sum += LOAD(T, grad, sources[k] + i * s.grad_stride);
      STORE(T, to, i * s.column_stride, sum * scale);
    }
  }
}
