// nonzero and masked_select: count the hits of each piece, add the counts up, then fill each piece's results from where
// the earlier ones end. masked_select: E is a type of the elements' size. NONZERO: U is an unsigned one and MASK the
// bits that make a value non-zero. counts[pieces] holds hits, then starts.

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

// Every element is written to where the next hit belongs, and only a hit moves on: no branch that depends on values. So
// a piece must stop at its last hit, or it would touch the next piece's place.
#define PIECE_RANGE                                             \
  const long piece = get_global_id(0);                          \
  const __global long* starts = counts_base + counts_offset;    \
  long hit = starts[piece];                                     \
  const long last_hit = piece + 1 < pieces ? starts[piece + 1] : total_base[total_offset];

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

__kernel void mask_fill(const __global U* self_base, long self_offset, OUT(i64, out), IN(i64, total),
                        __global long* counts_base, long counts_offset, long pieces, Walk walk, long chunk,
                        long columns, long row_stride, long column_stride) {
  const __global U* self = self_base + self_offset;
  OPERAND_OUT(i64, out);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  const int last = (int)walk.ndim - 1;
  const long step = STEP(walk, 0);
  PIECE_RANGE
  __global long* to = out + hit * row_stride;
  Cursor c;
  cursor_set(&c, &walk, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &walk), end - begin);
    const __global U* row = self + c.at[0];
    for (long i = 0; i < n && hit < last_hit; ++i) {
      for (int d = 0; d < last; ++d) to[d * column_stride] = c.position[d];
      if (columns > 0) to[last * column_stride] = c.position[last] + i;
      const int set = IS_SET(row[i * step]);
      hit += set;
      to += set ? row_stride : 0;
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

__kernel void mask_fill(IN(E, self), IN(u8, mask), OUT(E, out), IN(i64, total), __global long* counts_base,
                        long counts_offset, long pieces, Walk walk, long chunk, long out_stride) {
  OPERAND_IN(E, self);
  OPERAND_IN(u8, mask);
  OPERAND_OUT(E, out);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  const long self_step = STEP(walk, 0), mask_step = STEP(walk, 1);
  PIECE_RANGE
  Cursor c;
  cursor_set(&c, &walk, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &walk), end - begin);
    for (long i = 0; i < n && hit < last_hit; ++i) {
      out[hit * out_stride] = self[c.at[0] + i * self_step];
      hit += mask[c.at[1] + i * mask_step] != 0;
    }
    begin += n;
    cursor_advance(&c, &walk, n);
  }
}
#endif
