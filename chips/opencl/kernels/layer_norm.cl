// layer_norm (CENTRE) and rms_norm over dense [rows, n], and their backward passes, in modes 0 and GROUP of
// reduce_row.cl. W, BIAS, M: types of weight, bias and the statistics. WEIGHTED, BIASED: there is a weight, a bias.

#ifdef WEIGHTED
#define TIMES_WEIGHT(v, i) ((v)*LOAD(W, weight, i))
#define TIMES_WEIGHT16(v, i) ((v)*CAT(WIDEN16_, A)(LOAD16(W, weight, i)))
#else
#define TIMES_WEIGHT(v, i) (v)
#define TIMES_WEIGHT16(v, i) (v)
#endif
#ifdef BIASED
#define PLUS_BIAS(v, i) ((v) + LOAD(BIAS, bias, i))
#define PLUS_BIAS16(v, i) ((v) + CAT(WIDEN16_, A)(LOAD16(BIAS, bias, i)))
#else
#define PLUS_BIAS(v, i) (v)
#define PLUS_BIAS16(v, i) (v)
#endif

#ifdef FORWARD
__kernel void layer_norm(IN(T, x), IN(W, weight), IN(BIAS, bias), OUT(D, out), OUT(M, mean), OUT(M, rstd), long rows,
                         long n, S eps) {
  OPERAND_IN(W, weight);
  OPERAND_IN(BIAS, bias);
  TREE;
  const S share = (S)1 / (S)n;
  FOR_ROWS(r, rows) {
    const __global MEM(T)* x = x_base + x_offset + r * n;
    __global MEM(D)* out = out_base + out_offset + r * n;
    S mean = (S)0, sum = (S)0, squares = (S)0;
#ifdef CENTRE
#if MODE == 0
    {
      V a = (V)0, b = (V)0;
      long i = 0;
      for (; i + 32 <= n; i += 32) {
        a += LOADV(x, i);
        b += LOADV(x, i + 16);
      }
      if (i < VECTOR_END(n)) a += LOADV(x, i);
      mean = sum_lanes(a + b);
    }
#endif
    FOR_REST(i, n) mean += LOADE(x, i);
    mean = SUM_ALL(mean) * share;
#endif
#if MODE == 0
    V sum16 = (V)0, squares16 = (V)0;
    FOR_VECTORS(i, n) {
      const V v = LOADV(x, i) - mean;
      sum16 += v;
      squares16 += v * v;
    }
    sum = sum_lanes(sum16);
    squares = sum_lanes(squares16);
#endif
    FOR_REST(i, n) {
      const S v = LOADE(x, i) - mean;
      sum += v;
      squares += v * v;
    }
#ifdef CENTRE
    const S offset = SUM_ALL(sum) * share;  // the rounding error of the mean
#else
    const S offset = (S)0;
#endif
    const S rstd = (S)1 / sqrt(SUM_ALL(squares) * share - offset * offset + eps);
#if MODE == 0
    FOR_VECTORS(i, n) {
      const V v = (LOADV(x, i) - mean) * rstd;
      STORE16(D, out, i, PLUS_BIAS16(TIMES_WEIGHT16(v, i), i));
    }
#endif
    FOR_REST(i, n) {
      const S v = (LOADE(x, i) - mean) * rstd;
      STORE(D, out, i, PLUS_BIAS(TIMES_WEIGHT(v, i), i));
    }
    if (IS_LEADER) {
#ifdef CENTRE
      STORE(M, mean_base + mean_offset, r, mean);
#endif
      STORE(M, rstd_base + rstd_offset, r, rstd);
    }
  }
}
#else

// Item (or group) `part` takes a stretch of the rows. SUMS: it leaves its part of the sums for the weight's and the
// bias's gradient in partial[part][2][n]. GRAD_INPUT: out is wanted.
__kernel void layer_norm_backward(IN(T, grad), IN(T, x), IN(M, mean), IN(M, rstd), IN(W, weight), OUT(D, out),
                                  OUT(A, partial), long rows, long parts, long n) {
  OPERAND_IN(W, weight);
  TREE;
  const S share = (S)1 / (S)n;
  FOR_ROWS(part, parts) {
    __global S* weight_sum = partial_base + partial_offset + part * 2 * n;
    __global S* bias_sum = weight_sum + n;
#ifdef SUMS
    FOR_VECTORS(i, n) {
      vstore16((V)0, 0, weight_sum + i);
      vstore16((V)0, 0, bias_sum + i);
    }
    FOR_REST(i, n) weight_sum[i] = bias_sum[i] = (S)0;
#endif
    for (long r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
      const __global MEM(T)* g = grad_base + grad_offset + r * n;
      const __global MEM(T)* x = x_base + x_offset + r * n;
      __global MEM(D)* out = out_base + out_offset + r * n;
      const S scale = LOAD(M, rstd_base + rstd_offset, r);
#ifdef CENTRE
      const S mean = LOAD(M, mean_base + mean_offset, r);
#else
      const S mean = (S)0;
#endif
      S first = (S)0, second = (S)0;
#ifdef GRAD_INPUT
#if MODE == 0
      V first16 = (V)0, second16 = (V)0;
      FOR_VECTORS(i, n) {
        const V v = TIMES_WEIGHT16(LOADV(g, i), i);
        first16 += v;
        second16 += v * (LOADV(x, i) - mean);
      }
      first = sum_lanes(first16);
      second = sum_lanes(second16);
#endif
      FOR_REST(i, n) {
        const S v = TIMES_WEIGHT(LOADE(g, i), i);
        first += v;
        second += v * (LOADE(x, i) - mean);
      }
#ifdef CENTRE
      first = SUM_ALL(first) * share;
#else
      first = (S)0;
#endif
      second = SUM_ALL(second) * scale * scale * share;
#endif
#if MODE == 0
      FOR_VECTORS(i, n) {
        const V v = LOADV(g, i), centred = LOADV(x, i) - mean;
#ifdef SUMS
        vstore16(vload16(0, weight_sum + i) + v * (centred * scale), 0, weight_sum + i);
        vstore16(vload16(0, bias_sum + i) + v, 0, bias_sum + i);
#endif
#ifdef GRAD_INPUT
        STORE16(D, out, i, (TIMES_WEIGHT16(v, i) - first - centred * second) * scale);
#endif
      }
#endif
      FOR_REST(i, n) {
        const S v = LOADE(g, i), centred = LOADE(x, i) - mean;
#ifdef SUMS
        weight_sum[i] += v * (centred * scale);
        bias_sum[i] += v;
#endif
#ifdef GRAD_INPUT
        STORE(D, out, i, (TIMES_WEIGHT(v, i) - first - centred * second) * scale);
#endif
      }
    }
  }
}
#endif
