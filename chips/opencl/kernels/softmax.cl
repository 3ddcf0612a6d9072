// softmax and log_softmax (LOG) along one dim, in the modes of reduce_row.cl.
// KEEP: the output can hold the exponentials until they are scaled (one type throughout).

#ifdef LOG
#define RESULT(v) ((v) - best - factor)
#else
#define RESULT(v) (exp((v) - best) * factor)
#endif

// axes: the other dims; operands x, out. n: the length of a row.
__kernel void softmax(IN(T, x), OUT(D, out), Axes axes, long rows, long n, long x_step, long out_step) {
  TREE;
  FOR_ROWS(r, rows) {
    PLACE_ROW(axes, r);
    const __global MEM(T)* x = x_base + x_offset + offset[0];
    __global MEM(D)* out = out_base + out_offset + offset[1];
    E best = (E)(-INFINITY), sum = (E)0;
#if MODE == 0
    V best16 = (V)(-INFINITY), next16 = best16, sum16 = (V)0;
    for (long i = 0; i + 32 <= n; i += 32) {
      const V v = LOADV(x, i), w = LOADV(x, i + 16);
      best16 = LARGER(v, best16);
      next16 = LARGER(w, next16);
    }
    if (n & 16) {
      const V v = LOADV(x, n & ~31L);
      best16 = LARGER(v, best16);
    }
    best16 = LARGER(next16, best16);
    best = max_lanes(best16);
#endif
    FOR_REST(i, n) {
      const E v = LOADE(x, i * x_step);
      best = LARGER(v, best);
    }
    best = MAX_ALL(best);
#if MODE == 0
    FOR_VECTORS(i, n) {
      const V e = exp(LOADV(x, i) - best);
      sum16 += e;
#ifdef KEEP
      STORE16(D, out, i, e);
#endif
    }
    sum = sum_lanes(sum16);
#endif
    FOR_REST(i, n) {
      const E e = exp(LOADE(x, i * x_step) - best);
      sum += e;
#ifdef KEEP
      STOREE(out, i * out_step, e);
#endif
    }
    sum = SUM_ALL(sum);
#ifdef LOG
    const E factor = log(sum);
#else
    const E factor = (E)1 / sum;
#endif
#ifdef KEEP
#if MODE == 0
    FOR_VECTORS(i, n) STORE16(D, out, i, LOADV(out, i) * factor);
#endif
    FOR_REST(i, n) STOREE(out, i * out_step, LOADE(out, i * out_step) * factor);
#else
#if MODE == 0
    FOR_VECTORS(i, n) STORE16(D, out, i, RESULT(LOADV(x, i)));
#endif
    FOR_REST(i, n) STOREE(out, i * out_step, RESULT(LOADE(x, i * x_step)));
#endif
  }
}
