// The gradient of embedding (its forward is index_select) and the row norms of max_norm=.
#include "bridge/ops/operands.h"

#include <ATen/TensorUtils.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/library.h>

namespace fl::bridge {

namespace {

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t num_weights,
                                    int64_t padding_idx, bool scale_grad_by_freq) {
  static const int overload = overload_id("aten::embedding_dense_backward");
  const at::TensorArg indices_arg{indices, "indices", 2};
  at::checkScalarTypes("embedding_backward", indices_arg, {c10::kLong, c10::kInt});
  check_device("embedding_dense_backward", "indices", indices, grad);
  const int64_t width = grad.size(-1);
  TORCH_CHECK(grad.numel() == indices.numel() * width, "embedding_dense_backward: a gradient of shape ", grad.sizes(),
              " does not belong to indices of shape ", indices.sizes());
  at::Tensor grad_weight = empty({num_weights, width}, grad.scalar_type(), grad.device());
  if (grad.numel() == 0 || grad_weight.numel() == 0) {
    count_native_call(grad, overload);
    DeviceContext context(grad.device());
    return grad_weight.zero_();
  }
  const bool rows = indices.dim() > 0 && grad.dim() == indices.dim() + 1;
  const at::Tensor flat_grad = rows ? grad : grad.reshape({indices.numel(), width});
  const at::Tensor flat_indices = rows ? indices : indices.reshape({-1});
  Call call(Uniop::embedding_backward, grad);
  call.in(flat_grad).in(flat_indices).out(grad_weight).attr(padding_idx).attr(scale_grad_by_freq);
  if (call.launch(grad.scalar_type(), overload)) return grad_weight;
  return next_tier<at::_ops::embedding_dense_backward>(grad, indices, num_weights, padding_idx, scale_grad_by_freq);
}

// Scales the rows that indices name down to max_norm. A row named twice is computed twice, to the same values.
at::Tensor& embedding_renorm(at::Tensor& self, const at::Tensor& indices, double max_norm, double norm_type) {
  static const int overload = overload_id("aten::embedding_renorm_");
  const at::TensorArg self_arg{self, "self", 1}, indices_arg{indices, "indices", 2};
  at::checkDim("embedding_renorm_", self_arg, 2);
  at::checkScalarTypes("embedding_renorm_", indices_arg, {c10::kLong, c10::kInt});
  check_device("embedding_renorm_", "indices", indices, self);
  if (indices.numel() > 0) {
    const at::Tensor flat = indices.reshape({-1}).to(c10::kLong);
    const at::Tensor rows = self.index_select(0, flat);
    const at::Tensor norms = at::linalg_vector_norm(rows, norm_type, at::IntArrayRef{1}, /*keepdim=*/true);
    const at::Tensor scale = norms.add(1e-7).reciprocal_().mul_(max_norm).masked_fill_(norms.le(max_norm), 1);
    self.index_copy_(0, flat, rows.mul(scale));
  }
  count_native_call(self, overload);
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("embedding_dense_backward", embedding_dense_backward);
  m.impl("embedding_renorm_", embedding_renorm);
}

}  // namespace fl::bridge
