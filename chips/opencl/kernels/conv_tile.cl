// Convolution on CPUs as a matrix product without im2col, for the result itself and for the input's gradient.
// One item makes the outputs of some channels at a tile of positions. It copies what the tile needs of the source into
// a slab: per channel one plane per residue of the step (and per tap along z), its rows `width` apart. On that pitch
// the source of a run of positions at any tap is a run too: position q reads slab[q + offset of the tap], so vectors
// are loaded without any index arithmetic. Positions between the rows are computed and dropped.
// Needs conv_lines.cl. PACKED: the weights are as conv_pack.cl leaves them, else as they are in the tensor.

// Along z, y, x: source coordinate = position * step + first + tap * tap_step.
typedef struct {
  long src_n, src_g, src_c, src[3];  // strides, in elements
  long dst_n, dst_g, dst_c, dst[3];
  long slot, slab_at, sums_at;       // per item in flight: its scratch, and where in it the slab and the sums are
  long weight_row;                   // between output channels of the weight, if it is not packed
  int extent[3], grid[3];            // of the source, of the positions
  int step[3], first[3], tap_step[3], taps[3];
  int planes[3], lowest[3];          // residues of the step; smallest shift of a tap, in steps
  int rows, columns;                 // of a tile
  int height, width, length;         // of a plane in the slab; of a channel's slab
  int tiles_y, tiles_x, m_tiles;
  int batch, groups, in_channels, out_channels;  // channels per group
  int chunk, m_rows;                 // input channels per slab, output channels per item
  int sums_pitch, items, slots, has_bias;
} conv_t;

static inline void fill_slab(__global acc* slab, const __global MEM(T)* src, const conv_t* p, int channels, int z, int y0,
                      int x0) {
  for (int c = 0; c < channels; ++c) {
    __global acc* line = slab + (long)c * p->length;
    const __global MEM(T)* channel = src + c * p->src_c;
    for (int plane = 0; plane < p->planes[0] * p->planes[1] * p->planes[2]; ++plane) {
      const int px = plane % p->planes[2], py = plane / p->planes[2] % p->planes[1],
                pz = plane / (p->planes[2] * p->planes[1]);
      const int at_z = z * p->step[0] + p->first[0] + pz * p->tap_step[0];
      const int from_y = p->first[1] + py * p->tap_step[1], from_x = p->first[2] + px * p->tap_step[2];
      const int rest_y = from_y - floor_div(from_y, p->step[1]) * p->step[1];
      const int rest_x = from_x - floor_div(from_x, p->step[2]) * p->step[2];
      const int at_x = (x0 + p->lowest[2]) * p->step[2] + rest_x;
      for (int r = 0; r < p->height; ++r, line += p->width) {
        const int at_y = (y0 + r + p->lowest[1]) * p->step[1] + rest_y;
        const int inside = at_z >= 0 && at_z < p->extent[0] && at_y >= 0 && at_y < p->extent[1];
        const __global MEM(T)* row = channel + at_z * p->src[0] + at_y * p->src[1];
        if (inside && px == 0 && c + 4 < channels && p->src[2] == 1)
          prefetch_line(row + 4 * p->src_c + max(at_x, 0), (long)p->width * p->step[2] * sizeof(MEM(T)));
        fill_line(line, row, at_x, p->step[2], p->extent[2], p->src[2], p->width, inside);
      }
    }
  }
}

// Where in a channel's slab the taps find position 0.
static inline void find_offsets(__global int* offsets, const conv_t* p) {
  for (int kz = 0; kz < p->taps[0]; ++kz)
    for (int ky = 0; ky < p->taps[1]; ++ky)
      for (int kx = 0; kx < p->taps[2]; ++kx) {
        const int y = floor_div(p->first[1] + ky * p->tap_step[1], p->step[1]) - p->lowest[1];
        const int x = floor_div(p->first[2] + kx * p->tap_step[2], p->step[2]) - p->lowest[2];
        const int plane = (kz * p->planes[1] + ky % p->planes[1]) * p->planes[2] + kx % p->planes[2];
        *offsets++ = (plane * p->height + y) * p->width + x;
      }
}

