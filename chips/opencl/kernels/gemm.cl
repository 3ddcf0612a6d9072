// The matrix product on CPU devices, as laid out in ops/gemm.h: one work-item computes row_block x column_block of out.
// A_PACKED: a lies in panels [batch][panel][k][GEMM_ROWS]; else it is read in place, by strides.
// B_PACKED: b lies in panels [batch][panel][k][GEMM_COLUMNS]; else the task fetches its panels into local memory.
struct gemm_args {
  long inner, rows, columns, depth;
  long a_row, a_column, a_batch, a_outer;
  long self_row, self_column, self_batch, self_outer;
  long out_row, out_column, out_batch, out_outer;
  long row_block, row_tasks, column_block, column_tasks, depth_block, tasks;
  long has_self;
};

// ---- the register tile: sums of GEMM_ROWS x two vectors over `depth` values of k, left in `tile`

#define REPEAT_4(X) X(0) X(1) X(2) X(3)
#define REPEAT_8(X) REPEAT_4(X) X(4) X(5) X(6) X(7)
#define REPEAT_12(X) REPEAT_8(X) X(8) X(9) X(10) X(11)

#if GEMM_FLOAT
#define MULTIPLY_ADD(a, b, sum) fma((gemm_vector_t)(a), b, sum)
#else
#define MULTIPLY_ADD(a, b, sum) ((gemm_vector_t)(a) * (b) + (sum))
#endif
#define LOAD_VECTOR(p) CAT(vload, GEMM_LANES)(0, p)
#define DECLARE(r) gemm_vector_t x##r = 0, y##r = 0;
#define STORE_ROW(r)                                                                                           \
  ((gemm_vector_t*)tile)[2 * r] = x##r;                                                                        \
  ((gemm_vector_t*)tile)[2 * r + 1] = y##r;

#ifdef B_PACKED
#define B_TYPE gemm_t
#define B_SPACE __global
#else
#define B_TYPE MEM(T)
#define B_SPACE __local
#endif

#ifdef B_PACKED
#define PREFETCH_B                                                                                             \
  PREFETCH(b + 16 * GEMM_COLUMNS);                                                                             \
  PREFETCH(b + 16 * GEMM_COLUMNS + GEMM_LANES);
#else
#define PREFETCH_B
#endif

#ifdef A_PACKED
#define A_TYPE gemm_t
#define STEP(r)                                                                                                \
  x##r = MULTIPLY_ADD(a[r], b0, x##r);                                                                         \
  y##r = MULTIPLY_ADD(a[r], b1, y##r);
// `ahead`: distance to the next panel of a.
#define TILE(H)                                                                                                \
  static inline void tile_##H(const __global gemm_t* a, long ahead, const B_SPACE gemm_t* b, long depth,       \
                              gemm_t* tile) {                                                                  \
    REPEAT_##H(DECLARE)                                                                                        \
    for (long k = 0; k < depth; ++k, a += GEMM_ROWS, b += GEMM_COLUMNS) {                                      \
      const gemm_vector_t b0 = LOAD_VECTOR(b), b1 = LOAD_VECTOR(b + GEMM_LANES);                               \
      PREFETCH(a + ahead);                                                                                     \
      PREFETCH_B                                                                                               \
      REPEAT_##H(STEP)                                                                                         \
    }                                                                                                          \
    REPEAT_##H(STORE_ROW)                                                                                      \
  }
#define RUN_TILE(H) tile_##H(a, row, right, depth, tile)
#else
#define A_TYPE MEM(T)
#define A_ROW(r) const __global MEM(T)* a##r = a + min((long)r, rows - 1) * row;
#define STEP(r)                                                                                                \
  x##r = MULTIPLY_ADD((gemm_t)LOAD(T, a##r, at), b0, x##r);                                                    \
  y##r = MULTIPLY_ADD((gemm_t)LOAD(T, a##r, at), b1, y##r);
#define TILE(H)                                                                                                \
  static inline void tile_##H(const __global MEM(T)* a, long row, long column, long rows, const B_SPACE gemm_t* b,    \
                       long depth, gemm_t* tile) {                                                             \
    REPEAT_##H(DECLARE)                                                                                        \
    REPEAT_##H(A_ROW)                                                                                          \
    for (long k = 0, at = 0; k < depth; ++k, at += column, b += GEMM_COLUMNS) {                                \
      const gemm_vector_t b0 = LOAD_VECTOR(b), b1 = LOAD_VECTOR(b + GEMM_LANES);                     \
      REPEAT_##H(STEP)                                                                                         \
    }                                                                                                          \
    REPEAT_##H(STORE_ROW)                                                                                      \
  }
#define RUN_TILE(H) tile_##H(a, row, column, rows, right, depth, tile)
#endif

TILE(12)
TILE(8)
TILE(4)

