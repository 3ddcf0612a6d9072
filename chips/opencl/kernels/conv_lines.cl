// Lines of images for the CPU kernels of convolution: copied into padded slabs, written from sums, transposed.
// Defines: T, LINE (the type of slabs and sums: f32 or f64), VEC and LANES (a 64-byte vector of it), NUMBER (one lane).
typedef ACC(T) acc;
typedef VEC vec;
// Vector i from p on.
#if LANES == 8
PACKED_VECTOR(double, 8)
#endif
#define LOAD_OF(N, L, p) VLOAD(N, L, p)
#define STORE_OF(N, L, value, p) VSTORE(N, L, value, p)
#define LOAD_VEC(i, p) LOAD_OF(NUMBER, LANES, (p) + (i) * LANES)
#define STORE_VEC(value, i, p) STORE_OF(NUMBER, LANES, value, (p) + (i) * LANES)

static inline int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// Asks for the cache lines of an address. Channels lie far apart, which hardware does not foresee.
static inline void prefetch_line(const __global MEM(T)* line, long bytes) {
  for (long i = 0; i < bytes; i += 64) PREFETCH((const __global char*)line + i);
}

// to[i] = from[i * step], count > 0
static inline void copy_line(__global acc* to, const __global MEM(T)* from, long step, int count) {
  if (step == 1 && count >= 16) {
    for (int i = 0; i < count - 16; i += 16) STORE16(LINE, to, i, LOAD16(T, from, i));
    STORE16(LINE, to, count - 16, LOAD16(T, from, count - 16));
  } else if (step == 2 && count >= 16) {
    for (int i = 0; i < count; i += 16) {
      const int at = min(i, count - 16);
      const ACC16(T) low = LOAD16(T, from, 2 * at), high = LOAD16(T, from, 2 * at + 15);
      ACC16(T) both;
      both.lo = low.even;
      both.hi = high.odd;
      STORE16(LINE, to, at, both);
    }
  } else {
    for (int i = 0; i < count; ++i) to[i] = LOAD(T, from, i * step);
  }
}

// line[i] = row[(x0 + i * step) * stride] where that is inside [0, extent), else 0. inside: the row exists.
static inline void fill_line(__global acc* line, const __global MEM(T)* row, int x0, int step, int extent, long stride,
                      int width, int inside) {
  const int low = !inside ? width : x0 >= 0 ? 0 : min(width, (-x0 + step - 1) / step);
  const int high = x0 < extent ? max(low, min(width, (extent - x0 + step - 1) / step)) : low;
  for (int i = 0; i < low; ++i) line[i] = 0;
  if (high > low) copy_line(line + low, row + (x0 + (long)low * step) * stride, step * stride, high - low);
  for (int i = high; i < width; ++i) line[i] = 0;
}

// to[i * stride] = from[i] + add
static inline void write_line(__global MEM(T)* to, long stride, const __global acc* from, acc add, int count) {
  if (stride == 1 && count >= 16) {
    for (int i = 0; i < count - 16; i += 16) STORE16(T, to, i, LOAD16(LINE, from, i) + add);
    STORE16(T, to, count - 16, LOAD16(LINE, from, count - 16) + add);
  } else {
    for (int i = 0; i < count; ++i) STORE(T, to, i * stride, from[i] + add);
  }
}
