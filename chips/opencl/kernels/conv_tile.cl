// Convolution on CPUs as a matrix product without im2col, for the result itself and for the input's gradient.
// One item makes the outputs of some channels at a tile of positions, from the slab of conv_slab.cl.
// Defines: BLOCK: channels of the register tile, 8 (by 2 vectors of positions) or 1 (by 4), for groups of few channels;
// PACKED: the weights are as conv_pack.cl leaves them, else as they are in the tensor.
#ifdef PACKED  // [channel][tap][BLOCK]
#define WEIGHT_ROW(r)
#define WEIGHT(r) w[r]
#define NEXT_WEIGHT w += BLOCK
#else  // rows as they lie in the tensor, `row` elements apart
#define WEIGHT_ROW(r) const __global acc* w##r = w + (r < rows ? r : rows - 1) * row;
#define WEIGHT(r) w##r[k]
#define NEXT_WEIGHT ++k
#endif

// sums[r][i] (+)= sum over channels and taps of weight[r][channel][tap] * slab[channel][offset + i]
// rows: how many there are, if the weights are not packed; the others repeat the last.
#define MULTIPLY(NAME, ROWS, DECLARE, FETCH, ADD, PUT)                                                              \
  static inline void NAME(__global acc* sums, int pitch, const __global acc* w, long row, int rows,               \
                          const __global acc* slab, const __global int* offsets, int channels, int taps,          \
                          int length, int again) {                                                                \
    long k = 0;                                                                                                    \
    ROWS(WEIGHT_ROW)                                                                                               \
    ROWS(DECLARE)                                                                                                  \
    if (taps == 1) {                                                                                               \
      for (int c = 0; c < channels; ++c, NEXT_WEIGHT, slab += length) {                                            \
        FETCH(slab)                                                                                                 \
        ROWS(ADD)                                                                                                  \
      }                                                                                                            \
    } else {                                                                                                       \
      for (int c = 0; c < channels; ++c, slab += length)                                                           \
        for (int t = 0; t < taps; ++t, NEXT_WEIGHT) {                                                              \
          const __global acc* from = slab + offsets[t];                                                            \
          FETCH(from)                                                                                               \
          ROWS(ADD)                                                                                                \
        }                                                                                                          \
    }                                                                                                              \
    ROWS(PUT)                                                                                                      \
  }

