// The weight's gradient on CPUs as a matrix product: rows are pairs (input channel, tap), columns are output channels,
// and the sum runs over positions. The output's gradient is transposed so that vectors hold output channels; the
// source's value at a tap is one broadcast number, so taps and steps cost nothing. Needs conv_lines.cl.
// One item makes the sums of some input channels and some output channels over its share of the tiles of positions.
// Sums lie in `partial`: [share][group][panel of 2 * LANES output channels][channel][tap][2 * LANES], where the pairs
// (channel, tap) of a group are filled up to a multiple of 16. conv_weight_finish adds the shares up.
typedef struct {
  long src_n, src_g, src_c, src[3];     // strides, in elements
  long grad_n, grad_g, grad_c, grad[3];
  long slot, slab_at, grad_at;          // per item in flight: its scratch, and where in it the two copies are
  int extent[3], grid[3];               // of the source, of the positions
  int step[3], first[3], tap_step[3], taps[3];
  int rows, columns;                    // of a tile
  int height, width, length;            // of a plane in the slab; of a channel's slab
  int tiles_y, tiles_x;
  int batch, groups, in_channels, out_channels;  // channels per group
  int channels, panels;                 // of an item
  int pairs, all_panels;                // per group: pairs filled up, panels
  int channel_tiles, panel_tiles, shares, items, slots;
  int in_place;                         // the source is read where it lies: nothing is outside, and T is LINE
} weight_t;

#if LANES == 16
#define INTERLEAVE(to, from)                                   \
  for (int i = 0; i < 8; ++i) {                                \
    to[2 * i].even = from[i].lo, to[2 * i].odd = from[i + 8].lo; \
    to[2 * i + 1].even = from[i].hi, to[2 * i + 1].odd = from[i + 8].hi; \
  }
#define TRANSPOSE(a, b)                  \
  _Pragma("unroll") INTERLEAVE(b, a)     \
  _Pragma("unroll") INTERLEAVE(a, b)     \
  _Pragma("unroll") INTERLEAVE(b, a)     \
  _Pragma("unroll") INTERLEAVE(a, b)
#endif

// to[i][32 or 16 channels] = from[channel][i], count positions; channels past `channels` are zero.
static inline void transpose_line(__global acc* to, const __global MEM(T)* from, long channel_stride, long step, int count,
                           int channels) {
  int c = 0;
#if LANES == 16
  for (; c + 16 <= channels && step == 1 && count >= 16; c += 16) {
    for (int i = 0; i < count; i += 16) {
      const int at = min(i, count - 16);
      vec a[16], b[16];
#pragma unroll
      for (int k = 0; k < 16; ++k) a[k] = LOAD16(T, from, (c + k) * channel_stride + at);
      TRANSPOSE(a, b)
#pragma unroll
      for (int k = 0; k < 16; ++k) STORE_VEC(a[k], 0, to + (at + k) * (2 * LANES) + c);
    }
  }
#endif
  for (; c < 2 * LANES; ++c) {
    for (int i = 0; i < count; ++i)
      to[i * (2 * LANES) + c] = c < channels ? LOAD(T, from, c * channel_stride + i * step) : 0;
  }
}

#define FOR_ROWS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define LOAD_SUMS(r)                                                      \
  const __global acc* p##r = rows[r];                                     \
  vec s##r = again ? LOAD_VEC(0, sums + r * 2 * LANES) : (vec)(0);           \
  vec t##r = again ? LOAD_VEC(0, sums + r * 2 * LANES + LANES) : (vec)(0);
#define ADD(r) { const vec a = (vec)(p##r[i]); s##r = fma(a, b0, s##r); t##r = fma(a, b1, t##r); }
#define STORE_SUMS(r) STORE_VEC(s##r, 0, sums + r * 2 * LANES); STORE_VEC(t##r, 0, sums + r * 2 * LANES + LANES);

