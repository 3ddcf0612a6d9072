// Packs the operands of the matrix product for CPU devices: a as [batch][panel][k][GEMM_ROWS], b as
// [batch][panel][k][GEMM_COLUMNS]. A work-item packs one block of k: of one panel of a; of some panels of b, so that
// its rows are read in long runs.
struct pack_args {
  long inner, rows, depth, row, column, batch, outer, panels, depth_block, tasks;
};
#if GEMM_FLOAT
GEMM_TRANSPOSE_16(__global, transpose_to_global)
#endif

__kernel void gemm_pack(IN(T, a), __global gemm_t* packed_base, long packed_offset, const struct pack_args s) {
  const long task = get_global_id(0);
  if (task >= s.tasks) return;
  const long blocks = (s.depth + s.depth_block - 1) / s.depth_block;
  const long k0 = task % blocks * s.depth_block, panel = task / blocks % s.panels, batch = task / blocks / s.panels;
  const long depth = min(s.depth_block, s.depth - k0);
  const long row = panel * GEMM_ROWS, rows = min((long)GEMM_ROWS, s.rows - row);
  const __global MEM(T)* from = a_base + a_offset + batch / s.inner * s.outer + batch % s.inner * s.batch +
                                row * s.row + k0 * s.column;
  __global gemm_t* to = packed_base + packed_offset + (batch * s.panels + panel) * s.depth * GEMM_ROWS + k0 * GEMM_ROWS;
  long k = 0;
#if GEMM_FLOAT
  // The last rows of a block are written alone: a sixteen wide store there would reach into the next block.
  if (s.column == 1) {
    for (; k + 17 <= depth; k += 16) transpose_to_global(to + k * GEMM_ROWS, GEMM_ROWS, from + k, s.row, rows);
  }
#endif
  for (; k < depth; ++k) {
    for (int r = 0; r < GEMM_ROWS; ++r)
      to[k * GEMM_ROWS + r] = r < rows ? (gemm_t)LOAD(T, from, r * s.row + k * s.column) : 0;
  }
}

struct pack_b_args {
  long columns, depth, panels, panel_block, depth_block, tasks;
};

__kernel void gemm_pack_b(IN(T, b), __global gemm_t* packed_base, long packed_offset, const struct pack_b_args s,
                          const struct fetch_args fetch) {
  const long task = get_global_id(0);
  if (task >= s.tasks) return;
  const long depth_blocks = (s.depth + s.depth_block - 1) / s.depth_block;
  const long panel_blocks = (s.panels + s.panel_block - 1) / s.panel_block;
  const long k0 = task % depth_blocks * s.depth_block, depth = min(s.depth_block, s.depth - k0);
  const long first = task / depth_blocks % panel_blocks * s.panel_block, batch = task / depth_blocks / panel_blocks;
  OPERAND_IN(T, b);
  for (long panel = first; panel < min(s.panels, first + s.panel_block); ++panel) {
    const long column = panel * GEMM_COLUMNS;
    fetch_panel(packed_base + packed_offset + ((batch * s.panels + panel) * s.depth + k0) * GEMM_COLUMNS, b, &fetch,
                batch, column, min((long)GEMM_COLUMNS, s.columns - column), k0, depth);
  }
}
