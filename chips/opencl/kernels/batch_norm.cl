// batch_norm and group_norm: per-channel factors, and what applies them to rows in modes 0, 1 and GROUP of
// reduce_row.cl (BACKWARD: those of the backward pass). A row has one channel (then its number counts channels fastest), or with ALONG a row runs along the
// channels. In group norm a "channel" is a channel of one image.

#ifdef ALONG
#define FACTOR16(p) vload16(0, (p) + i)
#define FACTOR(p) ((p)[i])
#else
#define FACTOR16(p) ((p)[c])
#define FACTOR(p) ((p)[c])
#endif

#ifndef BACKWARD
// out = x * scale + shift
__kernel void scale_shift(IN(T, x), OUT(D, out), IN(A, scale), IN(A, shift), Axes axes, long rows, long channels,
                          long n, long x_step, long out_step) {
  OPERAND_IN(A, scale);
  OPERAND_IN(A, shift);
  FOR_ROWS(r, rows) {
    PLACE_ROW(axes, r);
    const long c = row % channels;
    const __global MEM(T)* x = x_base + x_offset + offset[0];
    __global MEM(D)* out = out_base + out_offset + offset[1];
#if MODE == 0
    FOR_VECTORS(i, n) STORE16(D, out, i, LOADV(x, i) * FACTOR16(scale) + FACTOR16(shift));
#endif
    FOR_REST(i, n) STORE(D, out, i * out_step, LOADE(x, i * x_step) * FACTOR(scale) + FACTOR(shift));
  }
}

#else
// out = (grad * weight - c - (x - mean) * b) * a: the difference first, as it cancels for a good part.
// factors: a, b, c, mean, and with WEIGHTED weight, each of `channels` values.
__kernel void backward_apply(IN(T, grad), IN(T, x), OUT(D, out), IN(A, factors), Axes axes, long rows, long channels,
                             long n, long grad_step, long x_step, long out_step) {
  OPERAND_IN(A, factors);
  const __global S *fa = factors, *fb = fa + channels, *fc = fb + channels, *fm = fc + channels, *fw = fm + channels;
#ifdef WEIGHTED
#define TIMES_WEIGHT(v, FACTOR) ((v)*FACTOR(fw))
#else
#define TIMES_WEIGHT(v, FACTOR) (v)
#endif
  FOR_ROWS(r, rows) {
    PLACE_ROW(axes, r);
    const long c = row % channels;
    const __global MEM(T)* g = grad_base + grad_offset + offset[0];
    const __global MEM(T)* x = x_base + x_offset + offset[1];
    __global MEM(D)* out = out_base + out_offset + offset[2];
#if MODE == 0
    FOR_VECTORS(i, n) {
      const V centred = LOADV(x, i) - FACTOR16(fm);
      const V rest = TIMES_WEIGHT(LOADV(g, i), FACTOR16) - FACTOR16(fc) - centred * FACTOR16(fb);
      STORE16(D, out, i, rest * FACTOR16(fa));
    }
#endif
    FOR_REST(i, n) {
      const E centred = LOADE(x, i * x_step) - FACTOR(fm);
      const E rest = TIMES_WEIGHT(LOADE(g, i * grad_step), FACTOR) - FACTOR(fc) - centred * FACTOR(fb);
      STORE(D, out, i * out_step, rest * FACTOR(fa));
    }
  }
}
#endif
