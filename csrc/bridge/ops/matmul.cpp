// The matrix products. Shapes and types are checked by ATen's meta functions; operands go to the chip as they lie.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/vdot_ops.h>
#include <torch/library.h>

#include "bridge/device_context.h"
#include "bridge/lower.h"
#include "lowerings.h"

namespace fl::bridge {

namespace {

// out = beta * self over an empty product.
bool scale_into(const at::Tensor& self, const c10::Scalar& beta, const at::Tensor& out) {
  auto& result = const_cast<at::Tensor&>(out);
  if (beta.toComplexDouble() == 0.0) return lower_fill(out, 0);
  result.copy_(self.expand(out.sizes()));
  result.mul_(beta);
  return true;
}

// PyTorch leaves conjugation to the matrix products: kernels see values, so it is done before. A conjugated output is
// not written here.
inline bool lazy(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c = {}) {
  return C10_UNLIKELY(a.is_conj() || b.is_conj() || (c.defined() && c.is_conj()));
}

}  // namespace

namespace lower {

bool mm(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& out) {
  if (lazy(self, mat2, out)) return !out.is_conj() && mm(self.resolve_conj(), mat2.resolve_conj(), out);
  if (self.size(1) == 0) return lower_fill(out, 0);
  return Call(Uniop::mm, out).in(self).in(mat2).out(out).launch(out.scalar_type());
}

bool bmm(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& out) {
  if (lazy(self, mat2, out)) return !out.is_conj() && bmm(self.resolve_conj(), mat2.resolve_conj(), out);
  if (self.size(2) == 0) return lower_fill(out, 0);
  return Call(Uniop::bmm, out).in(self).in(mat2).out(out).launch(out.scalar_type());
}

bool addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
           const at::Scalar& alpha, const at::Tensor& out) {
  if (!has_kernel(Uniop::addmm, out) || out.is_conj()) return false;
  if (lazy(mat1, mat2, self))
    return addmm(self.resolve_conj(), mat1.resolve_conj(), mat2.resolve_conj(), beta, alpha, out);
  const at::Tensor wide = self.expand(out.sizes());
  if (mat1.size(1) == 0) return scale_into(wide, beta, out);
  return Call(Uniop::addmm, out).in(wide).in(mat1).in(mat2).out(out).attr(beta).attr(alpha).launch(out.scalar_type());
}

bool addmv(const at::Tensor& self, const at::Tensor& mat, const at::Tensor& vec, const at::Scalar& beta,
           const at::Scalar& alpha, const at::Tensor& out) {
  if (!has_kernel(Uniop::addmm, out)) return false;
  const at::Tensor wide = self.expand(out.sizes());
  if (mat.size(1) == 0) return scale_into(wide, beta, out);
  const at::Tensor self_column = wide.unsqueeze(1), vec_column = vec.unsqueeze(1), out_column = out.unsqueeze(1);
  return Call(Uniop::addmm, out)
      .in(self_column)
      .in(mat)
      .in(vec_column)
      .out(out_column)
      .attr(beta)
      .attr(alpha)
      .launch(out.scalar_type());
}

bool baddbmm(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2, const at::Scalar& beta,
             const at::Scalar& alpha, const at::Tensor& out) {
  if (!has_kernel(Uniop::baddbmm, out) || out.is_conj()) return false;
  if (lazy(batch1, batch2, self))
    return baddbmm(self.resolve_conj(), batch1.resolve_conj(), batch2.resolve_conj(), beta, alpha, out);
  const at::Tensor wide = self.expand(out.sizes());
  if (batch1.size(2) == 0) return scale_into(wide, beta, out);
  return Call(Uniop::baddbmm, out)
      .in(wide)
      .in(batch1)
      .in(batch2)
      .out(out)
      .attr(beta)
      .attr(alpha)
      .launch(out.scalar_type());
}

}  // namespace lower

namespace {

at::Tensor dot(const at::Tensor& self, const at::Tensor& other) {
  static const int overload = overload_id("aten::dot");
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              self.scalar_type(), " and ", other.scalar_type());
  TORCH_CHECK(self.numel() == other.numel(), "inconsistent tensor size, expected tensor [", self.numel(), "] and src [",
              other.numel(), "] to have the same number of elements, but got ", self.numel(), " and ", other.numel(),
              " elements respectively");
  TORCH_CHECK(self.device() == other.device(), "Expected all tensors to be on the same device. Found: ", self.device(),
              ", ", other.device());
  if (self.is_complex() || !has_kernel(Uniop::mm, self)) return next_tier<at::_ops::dot>(self, other);
  at::Tensor out = empty({}, self.scalar_type(), self.device());
  if (self.numel() == 0) return lower_fill(out, 0), out;
  const at::Tensor row = self.unsqueeze(0), column = other.unsqueeze(1), cell = out.view({1, 1});
  if (!Call(Uniop::mm, out).in(row).in(column).out(cell).launch(out.scalar_type(), overload))
    return next_tier<at::_ops::dot>(self, other);
  return out;
}

at::Tensor vdot(const at::Tensor& self, const at::Tensor& other) {
  return self.is_complex() ? next_tier<at::_ops::vdot>(self, other) : fl::bridge::dot(self, other);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("dot", dot);
  m.impl("vdot", vdot);
}

}  // namespace fl::bridge
