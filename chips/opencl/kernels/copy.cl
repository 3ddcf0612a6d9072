// Copies that move elements of a raw type T: `transpose`, tile by tile, where the source is dense along one dim and the
// target along another; `triangle`, row by row.

struct Places {
  long size[NDIM];
  long out[NDIM], in[NDIM];  // strides
  int dims;
};

#ifdef TRANSPOSE
// Four by four elements: rows of x become columns of out.
static inline void turn(__global MEM(T)* out, long out_stride, const __global MEM(T)* x, long x_stride) {
  const ACC4(T) a = LOAD4(T, x, 0), b = LOAD4(T, x, x_stride), c = LOAD4(T, x, 2 * x_stride),
                d = LOAD4(T, x, 3 * x_stride);
  STORE4(T, out, 0, ((ACC4(T))(a.x, b.x, c.x, d.x)));
  STORE4(T, out, out_stride, ((ACC4(T))(a.y, b.y, c.y, d.y)));
  STORE4(T, out, 2 * out_stride, ((ACC4(T))(a.z, b.z, c.z, d.z)));
  STORE4(T, out, 3 * out_stride, ((ACC4(T))(a.w, b.w, c.w, d.w)));
}

#define TILE 16
// x is dense along rows and has x_stride along columns; out is dense along columns and has out_stride along rows. A
// work-item takes TILE rows and `width` columns, so that it uses whole cache lines of both. `places`: the other dims.
__kernel void transpose(OUT(T, out), IN(T, x), long rows, long columns, long x_stride, long out_stride, long width,
                        const struct Places places) {
  OPERAND_OUT(T, out);
  OPERAND_IN(T, x);
  const long first_row = get_global_id(0) * TILE, first_column = get_global_id(1) * width;
  const long last_row = min(first_row + TILE, rows), last_column = min(first_column + width, columns);
  long rest = get_global_id(2);
  for (int d = places.dims - 1; d >= 0; --d) {
    const long at = rest % places.size[d];
    rest /= places.size[d];
    out += at * places.out[d];
    x += at * places.in[d];
  }
  for (long c = first_column; c < last_column; c += TILE) {
    const long end = min(c + TILE, last_column);
    if (last_row - first_row == TILE && end - c == TILE) {
      for (long r = first_row; r < last_row; r += 4)
        for (long k = c; k < end; k += 4) turn(out + r * out_stride + k, out_stride, x + k * x_stride + r, x_stride);
    } else {
      for (long r = first_row; r < last_row; ++r)
        for (long k = c; k < end; ++k) out[r * out_stride + k] = x[k * x_stride + r];
    }
  }
}
#endif

#ifdef TRIANGLE
// Row i keeps columns from i + diagonal on (upper) or up to it, and gets zeros elsewhere. `places`: all dims but one.
__kernel void triangle(OUT(T, out), IN(T, x), long rows, long chunk, long columns, long out_stride, long x_stride,
                       long diagonal, int upper, const struct Places places) {
  const long begin = get_global_id(0) * chunk, end = min(begin + chunk, rows);
  for (long row = begin; row < end; ++row) {
    OPERAND_OUT(T, out);
    OPERAND_IN(T, x);
    long rest = row, line = 0;
    for (int d = places.dims - 1; d >= 0; --d) {
      const long at = rest % places.size[d];
      rest /= places.size[d];
      if (d == places.dims - 1) line = at;
      out += at * places.out[d];
      x += at * places.in[d];
    }
    const long split = clamp(line + diagonal + (upper ? 0 : 1), 0L, columns);
    const long first = upper ? split : 0, last = upper ? columns : split;
    for (long c = 0; c < first; ++c) out[c * out_stride] = 0;
    for (long c = first; c < last; ++c) out[c * out_stride] = x[c * x_stride];
    for (long c = last; c < columns; ++c) out[c * out_stride] = 0;
  }
}
#endif
