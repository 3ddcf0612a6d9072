// Maximum pooling. One item makes a line of outputs (CPUs; of all channels if these are innermost) or one output (GPUs);
// backward takes planes whole, so that equal indices are added in order. As in PyTorch the first of equal values wins
// and a NaN always does.
// Defines: T, LOWEST (a value that nothing is below), FLOAT (T is computed in float) or nothing.
typedef struct {
  long in_n, in_c, in[3], out_n, out_c, out[3], index_n, index_c, index[3];  // strides, in elements
  int channels, extent[3], grid[3], kernel_size[3], step[3], padding[3], dilation[3];
  int span;  // outputs per item
  int block;  // channels per item: 1, or all, which then lie side by side
} max_pool_t;

// The taps of a dim that are inside, as [first, end).
static inline int first_tap(int start, int dilation) { return start >= 0 ? 0 : (-start + dilation - 1) / dilation; }
static inline int end_tap(int start, int dilation, int taps, int extent) {
  return start >= extent ? 0 : min(taps, (extent - start + dilation - 1) / dilation);
}

typedef struct {
  int z[2], y[2], at_z, at_y;  // taps inside, coordinates of tap 0
} lines_t;

static inline void pool_one(const __global MEM(T)* plane, const max_pool_t* p, const lines_t* l, int x, __global MEM(T)* out,
                     __global long* index) {
  const int at_x = x * p->step[2] - p->padding[2];
  const int x0 = first_tap(at_x, p->dilation[2]), x1 = end_tap(at_x, p->dilation[2], p->kernel_size[2], p->extent[2]);
  ACC(T) best = LOWEST;
  long place = -1;
  for (int kz = l->z[0]; kz < l->z[1]; ++kz)
    for (int ky = l->y[0]; ky < l->y[1]; ++ky)
      for (int kx = x0; kx < x1; ++kx) {
        const int sz = l->at_z + kz * p->dilation[0], sy = l->at_y + ky * p->dilation[1], sx = at_x + kx * p->dilation[2];
        const ACC(T) value = LOAD(T, plane, sz * p->in[0] + sy * p->in[1] + sx * p->in[2]);
        if (place < 0 || value > best || value != value) {
          best = value;
          place = ((long)sz * p->extent[1] + sy) * p->extent[2] + sx;
        }
      }
  STORE(T, out, x * p->out[2], best);
  index[x * p->index[2]] = place;
}

#ifdef FLOAT
// from[i * step], i < 16, for steps of 1 and 2 without reading beyond the last
static inline float16 load_steps(const __global MEM(T)* from, long step) {
  if (step == 1) return LOAD16(T, from, 0);
  float16 result;
  result.lo = LOAD16(T, from, 0).even;
  result.hi = LOAD16(T, from, 15).odd;
  return result;
}

// Outputs x … x + 15, all of whose taps along x are inside.
static inline void pool_sixteen(const __global MEM(T)* plane, const max_pool_t* p, const lines_t* l, int x,
                         __global MEM(T)* out, __global long* index) {
  const int at_x = x * p->step[2] - p->padding[2];
  float16 best = (float16)(LOWEST);
  int16 place = (int16)(-1);
  const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) * (int16)(p->step[2]);
  for (int kz = l->z[0]; kz < l->z[1]; ++kz)
    for (int ky = l->y[0]; ky < l->y[1]; ++ky)
      for (int kx = 0; kx < p->kernel_size[2]; ++kx) {
        const int sz = l->at_z + kz * p->dilation[0], sy = l->at_y + ky * p->dilation[1], sx = at_x + kx * p->dilation[2];
        const float16 value = load_steps(plane + sz * p->in[0] + sy * p->in[1] + sx, p->step[2]);
        const int16 better = (value > best) | (value != value) | (place < 0);
        best = select(best, value, better);
        place = select(place, lane + (int16)((sz * p->extent[1] + sy) * p->extent[2] + sx), better);
      }
  STORE16(T, out, x, best);
  vstore16(convert_long16(place), 0, index + x);
}
#endif

