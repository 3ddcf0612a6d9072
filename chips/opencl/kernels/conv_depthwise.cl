// The weight's gradient on CPUs where each output channel reads a single input channel: per tap one dot product of the
// output's gradient, copied onto the slab's pitch with zeros between the rows, and the slab of conv_slab.cl.
// One item makes the gradients of one input channel. Needs conv_lines.cl and conv_slab.cl.
#define FOR_TAPS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define LOAD_SUM(t) vec s##t = LOAD_VEC(t, sums); const __global acc* p##t = slab + offsets[t < taps ? t : 0];
#define ADD(t) s##t = fma(g, LOAD_VEC(0, p##t + i), s##t);
#define STORE_SUM(t) STORE_VEC(s##t, t, sums);

// sums[tap] += grad[i] * slab[i + offset of the tap], 8 taps; those past the last repeat the first.
static inline void dot_taps(__global acc* sums, const __global acc* grad, const __global acc* slab,
                            const __global int* offsets, int taps, int count) {
  FOR_TAPS(LOAD_SUM)
  for (int i = 0; i < count; i += LANES) {
    const vec g = LOAD_VEC(0, grad + i);
    FOR_TAPS(ADD)
  }
  FOR_TAPS(STORE_SUM)
}

__kernel void conv_depthwise_weight(OUT(T, weight), IN(T, src), IN(T, grad), __global acc* scratch_base,
                                    long scratch_offset, const conv_t p_, long weight_o, long weight_z, long weight_y,
                                    long weight_x) {
  OPERAND_OUT(T, weight);
  OPERAND_IN(T, src);
  OPERAND_IN(T, grad);
  const conv_t p = p_;
  const int slot = (int)get_global_id(0);
  if (slot >= p.slots) return;
  __global acc* scratch = scratch_base + scratch_offset + slot * p.slot;
  __global int* offsets = (__global int*)scratch;
  __global acc *slab = scratch + p.slab_at, *copy = scratch + p.sums_at, *sums = copy + p.sums_pitch;
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], blocks = (taps + 7) / 8;
  const int used = p.planes[0] * p.planes[1] * p.planes[2] * p.height * p.width;
  find_offsets(offsets, &p);
  for (int i = used; i < used + 2 * LANES; ++i) slab[i] = 0;
  for (int group = slot; group < p.groups; group += p.slots) {
    for (int i = 0; i < p.out_channels * blocks * 8 * LANES; ++i) sums[i] = 0;
    const long tiles = (long)p.batch * p.grid[0] * p.tiles_y * p.tiles_x;
    for (long tile = 0; tile < tiles; ++tile) {
      const int x0 = tile % p.tiles_x * p.columns, y0 = tile / p.tiles_x % p.tiles_y * p.rows;
      const int z = tile / (p.tiles_x * p.tiles_y) % p.grid[0];
      const long n = tile / ((long)p.tiles_x * p.tiles_y * p.grid[0]);
      const int rows = min(p.rows, p.grid[1] - y0), columns = min(p.columns, p.grid[2] - x0);
      const int count = (rows * p.width + LANES - 1) / LANES * LANES;
      fill_slab(slab, src + n * p.src_n + group * p.src_g, &p, 1, z, y0, x0);
      for (int m = 0; m < p.out_channels; ++m) {
        const __global MEM(T)* from = grad + n * p.dst_n + group * p.dst_g + m * p.dst_c + z * p.dst[0] +
                                      y0 * p.dst[1] + x0 * p.dst[2];
        for (int y = 0; y < rows; ++y)
          fill_line(copy + y * p.width, from + y * p.dst[1], 0, 1, columns, p.dst[2], p.width, 1);
        for (int i = rows * p.width; i < count; ++i) copy[i] = 0;
        for (int b = 0; b < blocks; ++b)
          dot_taps(sums + (m * blocks + b) * 8 * LANES, copy, slab, offsets + 8 * b, taps - 8 * b, count);
      }
    }
    for (int m = 0; m < p.out_channels; ++m) {
      for (int t = 0; t < taps; ++t) {
        const __global acc* lanes = sums + (m * blocks * 8 + t) * LANES;
        acc sum = 0;
        for (int i = 0; i < LANES; ++i) sum += lanes[i];
        const long at = t / (p.taps[2] * p.taps[1]) * weight_z + t / p.taps[2] % p.taps[1] * weight_y +
                        t % p.taps[2] * weight_x;
        STORE(T, weight, (group * p.out_channels + m) * weight_o + at, sum);
      }
    }
  }
}