#define FOR_ROWS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#ifdef PACKED  // [channel][tap][8]
#define WEIGHT_ROW(r)
#define WEIGHT(r) w[r]
#define NEXT_WEIGHT w += 8
#else  // rows as they lie in the tensor, `row` elements apart
#define WEIGHT_ROW(r) const __global acc* w##r = w + (r < rows ? r : rows - 1) * row;
#define WEIGHT(r) w##r[k]
#define NEXT_WEIGHT ++k
#endif
#define LOAD_SUMS1(r) vec s##r = again ? VLOAD(0, sums + r * pitch) : (vec)(0);
#define LOAD_SUMS2(r) LOAD_SUMS1(r) vec t##r = again ? VLOAD(0, sums + r * pitch + LANES) : (vec)(0);
#define ADD1(r) s##r = fma((vec)(WEIGHT(r)), b0, s##r);
#define ADD2(r) { const vec a = (vec)(WEIGHT(r)); s##r = fma(a, b0, s##r); t##r = fma(a, b1, t##r); }
#define STORE_SUMS1(r) VSTORE(s##r, 0, sums + r * pitch);
#define STORE_SUMS2(r) STORE_SUMS1(r) VSTORE(t##r, 0, sums + r * pitch + LANES);

// sums[r][i] (+)= sum over channels and taps of weight[r][channel][tap] * slab[channel][offset + i]; 8 rows, 2 or 1
// vectors. rows: how many there are, if the weights are not packed; the others repeat the last.
#define MULTIPLY(NAME, LOAD_SUMS, ADD, STORE_SUMS, SECOND)                                                         \
  static inline void NAME(__global acc* sums, int pitch, const __global acc* w, long row, int rows,               \
                          const __global acc* slab, const __global int* offsets, int channels, int taps,          \
                          int length, int again) {                                                                \
    long k = 0;                                                                                                    \
    FOR_ROWS(WEIGHT_ROW)                                                                                           \
    FOR_ROWS(LOAD_SUMS)                                                                                            \
    if (taps == 1) {                                                                                               \
      for (int c = 0; c < channels; ++c, NEXT_WEIGHT, slab += length) {                                            \
        const vec b0 = VLOAD(0, slab);                                                                             \
        SECOND(slab)                                                                                               \
        FOR_ROWS(ADD)                                                                                              \
      }                                                                                                            \
    } else {                                                                                                       \
      for (int c = 0; c < channels; ++c, slab += length)                                                           \
        for (int t = 0; t < taps; ++t, NEXT_WEIGHT) {                                                              \
          const __global acc* from = slab + offsets[t];                                                            \
          const vec b0 = VLOAD(0, from);                                                                           \
          SECOND(from)                                                                                             \
          FOR_ROWS(ADD)                                                                                            \
        }                                                                                                          \
    }                                                                                                              \
    FOR_ROWS(STORE_SUMS)                                                                                           \
  }
#define SECOND2(p) const vec b1 = VLOAD(0, p + LANES);
#define SECOND1(p)
MULTIPLY(multiply2, LOAD_SUMS2, ADD2, STORE_SUMS2, SECOND2)
MULTIPLY(multiply1, LOAD_SUMS1, ADD1, STORE_SUMS1, SECOND1)

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
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], blocks = (p.out_channels + 7) / 8;
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
      for (int q = 0; q < count; q += 2 * LANES) {
        for (int m = m0; m < m1; m += 8) {
          __global acc* sums = sums_base + (long)(m - m0) * p.sums_pitch + q;
#ifdef PACKED
          const __global acc* w = weights + (((long)group * blocks + m / 8) * p.in_channels + c0) * (long)(taps * 8);
#else
          const __global acc* w = weights + ((long)group * p.out_channels + m) * p.weight_row + c0 * taps;
#endif
          if (count - q > LANES)
            multiply2(sums, p.sums_pitch, w, p.weight_row, m1 - m, slab + q, offsets, channels, taps, p.length, c0 > 0);
          else
            multiply1(sums, p.sums_pitch, w, p.weight_row, m1 - m, slab + q, offsets, channels, taps, p.length, c0 > 0);
        }
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