#ifdef FLOAT
// Output x of channels c … c + 15.
static inline void pool_pixel(const __global MEM(T)* in, const max_pool_t* p, const lines_t* l, int x, int c,
                              __global MEM(T)* out, __global long* index) {
  const int at_x = x * p->step[2] - p->padding[2];
  const int x0 = first_tap(at_x, p->dilation[2]), x1 = end_tap(at_x, p->dilation[2], p->kernel_size[2], p->extent[2]);
  float16 best = (float16)(LOWEST);
  int16 place = (int16)(-1);
  for (int kz = l->z[0]; kz < l->z[1]; ++kz)
    for (int ky = l->y[0]; ky < l->y[1]; ++ky)
      for (int kx = x0; kx < x1; ++kx) {
        const int sz = l->at_z + kz * p->dilation[0], sy = l->at_y + ky * p->dilation[1], sx = at_x + kx * p->dilation[2];
        const float16 value = LOAD16(T, in, sz * p->in[0] + sy * p->in[1] + sx * p->in[2] + c);
        const int16 better = (value > best) | (value != value) | (place < 0);
        best = select(best, value, better);
        place = select(place, (int16)((sz * p->extent[1] + sy) * p->extent[2] + sx), better);
      }
  STORE16(T, out, x * p->out[2] + c, best);
  vstore16(convert_long16(place), 0, index + x * p->index[2] + c);
}
#endif

__kernel void max_pool(OUT(T, out), OUT(i64, index), IN(T, in), const max_pool_t p, long items) {
  OPERAND_OUT(T, out);
  OPERAND_OUT(i64, index);
  OPERAND_IN(T, in);
  long id = get_global_id(0);
  if (id >= items) return;
  const int spans = (p.grid[2] + p.span - 1) / p.span;
  int x = id % spans * p.span;
  const int x_end = min(x + p.span, p.grid[2]);
  id /= spans;
  const int y = id % p.grid[1];
  id /= p.grid[1];
  const int z = id % p.grid[0];
  id /= p.grid[0];
  const int blocks = p.channels / p.block;
  const int c = id % blocks;
  const long n = id / blocks;
  lines_t l;
  l.at_z = z * p.step[0] - p.padding[0], l.at_y = y * p.step[1] - p.padding[1];
  l.z[0] = first_tap(l.at_z, p.dilation[0]), l.z[1] = end_tap(l.at_z, p.dilation[0], p.kernel_size[0], p.extent[0]);
  l.y[0] = first_tap(l.at_y, p.dilation[1]), l.y[1] = end_tap(l.at_y, p.dilation[1], p.kernel_size[1], p.extent[1]);
  in += n * p.in_n + c * p.in_c;
  out += n * p.out_n + c * p.out_c + z * p.out[0] + y * p.out[1];
  index += n * p.index_n + c * p.index_c + z * p.index[0] + y * p.index[1];
#ifdef FLOAT
  if (p.block > 1) {
    for (; x < x_end; ++x)
      for (int k = 0; k < p.channels; k += 16) pool_pixel(in, &p, &l, x, min(k, p.channels - 16), out, index);
    return;
  }
  // Positions [low, high) see only taps inside.
  const int low = (p.padding[2] + p.step[2] - 1) / p.step[2];
  const int room = p.extent[2] - 1 + p.padding[2] - (p.kernel_size[2] - 1) * p.dilation[2];
  const int high = room < 0 ? 0 : min(x_end, room / p.step[2] + 1);
  if (p.in[2] == 1 && p.out[2] == 1 && p.index[2] == 1 && p.step[2] <= 2 && low >= x && high - low >= 16) {
    for (; x < low; ++x) pool_one(in, &p, &l, x, out, index);
    for (; x < high; x += 16) pool_sixteen(in, &p, &l, min(x, high - 16), out, index);
    x = high;
  }
#endif
  for (; x < x_end; ++x) pool_one(in, &p, &l, x, out, index);
}