// sums[r] (+)= sum over lines and columns of rows[r][y * pitch + x * step] * grad[y * columns + x]
static inline void multiply(__global acc* sums, const __global acc** rows, const __global acc* grad, int lines, int columns,
                     long pitch, long step, int again) {
  FOR_ROWS(LOAD_SUMS)
  for (int y = 0; y < lines; ++y) {
    long i = y * pitch;
    for (int x = 0; x < columns; ++x, i += step, grad += 2 * LANES) {
      const vec b0 = LOAD_VEC(0, grad), b1 = LOAD_VEC(0, grad + LANES);
      FOR_ROWS(ADD)
    }
  }
  FOR_ROWS(STORE_SUMS)
}

// Where from position 0 in a channel's source, or slab, the tap is.
static inline long tap_offset(const weight_t* p, int tap) {
  const int kx = tap % p->taps[2], ky = tap / p->taps[2] % p->taps[1], kz = tap / (p->taps[2] * p->taps[1]);
  if (p->in_place) return kz * p->tap_step[0] * p->src[0] + ky * p->tap_step[1] * p->src[1] + kx * p->tap_step[2] * p->src[2];
  return ((long)kz * p->height + ky * p->tap_step[1]) * p->width + kx * p->tap_step[2];
}

static inline void fill_slab(__global acc* slab, const __global MEM(T)* src, const weight_t* p, int channels, int z, int y0,
                      int x0) {
  for (int c = 0; c < channels; ++c) {
    __global acc* line = slab + (long)c * p->length;
    for (int kz = 0; kz < p->taps[0]; ++kz) {
      const int at_z = z * p->step[0] + p->first[0] + kz * p->tap_step[0];
      for (int r = 0; r < p->height; ++r, line += p->width) {
        const int at_y = y0 * p->step[1] + p->first[1] + r;
        const int inside = at_z >= 0 && at_z < p->extent[0] && at_y >= 0 && at_y < p->extent[1];
        fill_line(line, src + c * p->src_c + at_z * p->src[0] + at_y * p->src[1], x0 * p->step[2] + p->first[2], 1,
                  p->extent[2], p->src[2], p->width, inside);
      }
    }
  }
}

__kernel void conv_weight(__global acc* partial_base, long partial_offset, IN(T, src), IN(T, grad),
                          __global acc* scratch_base, long scratch_offset, const weight_t p_) {
  OPERAND_IN(T, src);
  OPERAND_IN(T, grad);
  const weight_t p = p_;
  const int slot = (int)get_global_id(0);
  if (slot >= p.slots) return;
  __global acc* scratch = scratch_base + scratch_offset + slot * p.slot;
  __global acc *slab = scratch + p.slab_at, *columns_of = scratch + p.grad_at;
  const int taps = p.taps[0] * p.taps[1] * p.taps[2];
  const long tiles = (long)p.batch * p.grid[0] * p.tiles_y * p.tiles_x;
  for (int item = slot; item < p.items; item += p.slots) {
    int rest = item;
    const int c0 = rest % p.channel_tiles * p.channels;
    rest /= p.channel_tiles;
    const int panel0 = rest % p.panel_tiles * p.panels;
    rest /= p.panel_tiles;
    const int share = rest % p.shares, group = rest / p.shares;
    const int channels = min(p.channels, p.in_channels - c0), panels = min(p.panels, p.all_panels - panel0);
    const long first_tile = tiles * share / p.shares, end_tile = tiles * (share + 1) / p.shares;
    for (long tile = first_tile; tile < end_tile; ++tile) {
      const int x0 = tile % p.tiles_x * p.columns, y0 = tile / p.tiles_x % p.tiles_y * p.rows;
      const int z = tile / (p.tiles_x * p.tiles_y) % p.grid[0];
      const long n = tile / ((long)p.tiles_x * p.tiles_y * p.grid[0]);
      const int rows = min(p.rows, p.grid[1] - y0), columns = min(p.columns, p.grid[2] - x0);
      const __global MEM(T)* from = src + n * p.src_n + group * p.src_g + c0 * p.src_c;
      const __global acc* source = slab;
      long pitch = p.step[1] * p.width, step = p.step[2], channel_pitch = p.length;
      if (p.in_place) {
        source = (const __global acc*)from + (z * p.step[0] + p.first[0]) * p.src[0] +
                 (y0 * p.step[1] + p.first[1]) * p.src[1] + (x0 * p.step[2] + p.first[2]) * p.src[2];
        pitch = p.step[1] * p.src[1], step = p.step[2] * p.src[2], channel_pitch = p.src_c;
      } else {
        fill_slab(slab, from, &p, channels, z, y0, x0);
      }
      const int panel_size = p.rows * p.columns * 2 * LANES;
      for (int panel = 0; panel < panels; ++panel) {
        const int o = (panel0 + panel) * 2 * LANES;
        const __global MEM(T)* g = grad + n * p.grad_n + group * p.grad_g + o * p.grad_c + z * p.grad[0];
        for (int y = 0; y < rows; ++y)
          transpose_line(columns_of + panel * panel_size + y * columns * 2 * LANES,
                         g + (y0 + y) * p.grad[1] + x0 * p.grad[2], p.grad_c, p.grad[2], columns,
                         min(2 * LANES, p.out_channels - o));
      }
      for (int j = 0; j < channels * taps; j += 8) {
        const __global acc* starts[8];
        for (int r = 0; r < 8; ++r) {
          const int pair = min(j + r, channels * taps - 1);
          starts[r] = source + pair / taps * channel_pitch + tap_offset(&p, pair % taps);
        }
        for (int panel = 0; panel < panels; ++panel) {
          __global acc* sums = partial_base + partial_offset +
                               ((((long)share * p.groups + group) * p.all_panels + panel0 + panel) * p.pairs +
                                (long)c0 * taps + j) * (2 * LANES);
          multiply(sums, starts, columns_of + panel * panel_size, rows, columns, pitch, step, tile > first_tile);
        }
      }
    }
  }
}

