// The matrix product that matmul, convolution and attention share: out = alpha * a x b + beta * self, batched, any
// strides. Kernels are kernels/gemm*.cl.
//
// CPU devices: one work-item computes a block of rows by a few panels of columns, in register tiles of twelve rows by
// two vectors. Large products pack both operands into panels first; in smaller ones a task packs its panels of b into
// local memory, and a is packed (pack_a, or the caller's own kernel) or read in place. A few rows or columns go without
// packing (gemm_skinny.cl). GPU devices: a tile in local memory, both operands read in place.
// A caller whose b is no matrix in memory (convolution) gives the functions that fetch it: see GemmFetch.
#pragma once
#include "../kernel.h"

namespace ocl {

// A matrix in memory: element [i, r, c] of batch entry i lies at
// place + (i / inner) * outer + (i % inner) * batch + r * row + c * column, all in elements, inner being the problem's.
struct GemmMatrix {
  Place place;
  int64_t row = 0, column = 0, batch = 0, outer = 0;
};

// Replaces b. `file` is a kernels/*.cl file that the gemm kernels include; it sees T (token of the type), gemm_t
// and defines `struct fetch_args` (the same bytes as `args`; a by-value kernel argument) and
//   for CPU devices
//     void fetch_panel(PANEL_SPACE gemm_t* panel, const __global MEM(T)* b, const struct fetch_args* args, long batch,
//                      long column, long columns, long k, long depth)
//       panel[i * GEMM_COLUMNS + c] = b[batch][k + i][column + c] for i < depth, c < columns. columns ≤ GEMM_COLUMNS;
//       what lies beyond `columns` may be anything finite (zero it: denormals are slow).
//   for GPU devices
//     ACC(T) fetch_element(const __global MEM(T)* b, const struct fetch_args* args, long batch, long k, long column)
// `key` < 1024 tells apart the programs of one registration that use different fetches, definitions or options.
struct GemmFetch {
  const char* file = nullptr;
  uint64_t key = 0;
  Bytes args{nullptr, 0};
  std::function<void(Source&)> define;  // more definitions, EPILOGUE(x) among them; may be empty
};

struct GemmProblem {
  Type type = Type::None;  // of a, b, self and out
  int64_t batch = 1, rows = 0, columns = 0, depth = 0;
  int64_t inner = 0;       // batch entries that differ by the batch strides alone; 0: all of them
  GemmMatrix a, b, self, out;
  bool has_self = false;  // self is read: beta != 0. A bias of rows: self = {place, 1, 0}; of columns: {place, 0, 1}
  fl_scalar alpha{FL_SCALAR_INT, {}, {1}}, beta{FL_SCALAR_INT, {}, {1}};

  // CPU devices only: a lies packed at a.place, as pack_a leaves it: computing type, [panel][k][kGemmRows], where
  // panel p holds rows p * kGemmRows …; batch and outer strides count computing-type elements. What fills up the last
  // panel may be anything finite.
  bool a_packed = false;
  GemmFetch fetch;  // with fetch.file: b.place is handed to the fetch, b's strides are not used

  // Scratch memory of gemm_scratch_bytes(), e.g. behind the caller's own in one piece of Stream::scratch().
  Place scratch;
};

constexpr int64_t kGemmRows = 12;                       // rows of a packed panel of a
int64_t gemm_columns(Type type);                        // columns of a panel of b: 32, 16 for 8-byte types
int64_t packed_a_bytes(Type type, int64_t rows, int64_t depth);  // of one batch entry, with what pack_a overruns
int64_t packed_a_numel(int64_t rows, int64_t depth);    // the batch stride of packed a
uint64_t gemm_scratch_bytes(const Device& device, const GemmProblem& problem);

// Packs `batch` matrices [rows, depth] with any strides for a_packed. CPU devices only.
void pack_a(Op& op, Type type, const GemmMatrix& a, int64_t batch, int64_t inner, int64_t rows, int64_t depth,
            const Place& packed);

// Queues the product. numel of out > 0 and depth > 0.
void gemm(Op& op, const GemmProblem& problem);

}  // namespace ocl
