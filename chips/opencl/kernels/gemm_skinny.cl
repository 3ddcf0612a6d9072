// The matrix product with at most four rows, floating types on CPU devices: b is read once, in place, at the speed of
// memory. A work-item computes a block of columns of all rows.
struct skinny_args {
  long inner, rows, columns, depth;
  long a_row, a_column, a_batch, a_outer;
  long b_stride, b_batch, b_outer;  // of k for skinny_add, of columns for skinny_dot; the other one is 1
  long self_row, self_column, self_batch, self_outer;
  long out_row, out_column, out_batch, out_outer;
  long block, blocks, tasks, has_self;
};
#define ROWS 4
#define BLOCK 512  // most columns of a task

#define BATCH_PLACE(x) (x##_base + x##_offset + batch / s.inner * s.x##_outer + batch % s.inner * s.x##_batch)
#define BEGIN_TASK                                                                                             \
  const long task = get_global_id(0);                                                                          \
  if (task >= s.tasks) return;                                                                                 \
  const long batch = task / s.blocks, column0 = task % s.blocks * s.block;                                     \
  const long columns = min(s.block, s.columns - column0);                                                      \
  const __global MEM(T)* a = BATCH_PLACE(a);                                                                   \
  const __global MEM(T)* b = BATCH_PLACE(b);                                                                   \
  const __global MEM(T)* self = BATCH_PLACE(self) + column0 * s.self_column;                                   \
  __global MEM(T)* out = BATCH_PLACE(out) + column0 * s.out_column;                                            \
  gemm_t sums[ROWS * BLOCK];

static inline void finish(const gemm_t* sums, const __global MEM(T)* self, __global MEM(T)* out, long columns,
                   const struct skinny_args* s, gemm_t alpha, gemm_t beta) {
  for (long r = 0; r < s->rows; ++r) {
    for (long c = 0; c < columns; ++c) {
      gemm_t value = sums[r * BLOCK + c] * alpha;
      if (s->has_self) value += LOAD(T, self, r * s->self_row + c * s->self_column) * beta;
      STORE(T, out, r * s->out_row + c * s->out_column, EPILOGUE(value));
    }
  }
}

// b's columns lie one after the other: rows of b are added up, four per sweep.
__kernel void skinny_add(IN(T, a), IN(T, b), IN(T, self), OUT(T, out), const struct skinny_args s, gemm_t alpha,
                         gemm_t beta) {
  BEGIN_TASK
  b += column0;
  for (long i = 0; i < ROWS * BLOCK; i += 16) GEMM_PUT16(, sums + i, 0);
  long k = 0;
  for (; k + 4 <= s.depth; k += 4) {
    const __global MEM(T)* from = b + k * s.b_stride;
    for (long r = 0; r < s.rows; ++r) {
      const __global MEM(T)* left = a + r * s.a_row + k * s.a_column;
      const gemm_t a0 = LOAD(T, left, 0), a1 = LOAD(T, left, s.a_column), a2 = LOAD(T, left, 2 * s.a_column),
                   a3 = LOAD(T, left, 3 * s.a_column);
      gemm_t* to = sums + r * BLOCK;
      long c = 0;
      for (; c + 16 <= columns; c += 16) {
        gemm_16_t sum = vload16(0, to + c);
        sum = fma((gemm_16_t)a0, LOAD16(T, from, c), sum);
        sum = fma((gemm_16_t)a1, LOAD16(T, from, c + s.b_stride), sum);
        sum = fma((gemm_16_t)a2, LOAD16(T, from, c + 2 * s.b_stride), sum);
        sum = fma((gemm_16_t)a3, LOAD16(T, from, c + 3 * s.b_stride), sum);
        GEMM_PUT16(, to + c, sum);
      }
      for (; c < columns; ++c)
        to[c] += a0 * LOAD(T, from, c) + a1 * LOAD(T, from, c + s.b_stride) + a2 * LOAD(T, from, c + 2 * s.b_stride) +
                 a3 * LOAD(T, from, c + 3 * s.b_stride);
    }
  }
  for (; k < s.depth; ++k) {
    for (long r = 0; r < s.rows; ++r) {
      const gemm_t left = LOAD(T, a, r * s.a_row + k * s.a_column);
      for (long c = 0; c < columns; ++c) sums[r * BLOCK + c] += left * LOAD(T, b, k * s.b_stride + c);
    }
  }
  finish(sums, self, out, columns, &s, alpha, beta);
}

static inline gemm_t sum_lanes(gemm_16_t v) {
  const CAT(GEMM_T, 8) eight = v.lo + v.hi;
  const CAT(GEMM_T, 4) four = eight.lo + eight.hi;
  return (four.x + four.z) + (four.y + four.w);
}

// a and b are dense in k: dot products, four columns of b at a time.
__kernel void skinny_dot(IN(T, a), IN(T, b), IN(T, self), OUT(T, out), const struct skinny_args s, gemm_t alpha,
                         gemm_t beta) {
  BEGIN_TASK
  b += column0 * s.b_stride;
  for (long c = 0; c < columns; c += 4) {
    const __global MEM(T)* b0 = b + c * s.b_stride;
    const __global MEM(T)* b1 = b + min(c + 1, columns - 1) * s.b_stride;
    const __global MEM(T)* b2 = b + min(c + 2, columns - 1) * s.b_stride;
    const __global MEM(T)* b3 = b + min(c + 3, columns - 1) * s.b_stride;
    for (long r = 0; r < s.rows; ++r) {
      const __global MEM(T)* left = a + r * s.a_row;
      gemm_16_t v0 = 0, v1 = 0, v2 = 0, v3 = 0;
      long k = 0;
      for (; k + 16 <= s.depth; k += 16) {
        const gemm_16_t x = LOAD16(T, left, k);
        v0 = fma(x, LOAD16(T, b0, k), v0);
        v1 = fma(x, LOAD16(T, b1, k), v1);
        v2 = fma(x, LOAD16(T, b2, k), v2);
        v3 = fma(x, LOAD16(T, b3, k), v3);
      }
      gemm_t s0 = sum_lanes(v0), s1 = sum_lanes(v1), s2 = sum_lanes(v2), s3 = sum_lanes(v3);
      for (; k < s.depth; ++k) {
        const gemm_t x = LOAD(T, left, k);
        s0 += x * LOAD(T, b0, k), s1 += x * LOAD(T, b1, k), s2 += x * LOAD(T, b2, k), s3 += x * LOAD(T, b3, k);
      }
      gemm_t* to = sums + r * BLOCK + c;  // BLOCK is a multiple of four
      to[0] = s0, to[1] = s1, to[2] = s2, to[3] = s3;
    }
  }
  finish(sums, self, out, columns, &s, alpha, beta);
}
