// The small kernels between statistics and their use in batch_norm: one channel per step. Types: A computing,
// W weight, BIAS bias, R running statistics, M saved statistics. WEIGHTED, BIASED, RUNNING: these operands exist.
#define S ACC(A)
#define FOR_CHANNELS(c, n) for (long c = get_global_id(0); c < (n); c += get_global_size(0))

#ifdef WEIGHTED
#define WEIGHT(c) LOAD(W, weight_base + weight_offset, c)
#else
#define WEIGHT(c) ((S)1)
#endif
#ifdef BIASED
#define BIAS_OF(c) LOAD(BIAS, bias_base + bias_offset, c)
#else
#define BIAS_OF(c) ((S)0)
#endif

// statistics: mean, biased variance, then scale and shift, which this writes. EVALUATION: statistics are the running
// ones. unbiased: n / (n - 1).
__kernel void forward_factors(OUT(A, statistics), IN(W, weight), IN(BIAS, bias), IN(R, running_mean),
                              IN(R, running_var), OUT(R, new_mean), OUT(R, new_var), OUT(M, save_mean),
                              OUT(M, save_invstd), long channels, S momentum, S eps, S unbiased) {
  OPERAND_OUT(A, statistics);
  FOR_CHANNELS(c, channels) {
#ifdef EVALUATION
    const S mean = LOAD(R, running_mean_base + running_mean_offset, c);
    const S var = LOAD(R, running_var_base + running_var_offset, c);
#else
    const S mean = statistics[c], var = statistics[channels + c];
#endif
    const S invstd = (S)1 / sqrt(var + eps), scale = invstd * WEIGHT(c);
    statistics[2 * channels + c] = scale;
    statistics[3 * channels + c] = BIAS_OF(c) - mean * scale;
#ifndef EVALUATION
    STORE(M, save_mean_base + save_mean_offset, c, mean);
    STORE(M, save_invstd_base + save_invstd_offset, c, invstd);
#ifdef RUNNING
    const S old_mean = LOAD(R, running_mean_base + running_mean_offset, c);
    const S old_var = LOAD(R, running_var_base + running_var_offset, c);
    STORE(R, new_mean_base + new_mean_offset, c, ((S)1 - momentum) * old_mean + momentum * mean);
    STORE(R, new_var_base + new_var_offset, c, ((S)1 - momentum) * old_var + momentum * (var * unbiased));
#endif
#endif
  }
}

// The mean as the centre of the sums. factors: a, b, c, mean, then the two sums.
__kernel void backward_centre(OUT(A, factors), IN(M, mean), long channels) {
  OPERAND_OUT(A, factors);
  FOR_CHANNELS(c, channels) factors[3 * channels + c] = LOAD(M, mean_base + mean_offset, c);
}

// Sums, if SUMS, are of grad and of grad * (x - mean). share: 1 / n. EVALUATION: invstd is the running variance.
__kernel void backward_factors(OUT(A, factors), IN(W, weight), IN(M2, invstd), OUT(GW, grad_weight), OUT(GB, grad_bias),
                               long channels, S eps, S share) {
  OPERAND_OUT(A, factors);
  FOR_CHANNELS(c, channels) {
    S invstd = LOAD(M2, invstd_base + invstd_offset, c);
#ifdef EVALUATION
    invstd = (S)1 / sqrt(invstd + eps);
#endif
    factors[c] = invstd * WEIGHT(c);
#ifdef SUMS
    const S sum = factors[4 * channels + c], product = factors[5 * channels + c];
#ifdef GRAD_WEIGHT
    STORE(GW, grad_weight_base + grad_weight_offset, c, product * invstd);
#endif
#ifdef GRAD_BIAS
    STORE(GB, grad_bias_base + grad_bias_offset, c, sum);
#endif
#endif
#ifdef EVALUATION
    factors[channels + c] = (S)0;  // the shift of scale_shift
#elif defined(SUMS)
    factors[channels + c] = product * invstd * invstd * share;
    factors[2 * channels + c] = sum * share;
#endif
  }
}
