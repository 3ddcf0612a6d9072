// nll_loss and its backward over [N, C, *]: per position, the negated and weighted input of the target's class. Walk
// operands: input-like, target, out-like, over the positions (N, *). Sums run over parts that depend on nothing but the
// number of positions, so they are the same on any device: in double where there is one.
#ifdef HAS_FP64
typedef double Total;
#else
typedef float Total;
#endif

typedef struct {
  long classes, class_stride, weight_stride, ignore, has_weight, mean;
} Nll;

// The class at `target`, or -1 where it is ignored or, reported, out of range.
#define CLASS_AT(given)                                         \
  long label = (given);                                            \
  {                                                                \
    const int used = label != nll.ignore;                          \
    const int outside = (ulong)label >= (ulong)nll.classes;        \
    bad |= used && outside;                                        \
    label = used && !outside ? label : -1;                         \
  }

#define REPORT            \
  if (bad) {              \
    OPERAND_ERRORS;       \
    ERROR_INDEX(errors);  \
  }

#define WEIGHT(label) (nll.has_weight ? LOAD(T, weight, (label) * nll.weight_stride) : (ACC(T))1)

__kernel void nll_each(IN(T, input), IN(I, target), IN(T, weight), OUT(T, out), OUT(T, total), ERRORS, Walk walk,
                       Nll nll, long chunk) {
  OPERAND_IN(T, input);
  OPERAND_IN(I, target);
  OPERAND_IN(T, weight);
  OPERAND_OUT(T, out);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin == 0) STORE(T, total_base, total_offset, (ACC(T))0);
  if (begin >= end) return;
  int bad = 0;
  Cursor c;
  cursor_set(&c, &walk, begin);
  for (; begin < end; ++begin) {
    CLASS_AT(target[c.at[1]])
    ACC(T) loss = 0;
    if (label >= 0) loss = -LOAD(T, input, c.at[0] + label * nll.class_stride) * WEIGHT(label);
    STORE(T, out, c.at[2], loss);
    cursor_advance(&c, &walk, 1);
  }
  REPORT
}

inline void nll_write(__global MEM(T)* out, __global MEM(T)* total, Total loss, Total sum, long mean) {
  STORE(T, out, 0, (ACC(T))(mean ? loss / sum : loss));
  STORE(T, total, 0, (ACC(T))sum);
}

// sums[parts][2]: loss, weight. One part: straight to the results.
__kernel void nll_parts(IN(T, input), IN(I, target), IN(T, weight), OUT(T, out), OUT(T, total),
                        __global Total*sums_base, long sums_offset, ERRORS, Walk walk, Nll nll, long parts) {
  const long part = get_global_id(0);
  if (part >= parts) return;
  OPERAND_IN(T, input);
  OPERAND_IN(I, target);
  OPERAND_IN(T, weight);
  const long begin = walk.numel * part / parts, end = walk.numel * (part + 1) / parts;
  int bad = 0;
  Total loss = 0, sum = 0;
  Cursor c;
  cursor_set(&c, &walk, begin);
  for (long i = begin; i < end; ++i) {
    CLASS_AT(target[c.at[1]])
    if (label >= 0) {
      const Total w = (Total)WEIGHT(label);
      loss -= (Total)LOAD(T, input, c.at[0] + label * nll.class_stride) * w;
      sum += w;
    }
    cursor_advance(&c, &walk, 1);
  }
  if (parts == 1) {
    nll_write(out_base + out_offset, total_base + total_offset, loss, sum, nll.mean);
  } else {
    __global Total* sums = sums_base + sums_offset + part * 2;
    sums[0] = loss;
    sums[1] = sum;
  }
  REPORT
}

__kernel void nll_finish(OUT(T, out), OUT(T, total), __global Total*sums_base, long sums_offset, long parts,
                         long mean) {
  if (get_global_id(0) != 0) return;
  const __global Total* sums = sums_base + sums_offset;
  Total loss = 0, sum = 0;
  for (long p = 0; p < parts; ++p) {
    loss += sums[2 * p];
    sum += sums[2 * p + 1];
  }
  nll_write(out_base + out_offset, total_base + total_offset, loss, sum, mean);
}

// Walk operand of the zeros: out alone, in place 0 of `fill`.
__kernel void nll_zero(OUT(T, out), Walk fill, long chunk) {
  OPERAND_OUT(T, out);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, fill.numel);
  if (begin >= end) return;
  const long step = STEP(fill, 0);
  Cursor c;
  cursor_set(&c, &fill, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &fill), end - begin);
    long i = 0;
    if (step == 1) {
      for (; i + 16 <= n; i += 16) STORE16(T, out, c.at[0] + i, (ACC16(T))0);
    }
    for (; i < n; ++i) STORE(T, out, c.at[0] + i * step, (ACC(T))0);
    begin += n;
    cursor_advance(&c, &fill, n);
  }
}

// out is zeros already. mean: divided by the sum of weights.
__kernel void nll_backward(IN(T, grad), IN(I, target), IN(T, weight), IN(T, total), OUT(T, out), ERRORS, Walk walk,
                           Nll nll, long chunk) {
  OPERAND_IN(T, grad);
  OPERAND_IN(I, target);
  OPERAND_IN(T, weight);
  OPERAND_OUT(T, out);
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  const ACC(T) divisor = nll.mean ? LOAD(T, total_base, total_offset) : (ACC(T))1;
  int bad = 0;
  Cursor c;
  cursor_set(&c, &walk, begin);
  for (; begin < end; ++begin) {
    CLASS_AT(target[c.at[1]])
    if (label >= 0) {
      const ACC(T) each = LOAD(T, grad, c.at[2]) / divisor;
      STORE(T, out, c.at[0] + label * nll.class_stride, -each * WEIGHT(label));
    }
    cursor_advance(&c, &walk, 1);
  }
  REPORT
}
