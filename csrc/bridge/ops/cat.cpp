// Moving whole parts of tensors: cat, triu, tril, flip.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/flip_ops.h>
#include <torch/library.h>

#include "bridge/ops/operands.h"
#include "lowerings.h"

namespace fl::bridge {

namespace {

at::Tensor flip(const at::Tensor& self, at::IntArrayRef dims) {
  static const int overload = overload_id("aten::flip");
  const auto flipped = at::dim_list_to_bitset(dims, self.dim());
  at::Tensor out = at::empty_like(self, c10::MemoryFormat::Preserve);
  if (self.numel() == 0) {
    count_native_call(self, overload);
    return out;
  }
  Call call(Uniop::flip, self);
  in_along(call, self);
  out_along(call, out);
  for (int64_t d = 0; d < std::max<int64_t>(self.dim(), 1); ++d)
    if (flipped[d]) call.attr(d);
  return call.launch(self.scalar_type(), overload) ? out : next_tier<at::_ops::flip>(self, dims);
}

bool triangle(const at::Tensor& self, int64_t diagonal, bool upper, const at::Tensor& out) {
  return Call(Uniop::triangle, self).in(self).out(out).attr(diagonal).attr(upper).launch(self.scalar_type());
}

}  // namespace

namespace lower {

bool cat(const at::ITensorListRef& tensors, int64_t dim, const at::Tensor& out) {
  const c10::ScalarType type = out.scalar_type();
  if (!has_kernel(Uniop::cat, out)) return false;
  c10::SmallVector<at::Tensor, 8> parts;
  for (const at::Tensor& t : tensors) {
    check_device("cat", "tensors", t, out);
    if (t.numel() > 0) parts.push_back(t.scalar_type() == type ? t : t.to(type));
  }
  Call call(Uniop::cat, out);
  for (const at::Tensor& t : parts) call.in(t);
  return call.out(out).attr(at::maybe_wrap_dim(dim, out.dim())).launch(type);
}

bool triu(const at::Tensor& self, int64_t diagonal, const at::Tensor& out) {
  return triangle(self, diagonal, true, out);
}
bool tril(const at::Tensor& self, int64_t diagonal, const at::Tensor& out) {
  return triangle(self, diagonal, false, out);
}

}  // namespace lower

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("flip", flip); }

}  // namespace fl::bridge
