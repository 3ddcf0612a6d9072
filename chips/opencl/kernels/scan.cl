// Scans along one dim: cumsum, cumprod, cummax, cummin, logcumsumexp, in modes 1 and 2 of reduce_row.cl. A row is
// walked from its start to its end by one item. KIND: 0 sum, 1 product, 2 extreme, 3 log of a sum of exponentials.

#if KIND == 2
#if MODE == 2
#define EI ACC16(INDEX)
#define TAKE EI
#else
#define EI ACC(INDEX)
#define TAKE int
#endif
#elif KIND == 3
// log(exp(a) + exp(b)); NaN stays, and equal infinities stay.
inline E log_add(E a, E b) {
  const E high = a > b ? a : b, low = a < b ? a : b;
  const E sum = high + log1p(exp(low - high));
  const E whole = (a == b) & (fabs(a) == (E)INFINITY) ? a : sum;
  return a != a ? a : whole;
}
#endif

// axes: the other dims; operands x, out, index. n: the length of a row.
__kernel void scan(IN(T, x), OUT(D, out), OUT(i64, index), Axes axes, long rows, long n, long x_step, long out_step,
                   long index_step) {
  FOR_ROWS(r, rows) {
    PLACE_ROW(axes, r);
    const __global MEM(T)* x = x_base + x_offset + offset[0];
    __global MEM(D)* out = out_base + out_offset + offset[1];
    E value = LOADE(x, 0);
#if KIND == 2
    __global long* index = index_base + index_offset + offset[2];
    EI place = (EI)0;
    STOREE(out, 0, value);
    PUT(INDEX, i64, index, 1, place);
#else
    STOREE(out, 0, value);
#endif
    for (long i = 1; i < n; ++i) {
      const E v = LOADE(x, i * x_step);
#if KIND == 0
      value += v;
#elif KIND == 1
      value *= v;
#elif KIND == 2
      // The last of equals wins, a NaN over numbers.
      const TAKE take = REACHES(v, value) | (v != v);
      value = take ? v : value;
      place = take ? (EI)i : place;
      PUT(INDEX, i64, index + i * index_step, 1, place);
#else
      value = log_add(value, v);
#endif
      STOREE(out, i * out_step, value);
    }
  }
}