// row and column: strides of a; packed, row is the distance to its next panel.
static inline void run_tile(const __global A_TYPE* a, long row, long column, long rows, const B_SPACE gemm_t* right,
                     long depth, gemm_t* tile) {
  if (rows > 8)
    RUN_TILE(12);
  else if (rows > 4)
    RUN_TILE(8);
  else
    RUN_TILE(4);
}

// ---- what becomes of finished sums: out = alpha * sums + beta * self

static inline void finish_row(const gemm_t* sums, const __global MEM(T)* self, __global MEM(T)* out, long columns,
                       const struct gemm_args* s, gemm_t alpha, gemm_t beta) {
  long c = 0;
#if GEMM_FLOAT
  if (s->out_column == 1 && (!s->has_self || s->self_column <= 1)) {
    for (; c + 16 <= columns; c += 16) {
      gemm_16_t value = vload16(0, sums + c) * alpha;
      if (s->has_self && s->self_column == 1) value += LOAD16(T, self, c) * beta;
      if (s->has_self && s->self_column == 0) value += LOAD(T, self, 0) * beta;
      STORE16(T, out, c, EPILOGUE(value));
    }
  }
#endif
  for (; c < columns; ++c) {
    gemm_t value = sums[c] * alpha;
    if (s->has_self) value += (gemm_t)LOAD(T, self, c * s->self_column) * beta;
    STORE(T, out, c * s->out_column, (ACC(T))EPILOGUE(value));
  }
}

// ---- a task

#define BATCH_PLACE(x, batch) \
  (x##_base + x##_offset + (batch) / s.inner * s.x##_outer + (batch) % s.inner * s.x##_batch)

__kernel void gemm(const __global A_TYPE* a_base, long a_offset, const __global B_TYPE* b_base, long b_offset,
                   IN(T, self), OUT(T, out), __global gemm_t* sums_base, long sums_offset, __local gemm_t* panel,
                   const struct gemm_args s, const struct fetch_args fetch, gemm_t alpha, gemm_t beta) {
  const long task = get_global_id(0);
  if (task >= s.tasks) return;
  const long row0 = task % s.row_tasks * s.row_block, batch = task / s.row_tasks / s.column_tasks;
  const long column0 = task / s.row_tasks % s.column_tasks * s.column_block;
  const long row1 = min(s.rows, row0 + s.row_block), column1 = min(s.columns, column0 + s.column_block);
  const __global A_TYPE* a = BATCH_PLACE(a, batch);
  const __global MEM(T)* self = BATCH_PLACE(self, batch);
  __global MEM(T)* out = BATCH_PLACE(out, batch);
  const __global B_TYPE* b = b_base + b_offset;
  gemm_t tile[GEMM_ROWS * GEMM_COLUMNS] __attribute__((aligned(64)));
  for (long k = 0; k < s.depth; k += s.depth_block) {
    const long depth = min(s.depth_block, s.depth - k);
    const bool first = k == 0, last = k + depth == s.depth;
    __global gemm_t* sums = sums_base + sums_offset + task * s.row_block * s.column_block;
    for (long column = column0; column < column1; column += GEMM_COLUMNS) {
      const long columns = min((long)GEMM_COLUMNS, column1 - column);
#ifdef B_PACKED
      const long panels = (s.columns + GEMM_COLUMNS - 1) / GEMM_COLUMNS;
      const __global gemm_t* right = b + ((batch * panels + column / GEMM_COLUMNS) * s.depth + k) * GEMM_COLUMNS;
#else
      const __local gemm_t* right = panel;
      fetch_panel(panel, b, &fetch, batch, column, columns, k, depth);
#endif
      for (long row = row0; row < row1; row += GEMM_ROWS) {
        const long rows = min((long)GEMM_ROWS, row1 - row);
#ifdef A_PACKED
        run_tile(a + row * s.depth + k * GEMM_ROWS, s.depth * GEMM_ROWS, 0, rows, right, depth, tile);
#else
        run_tile(a + row * s.a_row + k * s.a_column, s.a_row, s.a_column, rows, right, depth, tile);
#endif
        if (!(first && last)) {
          for (int i = 0; i < GEMM_ROWS * GEMM_COLUMNS; i += 16) {
            gemm_16_t value = vload16(0, tile + i);
            if (!first) value += vload16(0, sums + i);
            if (last)
              GEMM_PUT16(, tile + i, value);
            else
              GEMM_PUT16(__global, sums + i, value);
          }
          sums += GEMM_ROWS * GEMM_COLUMNS;
        }
        if (!last) continue;
        for (long r = 0; r < rows; ++r)
          finish_row(tile + r * GEMM_COLUMNS, self + (row + r) * s.self_row + column * s.self_column,
                     out + (row + r) * s.out_row + column * s.out_column, columns, &s, alpha, beta);
      }
    }
  }
}
