// What the indexing, random and loss lowerings share: checks on operands and the view of a 0-dimensional tensor as one
// element along one dimension, so that every kernel has a dimension to work along.
#pragma once
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "bridge/lower.h"

namespace fl::bridge {

namespace detail {
inline constexpr int64_t kOne[1] = {1};
}
inline at::IntArrayRef sizes_along(const at::Tensor& t) {
  return t.dim() == 0 ? at::IntArrayRef(detail::kOne) : t.sizes();
}
inline at::IntArrayRef strides_along(const at::Tensor& t) {
  return t.dim() == 0 ? at::IntArrayRef(detail::kOne) : t.strides();
}
inline Call& in_along(Call& call, const at::Tensor& t) { return call.in(t, sizes_along(t), strides_along(t)); }
inline Call& out_along(Call& call, const at::Tensor& t) { return call.out(t, sizes_along(t), strides_along(t)); }

// Kernels read addresses of one device only: an operand elsewhere must never reach them.
inline void check_device(const char* method, const char* argument, const at::Tensor& t, const at::Tensor& self) {
  TORCH_CHECK(!t.defined() || t.device() == self.device(), "Expected all tensors to be on the same device, but got ",
              argument, " is on ", t.device(), ", different from other tensors on ", self.device(),
              " (when checking argument in method ", method, ")");
}

// An out= argument before anything is computed: PyTorch's checks of type, device and overlap.
inline void check_out(const char* method, const at::Tensor& out, c10::ScalarType type, const at::Tensor& self) {
  TORCH_CHECK(out.scalar_type() == type, method, "(): Expected out tensor to have dtype ", type, ", but got ",
              out.scalar_type(), " instead");
  check_device(method, "out", out, self);
  at::assert_no_internal_overlap(out);
}

inline void resize_to(const at::Tensor& out, at::IntArrayRef sizes) { at::native::resize_output(out, sizes); }

}  // namespace fl::bridge