typedef struct {
  long g, o, c, tap[3];  // strides of the weight, in elements
  int taps[3];
  int groups, in_channels, out_channels;  // per group
  int pairs, all_panels, shares, straight;  // straight: pairs of an output channel are consecutive in the weight
} finish_t;

// One item: 16 pairs of one panel.
__kernel void conv_weight_finish(OUT(T, weight), const __global acc* partial_base, long partial_offset,
                                 const finish_t p_) {
  OPERAND_OUT(T, weight);
  const finish_t p = p_;
  const int j0 = (int)get_global_id(0) * 16, panel = (int)get_global_id(1) % p.all_panels;
  const int group = (int)get_global_id(1) / p.all_panels;
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], pairs = p.in_channels * taps;
  if (j0 >= pairs || group >= p.groups) return;
  const int o0 = panel * 2 * LANES, outs = min(2 * LANES, p.out_channels - o0), count = min(16, pairs - j0);
  const long share_size = (long)p.groups * p.all_panels * p.pairs * 2 * LANES;
  const __global acc* from =
      partial_base + partial_offset + (((long)group * p.all_panels + panel) * p.pairs + j0) * (2 * LANES);
  __global MEM(T)* to = weight + group * p.g + o0 * p.o;
#if LANES == 16
  if (p.straight && count == 16 && outs % 16 == 0) {
    for (int o = 0; o < outs; o += 16) {
      vec a[16], b[16];
#pragma unroll
      for (int k = 0; k < 16; ++k) a[k] = LOAD_VEC(0, from + k * 2 * LANES + o);
      for (int share = 1; share < p.shares; ++share) {
#pragma unroll
        for (int k = 0; k < 16; ++k) a[k] += LOAD_VEC(0, from + share * share_size + k * 2 * LANES + o);
      }
      TRANSPOSE(a, b)
#pragma unroll
      for (int k = 0; k < 16; ++k) STORE16(T, to, (o + k) * p.o + j0, a[k]);
    }
    return;
  }
#endif
  for (int j = 0; j < count; ++j) {
    const int c = (j0 + j) / taps, tap = (j0 + j) % taps;
    const int kx = tap % p.taps[2], ky = tap / p.taps[2] % p.taps[1], kz = tap / (p.taps[2] * p.taps[1]);
    const long at = c * p.c + kz * p.tap[0] + ky * p.tap[1] + kx * p.tap[2];
    for (int o = 0; o < outs; ++o) {
      acc sum = from[j * 2 * LANES + o];
      for (int share = 1; share < p.shares; ++share) sum += from[share * share_size + j * 2 * LANES + o];
      STORE(T, to, o * p.o + at, sum);
    }
  }
}
