// Negative log likelihood over [N, C] and over images [N, C, H, W], forward and backward. cross_entropy is PyTorch's
// composite over log_softmax and these.
#include "bridge/ops/operands.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/nll_loss2d_backward_ops.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <torch/library.h>

#include <limits>

#include "lowerings.h"

namespace fl::bridge {

namespace {

struct Nll {
  const at::Tensor& target;
  const at::Tensor weight;  // undefined: all 1
  int64_t reduction, ignore_index;
};

at::Tensor checked_target(const at::Tensor& target) {
  TORCH_CHECK(target.scalar_type() == c10::kLong || target.scalar_type() == c10::kByte,
              "expected target dtype to be Long or Byte, but got ", target.scalar_type());
  return target.scalar_type() == c10::kLong ? target : target.to(c10::kLong);
}

void check_operands(const char* method, const at::Tensor& self, const Nll& what) {
  check_device(method, "target", what.target, self);
  check_device(method, "weight", what.weight, self);
  TORCH_CHECK(!what.weight.defined() || what.weight.scalar_type() == self.scalar_type(), "expected scalar type ",
              self.scalar_type(), " but found ",
              what.weight.defined() ? what.weight.scalar_type() : self.scalar_type());
}

// A single sample [C] as a batch of one.
struct Batch {
  at::DimVector sizes, strides;
  explicit Batch(const at::Tensor& t) : sizes(t.sizes()), strides(t.strides()) {
    if (t.dim() != 1) return;
    sizes.insert(sizes.begin(), 1);
    strides.insert(strides.begin(), t.size(0));
  }
};

bool forward(const at::Tensor& self, const Nll& what, const at::Tensor& out, const at::Tensor& total_weight,
             int overload) {
  check_operands("nll_loss", self, what);
  const at::Tensor target = checked_target(what.target);
  if (self.numel() == 0) {
    // Nothing to sum: 0, and 0 / 0 as the mean.
    const bool mean = what.reduction == at::Reduction::Mean;
    if (out.numel() > 0) out.fill_(mean ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    total_weight.zero_();
    if (overload != kUncounted) count_native_call(self, overload);
    return true;
  }
  const Batch batch(self);
  Call call(Uniop::nll_loss, self);
  call.in(self, batch.sizes, batch.strides);
  in_along(call, target).in_optional(what.weight);
  if (what.reduction == at::Reduction::None) out_along(call, out);
  else call.out(out);
  return call.out(total_weight).attr(what.reduction).attr(what.ignore_index).launch(self.scalar_type(), overload);
}

bool backward(const at::Tensor& grad_output, const Nll& what, const at::Tensor& total_weight,
              const at::Tensor& grad_input, int overload) {
  check_operands("nll_loss_backward", grad_input, what);
  check_device("nll_loss_backward", "grad_output", grad_output, grad_input);
  check_device("nll_loss_backward", "total_weight", total_weight, grad_input);
  const at::Tensor target = checked_target(what.target);
  if (grad_input.numel() == 0) return true;
  const Batch batch(grad_input);
  Call call(Uniop::nll_loss_backward, grad_input);
  if (what.reduction == at::Reduction::None) in_along(call, grad_output);
  else call.in(grad_output);
  in_along(call, target).in_optional(what.weight).in(total_weight);
  call.out(grad_input, batch.sizes, batch.strides).attr(what.reduction).attr(what.ignore_index);
  return call.launch(grad_input.scalar_type(), overload);
}

// ---- images

void check_images(const at::Tensor& self, const at::Tensor& target, const at::Tensor& weight) {
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of dimension: ", target.dim());
  TORCH_CHECK(self.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of dimension: ", self.dim());
  TORCH_CHECK(!weight.defined() || weight.numel() == self.size(1),
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(self.size(0) == target.size(0) && self.size(2) == target.size(1) && self.size(3) == target.size(2),
              "size mismatch (got input: ", self.sizes(), " , target: ", target.sizes());
}

void check_image_grad(const at::Tensor& grad_output, const at::Tensor& target, int64_t reduction) {
  if (reduction == at::Reduction::None) {
    TORCH_CHECK(grad_output.sizes() == target.sizes(), "grad_output of shape ", grad_output.sizes(),
                " should have the shape of target, ", target.sizes());
  } else {
    TORCH_CHECK(grad_output.dim() <= 1 && grad_output.numel() == 1,
                "Expected a single element grad_output tensor, but got: ", grad_output.sizes());
  }
}

using Weight = const std::optional<at::Tensor>&;

at::DimVector image_loss_sizes(const at::Tensor& target, int64_t reduction) {
  return reduction == at::Reduction::None ? at::DimVector(target.sizes()) : at::DimVector();
}

std::tuple<at::Tensor, at::Tensor> nll_loss2d_forward(const at::Tensor& self, const at::Tensor& target, Weight weight,
                                                      int64_t reduction, int64_t ignore_index) {
  static const int overload = overload_id("aten::nll_loss2d_forward");
  const Nll what{target, weight.value_or(at::Tensor()), reduction, ignore_index};
  check_images(self, target, what.weight);
  DeviceContext context(self.device());
  at::Tensor out = bridge::empty_like(self, image_loss_sizes(target, reduction)),
             total_weight = bridge::empty_like(self, {});
  if (forward(self, what, out, total_weight, overload)) return {out, total_weight};
  return next_tier<at::_ops::nll_loss2d_forward>(self, target, weight, reduction, ignore_index);
}

std::tuple<at::Tensor&, at::Tensor&> nll_loss2d_forward_out(const at::Tensor& self, const at::Tensor& target,
                                                            Weight weight, int64_t reduction, int64_t ignore_index,
                                                            at::Tensor& out, at::Tensor& total_weight) {
  static const int overload = overload_id("aten::nll_loss2d_forward.output");
  const Nll what{target, weight.value_or(at::Tensor()), reduction, ignore_index};
  check_images(self, target, what.weight);
  check_out("nll_loss2d_forward", out, self.scalar_type(), self);
  check_out("nll_loss2d_forward", total_weight, self.scalar_type(), self);
  resize_to(out, image_loss_sizes(target, reduction));
  resize_to(total_weight, {});
  DeviceContext context(self.device());
  if (forward(self, what, out, total_weight, overload)) return {out, total_weight};
  return next_tier<at::_ops::nll_loss2d_forward_output>(self, target, weight, reduction, ignore_index, out,
                                                        total_weight);
}

at::Tensor nll_loss2d_backward(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                               Weight weight, int64_t reduction, int64_t ignore_index, const at::Tensor& total_weight) {
  static const int overload = overload_id("aten::nll_loss2d_backward");
  const Nll what{target, weight.value_or(at::Tensor()), reduction, ignore_index};
  check_images(self, target, what.weight);
  check_image_grad(grad_output, target, reduction);
  at::Tensor grad_input = bridge::empty_like(self);
  if (backward(grad_output, what, total_weight, grad_input, overload)) return grad_input;
  return next_tier<at::_ops::nll_loss2d_backward>(grad_output, self, target, weight, reduction, ignore_index,
                                                  total_weight);
}

at::Tensor& nll_loss2d_backward_out(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                                    Weight weight, int64_t reduction, int64_t ignore_index,
                                    const at::Tensor& total_weight, at::Tensor& grad_input) {
  static const int overload = overload_id("aten::nll_loss2d_backward.grad_input");
  const Nll what{target, weight.value_or(at::Tensor()), reduction, ignore_index};
  check_images(self, target, what.weight);
  check_image_grad(grad_output, target, reduction);
  check_out("nll_loss2d_backward", grad_input, self.scalar_type(), self);
  resize_to(grad_input, self.sizes());
  if (backward(grad_output, what, total_weight, grad_input, overload)) return grad_input;
  return next_tier<at::_ops::nll_loss2d_backward_grad_input>(grad_output, self, target, weight, reduction, ignore_index,
                                                             total_weight, grad_input);
}

at::Tensor tensor_of(at::OptionalTensorRef ref) { return ref.has_value() ? *ref : at::Tensor(); }

}  // namespace

namespace lower {

// meta() checked the shapes; the generated wrapper counts.
bool nll_loss_forward(const at::Tensor& self, const at::Tensor& target, at::OptionalTensorRef weight, int64_t reduction,
                      int64_t ignore_index, const at::Tensor& output, const at::Tensor& total_weight) {
  return forward(self, {target, tensor_of(weight), reduction, ignore_index}, output, total_weight, kUncounted);
}

bool nll_loss_backward(const at::Tensor& grad_output, const at::Tensor&, const at::Tensor& target,
                       at::OptionalTensorRef weight, int64_t reduction, int64_t ignore_index,
                       const at::Tensor& total_weight, const at::Tensor& grad_input) {
  return backward(grad_output, {target, tensor_of(weight), reduction, ignore_index}, total_weight, grad_input,
                  kUncounted);
}

}  // namespace lower

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nll_loss2d_forward", nll_loss2d_forward);
  m.impl("nll_loss2d_forward.output", nll_loss2d_forward_out);
  m.impl("nll_loss2d_backward", nll_loss2d_backward);
  m.impl("nll_loss2d_backward.grad_input", nll_loss2d_backward_out);
}

}  // namespace fl::bridge
