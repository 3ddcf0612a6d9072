// nonzero and masked_select: count the hits of each piece, add the counts up, then fill each piece's results from where
// the earlier ones end. masked_select: E is a type of the elements' size. NONZERO: U is an unsigned one and MASK the bits that
// make a value non-zero. counts[pieces] holds hits, then starts.

__kernel void mask_starts(__global long* counts_base, long counts_offset, OUT(i64, total), long pieces) {
  if (get_global_id(0) != 0) return;
  __global long* counts = counts_base + counts_offset;
  long sum = 0;
  for (long p = 0; p < pieces; ++p) {
    const long n = counts[p];
    counts[p] = sum;
    sum += n;
  }
  total_base[total_offset] = sum;
}

#ifdef NONZERO
#define IS_SET(x) (((x) & (U)(MASK)) != 0)

// Walk operand: self. No dimensions are merged: coordinates are wanted.
__kernel void mask_count(const __global U* self_base, long self_offset, __global long* counts_base, long counts_offset,
                         Walk walk, long chunk) {
  const __global U* self = self_base + self_offset;
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  const long step = STEP(walk, 0);
  long found = 0;
  Cursor c;
  cursor_set(&c, &walk, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &walk), end - begin);
    const __global U* row = self + c.at[0];
    if (step == 1) {
      for (long i = 0; i < n; ++i) found += IS_SET(row[i]);
    } else {
      for (long i = 0; i < n; ++i) found += IS_SET(row[i * step]);
    }
    begin += n;
    cursor_advance(&c, &walk, n);
  }
  (counts_base + counts_offset)[get_global_id(0)] = found;
}

__kernel void mask_fill(const __global U* self_base, long self_offset, OUT(i64, out), __global long* counts_base,
                        long counts_offset, Walk walk, long chunk, long columns, long row_stride, long column_stride) {
  const __global U* self = self_base + self_offset;
  OPERAND_OUT(i64, out);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  const int last = (int)walk.ndim - 1;
  const long step = STEP(walk, 0);
  __global long* to = out + (counts_base + counts_offset)[get_global_id(0)] * row_stride;
  Cursor c;
  cursor_set(&c, &walk, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &walk), end - begin);
    const __global U* row = self + c.at[0];
    for (long i = 0; i < n; ++i) {
      if (!IS_SET(row[i * step])) continue;
      for (int d = 0; d < last; ++d) to[d * column_stride] = c.position[d];
      if (columns > 0) to[last * column_stride] = c.position[last] + i;
      to += row_stride;
    }
    begin += n;
    cursor_advance(&c, &walk, n);
  }
}

#else
// Walk operands: self, mask.
__kernel void mask_count(IN(u8, mask), __global long* counts_base, long counts_offset, Walk walk, long chunk) {
  OPERAND_IN(u8, mask);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  const long step = STEP(walk, 1);
  long found = 0;
  Cursor c;
  cursor_set(&c, &walk, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &walk), end - begin);
    const __global uchar* row = mask + c.at[1];
    if (step == 1) {
      for (long i = 0; i < n; ++i) found += row[i] != 0;
    } else {
      for (long i = 0; i < n; ++i) found += row[i * step] != 0;
    }
    begin += n;
    cursor_advance(&c, &walk, n);
  }
  (counts_base + counts_offset)[get_global_id(0)] = found;
}

__kernel void mask_fill(IN(E, self), IN(u8, mask), OUT(E, out), __global long* counts_base, long counts_offset, Walk walk,
                        long chunk, long out_stride) {
  OPERAND_IN(E, self);
  OPERAND_IN(u8, mask);
  OPERAND_OUT(E, out);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  const long self_step = STEP(walk, 0), mask_step = STEP(walk, 1);
  __global MEM(E)* to = out + (counts_base + counts_offset)[get_global_id(0)] * out_stride;
  Cursor c;
  cursor_set(&c, &walk, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &walk), end - begin);
    for (long i = 0; i < n; ++i) {
      if (mask[c.at[1] + i * mask_step] == 0) continue;
      *to = self[c.at[0] + i * self_step];
      to += out_stride;
    }
    begin += n;
    cursor_advance(&c, &walk, n);
  }
}
#endif
