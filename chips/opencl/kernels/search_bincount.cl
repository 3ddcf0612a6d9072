// bincount. Without weights each work-item counts a slice of the values into bins of its own, which bin_sum adds up.
// With weights (W) each work-item owns a range of bins and goes through all values, so that a bin's sum has PyTorch's
// order.

#ifdef W

__kernel void bin_weigh(IN(T, values), IN(W, weights), OUT(W, out), ERRORS, long n, long stride, long weight_stride,
                        long bins, long chunk) {
  OPERAND_IN(T, values);
  OPERAND_IN(W, weights);
  OPERAND_OUT(W, out);
  const long low = get_global_id(0) * chunk, high = min(low + chunk, bins);
  if (low >= high) return;
  for (long b = low; b < high; ++b) out[b] = 0;
  int bad = 0;
  for (long i = 0; i < n; ++i) {
    const long bin = values[i * stride];
    bad |= (ulong)bin >= (ulong)bins;
    if (bin >= low && bin < high) out[bin] += weights[i * weight_stride];
  }
  if (bad) {
    OPERAND_ERRORS;
    ERROR_INDEX(errors);
  }
}

#else

// partial[slices][bins]
__kernel void bin_count(IN(T, values), OUT(i64, partial), ERRORS, long n, long stride, long bins, long slices) {
  const long slice = get_global_id(0);
  if (slice >= slices) return;
  OPERAND_IN(T, values);
  __global long* own = partial_base + partial_offset + slice * bins;
  for (long b = 0; b < bins; ++b) own[b] = 0;
  int bad = 0;
  const long end = n * (slice + 1) / slices;
  for (long i = n * slice / slices; i < end; ++i) {
    const long bin = values[i * stride];
    if ((ulong)bin < (ulong)bins) ++own[bin];
    else bad = 1;
  }
  if (bad) {
    OPERAND_ERRORS;
    ERROR_INDEX(errors);
  }
}

__kernel void bin_sum(IN(i64, partial), OUT(i64, out), long bins, long slices, long chunk) {
  OPERAND_IN(i64, partial);
  OPERAND_OUT(i64, out);
  const long end = min((long)(get_global_id(0) + 1) * chunk, bins);
  for (long b = get_global_id(0) * chunk; b < end; ++b) {
    long sum = 0;
    for (long s = 0; s < slices; ++s) sum += partial[s * bins + b];
    out[b] = sum;
  }
}

#endif
