// Average pooling, regular and adaptive, with backward. One item makes a line of results (CPUs; of all channels if these
// are innermost) or one (GPUs).
// Defines: T, ADAPTIVE 0 or 1.
typedef struct {
  long in_n, in_c, in[3], out_n, out_c, out[3];  // strides, in elements
  long divisor;                                  // 0: the window's size
  int channels, extent[3], grid[3], kernel_size[3], step[3], padding[3];
  int count_padding, span;
  int dense;  // of the input: planes are row-major
  int block;  // channels per item: 1, or all, which then lie side by side
} avg_pool_t;

// The window of output i along a dim, [0] to [1], clipped; [2]: its length for the divisor.
static inline void find_window(const avg_pool_t* p, int d, int i, int* window) {
#if ADAPTIVE
  window[0] = (int)((long)i * p->extent[d] / p->grid[d]);
  window[1] = (int)(((long)(i + 1) * p->extent[d] + p->grid[d] - 1) / p->grid[d]);
  window[2] = window[1] - window[0];
#else
  const int start = i * p->step[d] - p->padding[d];
  const int end = min(start + p->kernel_size[d], p->extent[d] + p->padding[d]);
  window[0] = max(start, 0), window[1] = min(end, p->extent[d]);
  window[2] = p->count_padding ? end - start : window[1] - window[0];
#endif
}

// Outputs whose window holds input i: [*first, *end), perhaps a few too many.
static inline void find_outputs(const avg_pool_t* p, int d, int i, int* first, int* end) {
#if ADAPTIVE
  *first = (int)((long)i * p->grid[d] / p->extent[d]);
  *end = (int)(((long)(i + 1) * p->grid[d] + p->extent[d] - 1) / p->extent[d]);
#else
  const int at = i + p->padding[d];
  *first = at < p->kernel_size[d] ? 0 : (at - p->kernel_size[d]) / p->step[d] + 1;
  *end = min(p->grid[d], at / p->step[d] + 1);
#endif
}

static inline ACC(T) divisor_of(const avg_pool_t* p, int z, int y, int x) {
  return p->divisor != 0 ? (ACC(T))p->divisor : (ACC(T))((long)z * y * x);
}

static inline ACC(T) sum_line(const __global MEM(T)* line, long stride, int count) {
  ACC(T) sum = 0;
  int i = 0;
  if (stride == 1 && count >= 32) {
    ACC16(T) sums = (ACC16(T))(0);
    for (; i + 16 <= count; i += 16) sums += LOAD16(T, line, i);
    for (int k = 0; k < 16; ++k) sum += ((ACC(T)*)&sums)[k];
  }
  for (; i < count; ++i) sum += LOAD(T, line, i * stride);
  return sum;
}

__kernel void avg_pool(OUT(T, out), IN(T, in), const avg_pool_t p, long items) {
  OPERAND_OUT(T, out);
  OPERAND_IN(T, in);
  long id = get_global_id(0);
  if (id >= items) return;
  const int spans = (p.grid[2] + p.span - 1) / p.span;
  const int x0 = id % spans * p.span, x1 = min(x0 + p.span, p.grid[2]);
  id /= spans;
  const int y = id % p.grid[1];
  id /= p.grid[1];
  const int z = id % p.grid[0];
  id /= p.grid[0];
  const int blocks = p.channels / p.block;
  const int c = id % blocks;
  const long n = id / blocks;
  in += n * p.in_n + c * p.in_c;
  out += n * p.out_n + c * p.out_c + z * p.out[0] + y * p.out[1];
  int wz[3], wy[3], wx[3];
  find_window(&p, 0, z, wz);
  find_window(&p, 1, y, wy);
  for (int x = x0; x < x1; ++x) {
    find_window(&p, 2, x, wx);
    if (p.block > 1) {
      for (int k = 0; k < p.channels; k += 16) {
        const int at = min(k, p.channels - 16);
        ACC16(T) sums = (ACC16(T))(0);
        for (int sz = wz[0]; sz < wz[1]; ++sz)
          for (int sy = wy[0]; sy < wy[1]; ++sy)
            for (int sx = wx[0]; sx < wx[1]; ++sx)
              sums += LOAD16(T, in, sz * p.in[0] + sy * p.in[1] + sx * p.in[2] + at);
        STORE16(T, out, x * p.out[2] + at, sums / (ACC16(T))(divisor_of(&p, wz[2], wy[2], wx[2])));
      }
      continue;
    }
    const int count = wx[1] - wx[0];
    ACC(T) sum = 0;
    if (p.dense && count == p.extent[2] && wy[1] - wy[0] == p.extent[1]) {  // whole planes
      sum = sum_line(in + wz[0] * p.in[0], 1, (wz[1] - wz[0]) * p.extent[1] * p.extent[2]);
    } else {
      for (int sz = wz[0]; sz < wz[1]; ++sz)
        for (int sy = wy[0]; sy < wy[1]; ++sy)
          sum += sum_line(in + sz * p.in[0] + sy * p.in[1] + wx[0] * p.in[2], p.in[2], count);
    }
    STORE(T, out, x * p.out[2], sum / divisor_of(&p, wz[2], wy[2], wx[2]));
  }
}

