// The parts of attention between its matrix products: copies of half operands as floats and back, the softmax of
// masked scores, and its derivative. T is the operands' type, SUM the token of what is computed in (f32 or f64); scores
// are dense. One work-item takes one row, on every kind of device.
typedef ACC(SUM) sum_t;
#define ROW16(p, i) LOAD16(SUM, p, i)

struct heads_args {  // [batch, heads, rows, columns]
  long heads, rows, columns, strides[4], tasks;
};

static inline long heads_place(const struct heads_args* s, long row) {
  const long head = row / s->rows;
  return head / s->heads * s->strides[0] + head % s->heads * s->strides[1] + row % s->rows * s->strides[2];
}

__kernel void attention_widen(IN(T, from), OUT(SUM, to), const struct heads_args s) {
  const long row = get_global_id(0);
  if (row >= s.tasks) return;
  OPERAND_IN(T, from);
  OPERAND_OUT(SUM, to);
  from += heads_place(&s, row);
  for (long c = 0; c < s.columns; ++c) STORE(SUM, to, row * s.columns + c, LOAD(T, from, c * s.strides[3]));
}

__kernel void attention_narrow(IN(SUM, from), OUT(T, to), const struct heads_args s) {
  const long row = get_global_id(0);
  if (row >= s.tasks) return;
  OPERAND_IN(SUM, from);
  OPERAND_OUT(T, to);
  to += heads_place(&s, row);
  for (long c = 0; c < s.columns; ++c) STORE(T, to, c * s.strides[3], LOAD(SUM, from, row * s.columns + c));
}

struct softmax_args {
  long heads, queries, keys, mask[4], logsumexp[3], tasks;
  long has_mask, causal, has_logsumexp;
};

// Adds the mask to a row of scores, and hides the keys after the query if causal.
static inline void mask_row(__global sum_t* row, const __global MEM(T)* mask, const struct softmax_args* s,
                            long query) {
  if (s->has_mask) {
    for (long k = 0; k < s->keys; ++k) row[k] += LOAD(T, mask, k * s->mask[3]);
  }
  if (s->causal) {
    for (long k = query + 1; k < s->keys; ++k) row[k] = -INFINITY;
  }
}

// The largest score; NaN if there is one.
static inline sum_t row_max(const __global sum_t* row, long keys) {
  sum_t best = -INFINITY;
  for (long k = 0; k < keys; ++k) best = row[k] > best || isnan(row[k]) ? row[k] : best;
  return best;
}

// scores become weights; a row whose keys are all hidden gets zeros.
__kernel void attention_softmax(OUT(SUM, scores), IN(T, mask), OUT(f32, logsumexp), const struct softmax_args s) {
  const long task = get_global_id(0);
  if (task >= s.tasks) return;
  OPERAND_OUT(SUM, scores);
  OPERAND_IN(T, mask);
  const long query = task % s.queries, head = task / s.queries;
  __global sum_t* row = scores + task * s.keys;
  mask_row(row, mask + head / s.heads * s.mask[0] + head % s.heads * s.mask[1] + query * s.mask[2], &s, query);
  const sum_t best = row_max(row, s.keys);
  sum_t sum = 0;
  if (best == -INFINITY) {
    for (long k = 0; k < s.keys; ++k) row[k] = 0;
  } else {
    ACC16(SUM) sums = 0;
    long k = 0;
    for (; k + 16 <= s.keys; k += 16) {
      const ACC16(SUM) weight = exp(ROW16(row, k) - best);
      STORE16(SUM, row, k, weight);
      sums += weight;
    }
    for (; k < s.keys; ++k) sum += row[k] = exp(row[k] - best);
    const ACC4(SUM) four = (sums.lo.lo + sums.lo.hi) + (sums.hi.lo + sums.hi.hi);
    sum += (four.x + four.y) + (four.z + four.w);
    const sum_t scale = 1 / sum;
    for (k = 0; k < s.keys; ++k) row[k] *= scale;
  }
  if (s.has_logsumexp) {
    OPERAND_OUT(f32, logsumexp);
    logsumexp[head / s.heads * s.logsumexp[0] + head % s.heads * s.logsumexp[1] + query * s.logsumexp[2]] =
        (float)(best + log(sum));
  }
}

// slopes, the gradient of the weights, become the gradient of the scores.
__kernel void attention_slope(IN(SUM, weights), OUT(SUM, slopes), long keys, long tasks) {
  const long task = get_global_id(0);
  if (task >= tasks) return;
  OPERAND_IN(SUM, weights);
  OPERAND_OUT(SUM, slopes);
  weights += task * keys;
  slopes += task * keys;
  sum_t mean = 0;
  for (long k = 0; k < keys; ++k) mean += weights[k] * slopes[k];
  for (long k = 0; k < keys; ++k) slopes[k] = weights[k] == 0 ? 0 : weights[k] * (slopes[k] - mean);
}
