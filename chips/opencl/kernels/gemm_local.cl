// The matrix product on GPU devices: a work-group of SIDE x SIDE items computes a tile of 4 SIDE x 4 SIDE of out, four
// by four per item, from slices of both operands in local memory. Dimension 2 of the grid is the batch.
struct gemm_args {
  long inner, rows, columns, depth;
  long a_row, a_column, a_batch, a_outer;
  long self_row, self_column, self_batch, self_outer;
  long out_row, out_column, out_batch, out_outer;
  long has_self;
};
#define TILE (4 * SIDE)
#define SLICE 16  // values of k per slice

#define BATCH_PLACE(x) (x##_base + x##_offset + batch / s.inner * s.x##_outer + batch % s.inner * s.x##_batch)

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void gemm_local(
    IN(T, a), IN(T, b), IN(T, self), OUT(T, out), const struct gemm_args s, const struct fetch_args fetch, gemm_t alpha,
    gemm_t beta) {
  __local gemm_t left[SLICE][TILE + 1], right[SLICE][TILE + 1];
  const long batch = get_group_id(2), row0 = get_group_id(1) * (long)TILE, column0 = get_group_id(0) * (long)TILE;
  const int x = get_local_id(0), y = get_local_id(1), item = y * SIDE + x;
  const __global MEM(T)* a = BATCH_PLACE(a);
  const __global MEM(T)* self = BATCH_PLACE(self);
  __global MEM(T)* out = BATCH_PLACE(out);
  OPERAND_IN(T, b);
  gemm_t sums[4][4];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) sums[i][j] = 0;
  for (long k0 = 0; k0 < s.depth; k0 += SLICE) {
    for (int i = item; i < SLICE * TILE; i += SIDE * SIDE) {
      // Neighbouring items read neighbouring memory along the dense side of a.
      const int r = s.a_column == 1 ? i / SLICE : i % TILE, k = s.a_column == 1 ? i % SLICE : i / TILE;
      left[k][r] = row0 + r < s.rows && k0 + k < s.depth
                       ? (gemm_t)LOAD(T, a, (row0 + r) * s.a_row + (k0 + k) * s.a_column) : 0;
      const int c = i % TILE, l = i / TILE;
      right[l][c] = column0 + c < s.columns && k0 + l < s.depth
                        ? (gemm_t)fetch_element(b, &fetch, batch, k0 + l, column0 + c) : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int depth = (int)min((long)SLICE, s.depth - k0);
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sums[i][j] += left[k][y + i * SIDE] * right[k][x + j * SIDE];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const long r = row0 + y + i * SIDE, c = column0 + x + j * SIDE;
      if (r >= s.rows || c >= s.columns) continue;
      gemm_t value = sums[i][j] * alpha;
      if (s.has_self) value += (gemm_t)LOAD(T, self, r * s.self_row + c * s.self_column) * beta;
      STORE(T, out, r * s.out_row + c * s.out_column, (ACC(T))EPILOGUE(value));
    }
  }
}
