// How the matrix product fetches its right operand when that is a matrix in memory: see GemmFetch in ops/gemm.h.
struct fetch_args {
  long row, column, batch, outer, inner;
};

#ifdef CPU
#if GEMM_FLOAT
GEMM_TRANSPOSE_16(PANEL_SPACE, transpose_to_panel)
#endif

static inline void fetch_panel(PANEL_SPACE gemm_t* panel, const __global MEM(T)* b, const struct fetch_args* args,
                               long batch, long column, long columns, long k, long depth) {
  const __global MEM(T)* from = b + batch / args->inner * args->outer + batch % args->inner * args->batch +
                                k * args->row + column * args->column;
  long done = 0;
#if GEMM_FLOAT
  if (args->column == 1 && columns == GEMM_COLUMNS) {
    for (long i = 0; i < depth; ++i, from += args->row, panel += GEMM_COLUMNS) {
      for (int c = 0; c < GEMM_COLUMNS; c += 16) GEMM_PUT16(PANEL_SPACE, panel + c, LOAD16(T, from, c));
    }
    return;
  }
  if (args->row == 1) {
    for (; done + 16 <= depth; done += 16) {
      for (long c = 0; c < GEMM_COLUMNS; c += 16) {
        const long first = min(c, columns - 1);
        transpose_to_panel(panel + done * GEMM_COLUMNS + c, GEMM_COLUMNS, from + first * args->column + done,
                           args->column, columns - first);
      }
    }
  }
#endif
  for (long i = done; i < depth; ++i) {
    for (long c = 0; c < columns; ++c)
      panel[i * GEMM_COLUMNS + c] = (gemm_t)LOAD(T, from, i * args->row + c * args->column);
    for (long c = columns; c < GEMM_COLUMNS; ++c) panel[i * GEMM_COLUMNS + c] = 0;
  }
}
#else
static inline ACC(T) fetch_element(const __global MEM(T)* b, const struct fetch_args* args, long batch, long k,
                                   long column) {
  return LOAD(T, b, batch / args->inner * args->outer + batch % args->inner * args->batch + k * args->row +
                        column * args->column);
}
#endif
