// The small kernels between statistics and their use in group_norm over dense [N, C, HxW]; `at` is image * channels +
// channel. Types: A computing, W weight, BIAS bias, M mean and rstd. WEIGHTED, BIASED: these operands exist.
#define S ACC(A)
#define FOR_ITEMS(i, n) for (long i = get_global_id(0); i < (n); i += get_global_size(0))

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

#ifdef FORWARD
// statistics: means and biased variances of the groups; factors: scale and shift by `at`.
__kernel void group_forward_factors(IN(A, statistics), OUT(A, factors), IN(W, weight), IN(BIAS, bias), OUT(M, mean),
                                    OUT(M, rstd), long batch, long channels, long groups, S eps) {
  OPERAND_IN(A, statistics);
  OPERAND_OUT(A, factors);
  const long per_group = channels / groups;
  FOR_ITEMS(at, batch * channels) {
    const long group = at / per_group, c = at % channels;
    const S middle = statistics[group], inverse = (S)1 / sqrt(statistics[batch * groups + group] + eps);
    const S scale = inverse * WEIGHT(c);
    factors[at] = scale;
    factors[batch * channels + at] = BIAS_OF(c) - middle * scale;
    if (at % per_group == 0) {
      STORE(M, mean_base + mean_offset, group, middle);
      STORE(M, rstd_base + rstd_offset, group, inverse);
    }
  }
}
#else
// factors: a, b, c, mean, weight, then sums and products, all by `at`. This spreads mean and weight.
__kernel void group_backward_centre(OUT(A, factors), IN(M, mean), IN(W, weight), long batch, long channels,
                                    long groups) {
  OPERAND_OUT(A, factors);
  const long per_group = channels / groups, all = batch * channels;
  FOR_ITEMS(at, all) {
    factors[3 * all + at] = LOAD(M, mean_base + mean_offset, at / per_group);
    factors[4 * all + at] = WEIGHT(at % channels);
  }
}

// a, b, c from the sums of a group's channels; share: 1 / elements of a group.
__kernel void group_backward_factors(OUT(A, factors), IN(M, rstd), long batch, long channels, long groups, S share) {
  OPERAND_OUT(A, factors);
  const long per_group = channels / groups, all = batch * channels;
  FOR_ITEMS(group, batch * groups) {
    const S scale = LOAD(M, rstd_base + rstd_offset, group);
    S first = (S)0, second = (S)0;
    for (long at = group * per_group; at < (group + 1) * per_group; ++at) {
      first += factors[4 * all + at] * factors[5 * all + at];
      second += factors[4 * all + at] * factors[6 * all + at];
    }
    for (long at = group * per_group; at < (group + 1) * per_group; ++at) {
      factors[at] = scale;
      factors[all + at] = second * scale * scale * share;
      factors[2 * all + at] = first * share;
    }
  }
}

__kernel void group_parameter_gradients(IN(A, factors), IN(M, rstd), OUT(GW, grad_weight), OUT(GB, grad_bias),
                                        long batch, long channels, long groups) {
  OPERAND_IN(A, factors);
  const long per_group = channels / groups, all = batch * channels;
  FOR_ITEMS(c, channels) {
    S weight_sum = (S)0, bias_sum = (S)0;
    for (long n = 0; n < batch; ++n) {
      const long at = n * channels + c;
      bias_sum += factors[5 * all + at];
      weight_sum += factors[6 * all + at] * LOAD(M, rstd_base + rstd_offset, at / per_group);
    }
#ifdef GRAD_WEIGHT
    STORE(GW, grad_weight_base + grad_weight_offset, c, weight_sum);
#endif
#ifdef GRAD_BIAS
    STORE(GB, grad_bias_base + grad_bias_offset, c, bias_sum);
#endif
  }
}
#endif
