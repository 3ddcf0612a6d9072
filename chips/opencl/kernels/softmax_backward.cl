// The gradients of softmax and log_softmax (LOG) along one dim, in the modes of reduce_row.cl.

#ifdef LOG
#define TERM(g, y) (g)
#define RESULT(g, y) ((g) - exp(y) * sum)
#else
#define TERM(g, y) ((g) * (y))
#define RESULT(g, y) ((y) * ((g) - sum))
#endif

// axes: the other dims; operands grad, output, out. n: the length of a row.
__kernel void softmax_backward(IN(T, grad), IN(T, output), OUT(D, out), Axes axes, long rows, long n, long grad_step,
                               long output_step, long out_step) {
  TREE;
  FOR_ROWS(r, rows) {
    PLACE_ROW(axes, r);
    const __global MEM(T)* g = grad_base + grad_offset + offset[0];
    const __global MEM(T)* y = output_base + output_offset + offset[1];
    __global MEM(D)* to = out_base + out_offset + offset[2];
    E sum = (E)0;
#if MODE == 0
    V sum16 = (V)0;
    FOR_VECTORS(i, n) sum16 += TERM(LOADV(g, i), LOADV(y, i));
    sum = sum_lanes(sum16);
#endif
    FOR_REST(i, n) sum += TERM(LOADE(g, i * grad_step), LOADE(y, i * output_step));
    sum = SUM_ALL(sum);
#if MODE == 0
    FOR_VECTORS(i, n) STORE16(D, to, i, RESULT(LOADV(g, i), LOADV(y, i)));
#endif
    FOR_REST(i, n) STOREE(to, i * out_step, RESULT(LOADE(g, i * grad_step), LOADE(y, i * output_step)));
  }
}