// to[i * stride] = value
static inline void fill_values(__global MEM(T)* to, long stride, int count, ACC(T) value) {
  int i = 0;
  if (stride == 1)
    for (; i + 16 <= count; i += 16) STORE16(T, to, i, (ACC16(T))(value));
  for (; i < count; ++i) STORE(T, to, i * stride, value);
}

// The gradients of inputs [x, x_end) of all channels, which lie side by side; they get the same from outputs
// [z0, z1) x [y0, y1) x [a, b).
static inline void spread_pixels(__global MEM(T)* grad_in, const __global MEM(T)* grad_out, const avg_pool_t* p, int z0,
                                 int z1, int y0, int y1, int a, int b, int x, int x_end) {
  for (int k = 0; k < p->channels; k += 16) {
    const int at = min(k, p->channels - 16);
    ACC16(T) sums = (ACC16(T))(0);
    for (int oz = z0; oz < z1; ++oz)
      for (int oy = y0; oy < y1; ++oy)
        for (int ox = a; ox < b; ++ox) {
          int wz[3], wy[3], wx[3];
          find_window(p, 0, oz, wz);
          find_window(p, 1, oy, wy);
          find_window(p, 2, ox, wx);
          sums += LOAD16(T, grad_out, oz * p->out[0] + oy * p->out[1] + ox * p->out[2] + at) /
                  (ACC16(T))(divisor_of(p, wz[2], wy[2], wx[2]));
        }
    for (int i = x; i < x_end; ++i) STORE16(T, grad_in, i * p->in[2] + at, sums);
  }
}

__kernel void avg_pool_backward(OUT(T, grad_in), IN(T, grad_out), const avg_pool_t p, long items) {
  OPERAND_OUT(T, grad_in);
  OPERAND_IN(T, grad_out);
  long id = get_global_id(0);
  if (id >= items) return;
  const int spans = (p.extent[2] + p.span - 1) / p.span;
  const int planes = p.span > p.extent[2];  // an item takes a whole plane
  const int x0 = id % spans * p.span, x1 = min(x0 + p.span, p.extent[2]);
  id /= spans;
  const int y = planes ? 0 : id % p.extent[1];
  id /= planes ? 1 : p.extent[1];
  const int z = planes ? 0 : id % p.extent[0];
  id /= planes ? 1 : p.extent[0];
  const int blocks = p.channels / p.block;
  const int c = id % blocks;
  const long n = id / blocks;
  grad_in += n * p.in_n + c * p.in_c + z * p.in[0] + y * p.in[1];
  grad_out += n * p.out_n + c * p.out_c;
  int z0, z1, y0, y1, a, b;
#if ADAPTIVE
  if (planes) {  // the mean of whole planes
    const ACC(T) share = LOAD(T, grad_out, 0) / (ACC(T))p.span;
    return fill_values(grad_in, 1, p.span, share);
  }
#endif
  find_outputs(&p, 0, z, &z0, &z1);
  find_outputs(&p, 1, y, &y0, &y1);
  for (int x = x0; x < x1;) {
    // Inputs [x, next) lie in the same windows.
    find_outputs(&p, 2, x, &a, &b);
    int next = x + 1;
    if (p.grid[2] == 1 && a == 0 && b == 1 && ADAPTIVE) next = x1;
    for (int more_a, more_b; next < x1; ++next) {
      find_outputs(&p, 2, next, &more_a, &more_b);
      if (more_a != a || more_b != b) break;
    }
    if (p.block > 1) {
      spread_pixels(grad_in, grad_out, &p, z0, z1, y0, y1, a, b, x, next);
      x = next;
      continue;
    }
    ACC(T) sum = 0;
    for (int oz = z0; oz < z1; ++oz)
      for (int oy = y0; oy < y1; ++oy)
        for (int ox = a; ox < b; ++ox) {
          int wz[3], wy[3], wx[3];
          find_window(&p, 0, oz, wz);
          find_window(&p, 1, oy, wy);
          find_window(&p, 2, ox, wx);
          sum += LOAD(T, grad_out, oz * p.out[0] + oy * p.out[1] + ox * p.out[2]) /
                 divisor_of(&p, wz[2], wy[2], wx[2]);
        }
    fill_values(grad_in + x * p.in[2], p.in[2], next - x, sum);
    x = next;
  }
}
