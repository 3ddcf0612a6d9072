// mm, addmm, bmm, baddbmm: operands of any strides become a GemmProblem.
#include "gemm.h"

namespace ocl {
namespace {

GemmMatrix matrix(const fl_tensor& t, bool batched) {
  const int d = batched ? 1 : 0;  // position of the rows' dimension
  return {Place::of(t.memory), t.strides[d], t.strides[d + 1], batched ? t.strides[0] : 0, 0};
}

bool is_zero(const fl_scalar& s) {
  return s.tag == FL_SCALAR_NONE || (s.tag == FL_SCALAR_FLOAT ? s.v.f == 0 : s.v.i == 0);
}

template <bool kSelf, bool kBatched>
fl_status matmul(Op& op) {
  const fl_tensor &a = op.input(kSelf), &b = op.input(kSelf + 1), &out = op.output(0);
  const int d = kBatched ? 1 : 0;
  GemmProblem p;
  p.type = op.in;
  p.batch = kBatched ? out.sizes[0] : 1;
  p.rows = out.sizes[d], p.columns = out.sizes[d + 1], p.depth = a.sizes[d + 1];
  p.a = matrix(a, kBatched), p.b = matrix(b, kBatched), p.out = matrix(out, kBatched);
  if (kSelf) {
    p.beta = op.call.attrs[0], p.alpha = op.call.attrs[1];
    p.has_self = !is_zero(p.beta);
    if (p.has_self) p.self = matrix(op.input(0), kBatched);
  }
  const uint64_t bytes = gemm_scratch_bytes(op.device, p);
  if (bytes != 0) p.scratch = op.stream.scratch(bytes);
  gemm(op, p);
  return FL_STATUS_OK;
}

OCL_KERNEL("mm", kRealTypes, (matmul<false, false>));
OCL_KERNEL("addmm", kRealTypes, (matmul<true, false>));
OCL_KERNEL("bmm", kRealTypes, (matmul<false, true>));
OCL_KERNEL("baddbmm", kRealTypes, (matmul<true, true>));

}  // namespace
}  // namespace ocl