typedef struct {
  long in_n, in_c, in[3], out_n, out_c, out[3], index_n, index_c, index[3];
  int channels, extent[3], grid[3], dense;  // dense: planes of the input's gradient are row-major
  int block;                                // channels per item; more than 1: they lie side by side
} max_pool_backward_t;

// Channels c … c_end of an image whose channels are innermost.
static inline void spread_pixels(__global MEM(T)* grad_in, const __global MEM(T)* grad_out, const __global long* index,
                                 const max_pool_backward_t* p, int c, int c_end) {
  const long plane = (long)p->extent[0] * p->extent[1] * p->extent[2];
  for (int z = 0; z < p->extent[0]; ++z)
    for (int y = 0; y < p->extent[1]; ++y)
      for (int x = 0; x < p->extent[2]; ++x) {
        __global MEM(T)* to = grad_in + z * p->in[0] + y * p->in[1] + x * p->in[2];
        for (int k = c; k < c_end; ++k) STORE(T, to, k, 0);
      }
  for (int z = 0; z < p->grid[0]; ++z)
    for (int y = 0; y < p->grid[1]; ++y)
      for (int x = 0; x < p->grid[2]; ++x) {
        const __global long* places = index + z * p->index[0] + y * p->index[1] + x * p->index[2];
        const __global MEM(T)* from = grad_out + z * p->out[0] + y * p->out[1] + x * p->out[2];
        for (int k = c; k < c_end; ++k) {
          const int at = (int)places[k];
          if (at < 0 || at >= plane) continue;
          const int row = at / p->extent[2];
          const long to = row / p->extent[1] * p->in[0] + row % p->extent[1] * p->in[1] +
                          at % p->extent[2] * p->in[2] + k;
          STORE(T, grad_in, to, LOAD(T, grad_in, to) + LOAD(T, from, k));
        }
      }
}

__kernel void max_pool_backward(OUT(T, grad_in), IN(T, grad_out), IN(i64, index), const max_pool_backward_t p,
                                long items) {
  OPERAND_OUT(T, grad_in);
  OPERAND_IN(T, grad_out);
  OPERAND_IN(i64, index);
  const long id = get_global_id(0);
  if (id >= items) return;
  const int blocks = (p.channels + p.block - 1) / p.block;
  const int c = id % blocks * p.block;
  const long n = id / blocks;
  if (p.block > 1)
    return spread_pixels(grad_in + n * p.in_n, grad_out + n * p.out_n, index + n * p.index_n, &p, c,
                         min(c + p.block, p.channels));
  grad_in += n * p.in_n + c * p.in_c;
  grad_out += n * p.out_n + c * p.out_c;
  index += n * p.index_n + c * p.index_c;
  const long plane = (long)p.extent[0] * p.extent[1] * p.extent[2];
  if (p.dense) {
    long i = 0;
    for (; i + 16 <= plane; i += 16) STORE16(T, grad_in, i, (ACC16(T))(0));
    for (; i < plane; ++i) STORE(T, grad_in, i, 0);
  } else {
    for (int z = 0; z < p.extent[0]; ++z)
      for (int y = 0; y < p.extent[1]; ++y)
        for (int x = 0; x < p.extent[2]; ++x) STORE(T, grad_in, z * p.in[0] + y * p.in[1] + x * p.in[2], 0);
  }
  for (int z = 0; z < p.grid[0]; ++z)
    for (int y = 0; y < p.grid[1]; ++y)
      for (int x = 0; x < p.grid[2]; ++x) {
        const long at = index[z * p.index[0] + y * p.index[1] + x * p.index[2]];
        if (at < 0 || at >= plane) continue;
        const long to = p.dense ? at
                                : at / ((long)p.extent[1] * p.extent[2]) * p.in[0] +
                                      at / p.extent[2] % p.extent[1] * p.in[1] + at % p.extent[2] * p.in[2];
        STORE(T, grad_in, to,
              LOAD(T, grad_in, to) + LOAD(T, grad_out, z * p.out[0] + y * p.out[1] + x * p.out[2]));
      }
}