#define SUM_AT(r, v) (again ? LOAD_VEC(v, sums + r * pitch) : (vec)(0))
#define DECLARE1(r) vec s##r = SUM_AT(r, 0);
#define DECLARE2(r) DECLARE1(r) vec t##r = SUM_AT(r, 1);
#define DECLARE4(r) DECLARE2(r) vec u##r = SUM_AT(r, 2), v##r = SUM_AT(r, 3);
#define FETCH1(p) const vec b0 = LOAD_VEC(0, p);
#define FETCH2(p) FETCH1(p) const vec b1 = LOAD_VEC(1, p);
#define FETCH4(p) FETCH2(p) const vec b2 = LOAD_VEC(2, p), b3 = LOAD_VEC(3, p);
#define ADD1(r) s##r = fma((vec)(WEIGHT(r)), b0, s##r);
#define ADD2(r) { const vec a = (vec)(WEIGHT(r)); s##r = fma(a, b0, s##r); t##r = fma(a, b1, t##r); }
#define ADD4(r) \
  { const vec a = (vec)(WEIGHT(r)); s##r = fma(a, b0, s##r), t##r = fma(a, b1, t##r), u##r = fma(a, b2, u##r), v##r = fma(a, b3, v##r); }
#define PUT1(r) STORE_VEC(s##r, 0, sums + r * pitch);
#define PUT2(r) PUT1(r) STORE_VEC(t##r, 1, sums + r * pitch);
#define PUT4(r) PUT2(r) STORE_VEC(u##r, 2, sums + r * pitch); STORE_VEC(v##r, 3, sums + r * pitch);

#if BLOCK == 8
#define ROWS8(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define RUN 2  // vectors
MULTIPLY(multiply_run, ROWS8, DECLARE2, FETCH2, ADD2, PUT2)
MULTIPLY(multiply_one, ROWS8, DECLARE1, FETCH1, ADD1, PUT1)
#else
#define ROWS1(F) F(0)
#define RUN 4
MULTIPLY(multiply_run, ROWS1, DECLARE4, FETCH4, ADD4, PUT4)
MULTIPLY(multiply_one, ROWS1, DECLARE1, FETCH1, ADD1, PUT1)
#endif

__kernel void conv_tile(OUT(T, dst), IN(T, src), IN(T, bias), const __global acc* weights_base, long weights_offset,
                        __global acc* scratch_base, long scratch_offset, const conv_t p_) {
  OPERAND_OUT(T, dst);
  OPERAND_IN(T, src);
  OPERAND_IN(T, bias);
  const conv_t p = p_;
  const int slot = (int)get_global_id(0);
  if (slot >= p.slots) return;
  const __global acc* weights = weights_base + weights_offset;
  __global acc* scratch = scratch_base + scratch_offset + slot * p.slot;
  __global int* offsets = (__global int*)scratch;
  __global acc *slab = scratch + p.slab_at, *sums_base = scratch + p.sums_at;
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], blocks = (p.out_channels + BLOCK - 1) / BLOCK;
  find_offsets(offsets, &p);
  for (int item = slot; item < p.items; item += p.slots) {
    int rest = item;
    const int m0 = rest % p.m_tiles * p.m_rows;
    rest /= p.m_tiles;
    const int x0 = rest % p.tiles_x * p.columns;
    rest /= p.tiles_x;
    const int y0 = rest % p.tiles_y * p.rows;
    rest /= p.tiles_y;
    const int z = rest % p.grid[0];
    rest /= p.grid[0];
    const int group = rest % p.groups, n = rest / p.groups;
    const int m1 = min(p.out_channels, m0 + p.m_rows);
    const int rows = min(p.rows, p.grid[1] - y0), columns = min(p.columns, p.grid[2] - x0);
    const int count = (rows - 1) * p.width + columns;
    const __global MEM(T)* from = src + n * p.src_n + group * p.src_g;
    __global MEM(T)* to = dst + n * p.dst_n + group * p.dst_g + z * p.dst[0] + y0 * p.dst[1] + x0 * p.dst[2];
    for (int c0 = 0; c0 < p.in_channels; c0 += p.chunk) {
      const int channels = min(p.chunk, p.in_channels - c0);
      if (taps > 0) fill_slab(slab, from + c0 * p.src_c, &p, channels, z, y0, x0);
      // A run of positions stays in the first-level cache while the weights pass by.
      for (int q = 0; q < count;) {
        const int whole = count - q > (RUN - 1) * LANES;
        for (int m = m0; m < m1; m += BLOCK) {
          __global acc* sums = sums_base + (long)(m - m0) * p.sums_pitch + q;
#ifdef PACKED
          const __global acc* w =
              weights + (((long)group * blocks + m / BLOCK) * p.in_channels + c0) * (long)(taps * BLOCK);
#else
          const __global acc* w = weights + ((long)group * p.out_channels + m) * p.weight_row + c0 * taps;
#endif
          if (whole)
            multiply_run(sums, p.sums_pitch, w, p.weight_row, m1 - m, slab + q, offsets, channels, taps, p.length,
                         c0 > 0);
          else
            multiply_one(sums, p.sums_pitch, w, p.weight_row, m1 - m, slab + q, offsets, channels, taps, p.length,
                         c0 > 0);
        }
        q += whole ? RUN * LANES : LANES;
      }
    }
    for (int m = m0; m < m1; ++m) {
      const acc add = p.has_bias ? LOAD(T, bias, group * p.out_channels + m) : 0;
      for (int y = 0; y < rows; ++y) {
        __global MEM(T)* line = to + m * p.dst_c + y * p.dst[1];
        if (m + 4 < m1 && p.dst[2] == 1) prefetch_line(line + 4 * p.dst_c, (long)columns * sizeof(MEM(T)));
        write_line(line, p.dst[2], sums_base + (long)(m - m0) * p.sums_pitch + y * p.width, add, columns);
      }
    }
  }
}
