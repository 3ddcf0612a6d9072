// Long rows by many work-items: radix passes over two buffers of items per row, a slice of a row per work-item.
// states[row][DIGITS + 1]: which buffer the items of a row are in before each pass; a pass whose digit is the same in
// all items does not move them. counts[row][256][slices]: how many items of a slice have a digit's value, then where
// they go.

typedef struct {
  long slices, slice;  // how many, and items in each
} Slices;

#define LONG_ROW                                                             \
  const long slice = get_global_id(0), row = get_global_id(1), n = rows.size; \
  if (slice >= cut.slices || row >= rows.rows) return;                       \
  const long begin = slice * cut.slice, end = min(begin + cut.slice, n);     \
  __global Item* items = items_base + items_offset + row * 2 * n;            \
  __global int* states = states_base + states_offset + row * (DIGITS + 1);

__kernel void long_items(VALUES_IN(self), ITEMS_PARAM(items), __global int* states_base, long states_offset, Walk walk,
                         Rows rows, Slices cut) {
  LONG_ROW
  Cursor c;
  cursor_set(&c, &walk, rows.first_row + row);
  const __global U* self = self_base + self_offset + c.at[0];
  const U flip = rows.descending ? ALL_ONES : (U)0;
  for (long i = begin; i < end; ++i) items[i] = MAKE_ITEM((U)(key_of(self[i * rows.self_stride]) ^ flip), i);
  if (slice == 0) states[0] = 0;
}

__kernel void long_count(ITEMS_PARAM(items), __global int* states_base, long states_offset, __global uint* counts_base,
                         long counts_offset, Rows rows, Slices cut, int digit) {
  LONG_ROW
  const __global Item* from = items + states[digit] * n;
  uint own[256];
  for (int value = 0; value < 256; ++value) own[value] = 0;
  for (long i = begin; i < end; ++i) ++own[DIGIT(from[i], digit)];
  __global uint* counts = counts_base + counts_offset + row * 256 * cut.slices;
  for (int value = 0; value < 256; ++value) counts[value * cut.slices + slice] = own[value];
}

__kernel void long_starts(__global int* states_base, long states_offset, __global uint* counts_base, long counts_offset,
                          Rows rows, Slices cut, int digit) {
  const long row = get_global_id(0);
  if (row >= rows.rows) return;
  __global int* states = states_base + states_offset + row * (DIGITS + 1);
  __global uint* counts = counts_base + counts_offset + row * 256 * cut.slices;
  uint start = 0;
  int moves = 1;
  for (int value = 0; value < 256; ++value) {
    const uint before = start;
    for (long s = 0; s < cut.slices; ++s) {
      const uint count = counts[value * cut.slices + s];
      counts[value * cut.slices + s] = start;
      start += count;
    }
    moves &= start - before != (uint)rows.size;
  }
  states[digit + 1] = states[digit] ^ moves;
}

__kernel void long_move(ITEMS_PARAM(items), __global int* states_base, long states_offset, __global uint* counts_base,
                        long counts_offset, Rows rows, Slices cut, int digit) {
  LONG_ROW
  if (states[digit] == states[digit + 1]) return;
  const __global Item* from = items + states[digit] * n;
  __global Item* to = items + states[digit + 1] * n;
  const __global uint* counts = counts_base + counts_offset + row * 256 * cut.slices;
  uint places[256];
  for (int value = 0; value < 256; ++value) places[value] = counts[value * cut.slices + slice];
  for (long i = begin; i < end; ++i) {
    const Item item = from[i];
    to[places[DIGIT(item, digit)]++] = item;
  }
}

// Values are gathered before any is written: self and values may be the same place.
__kernel void long_pick(VALUES_IN(self), ITEMS_PARAM(items), __global int* states_base, long states_offset, Walk walk,
                        Rows rows, Slices cut) {
  LONG_ROW
  Cursor c;
  cursor_set(&c, &walk, rows.first_row + row);
  const __global U* self = self_base + self_offset + c.at[0];
  const __global Item* sorted = items + states[DIGITS] * n;
  __global U* picked = (__global U*)(items + (1 - states[DIGITS]) * n);
  for (long i = begin; i < min(end, rows.keep); ++i) picked[i] = self[POSITION(sorted[i]) * rows.self_stride];
}

__kernel void long_write(VALUES_OUT(values), __global long* indices_base, long indices_offset, ITEMS_PARAM(items),
                         __global int* states_base, long states_offset, Walk walk, Rows rows, Slices cut) {
  LONG_ROW
  Cursor c;
  cursor_set(&c, &walk, rows.first_row + row);
  write_row(items + states[DIGITS] * n, begin, min(end, rows.keep),
            (const __global U*)(items + (1 - states[DIGITS]) * n), values_base + values_offset + c.at[1],
            rows.value_stride, indices_base + indices_offset + c.at[2], rows.index_stride);
}
