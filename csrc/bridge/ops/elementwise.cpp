// Elementwise operators that ATen does not have as structured ones, or that need more than one line.
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/floor_divide_ops.h>
#include <ATen/ops/hardswish_backward_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_backward_ops.h>
#include <ATen/ops/huber_loss_ops.h>
#include <ATen/ops/isinf_ops.h>
#include <ATen/ops/isnan_ops.h>
#include <ATen/ops/log_sigmoid_backward_ops.h>
#include <ATen/ops/log_sigmoid_forward_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/logical_or_ops.h>
#include <ATen/ops/logical_xor_ops.h>
#include <ATen/ops/logit_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mish_backward_ops.h>
#include <ATen/ops/nan_to_num_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where_ops.h>
#include <torch/library.h>

#include "bridge/device_context.h"
#include "bridge/lower.h"
#include "lowerings.h"

namespace fl::bridge {

namespace {

// compute: the type to compute in where the iterator does not promote (its common type is then undefined).
Elementwise what(Uniop uniop, int overload, OutType out = OutType::Same,
                 c10::ScalarType compute = c10::ScalarType::Undefined, uint32_t keep = 0) {
  return Elementwise{uniop, out, false, keep, overload, compute};
}

template <class... Attrs>
bool run(const Elementwise& w, at::TensorIteratorBase& iter, const Attrs&... attrs) {
  const fl_scalar list[] = {scalar(attrs)..., fl_scalar{}};
  return lower_elementwise(w, iter, list, sizeof...(attrs));
}

// ---- unary without a structured class: functional, in-place, out=

// A unary operator whose result has the input's type: `out` may be undefined.
template <class... Attrs>
bool unary(Uniop uniop, int overload, const at::Tensor& self, at::Tensor& out, const Attrs&... attrs) {
  DeviceContext context(self.device());
  auto iter = at::TensorIterator::unary_op(out, self);
  if (!run(what(uniop, overload), iter, attrs...)) return false;
  out = iter.output();
  return true;
}

at::Tensor relu(const at::Tensor& self) {
  static const int overload = overload_id("aten::relu");
  TORCH_CHECK(self.scalar_type() != at::kBool, "Boolean inputs not supported for relu");
  at::Tensor out;
  return unary(Uniop::relu, overload, self, out) ? out : next_tier<at::_ops::relu>(self);
}
at::Tensor& relu_(at::Tensor& self) {
  static const int overload = overload_id("aten::relu_");
  TORCH_CHECK(self.scalar_type() != at::kBool, "Boolean inputs not supported for relu");
  return unary(Uniop::relu, overload, self, self) ? self : next_tier<at::_ops::relu_>(self);
}

at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  static const int overload = overload_id("aten::abs.out");
  DeviceContext context(self.device());
  if (!self.is_complex()) {
    auto iter = at::TensorIterator::unary_op(out, self);
    if (run(what(Uniop::abs, overload), iter)) return out;
  }
  return next_tier<at::_ops::abs_out>(self, out);
}

at::Tensor hardswish(const at::Tensor& self) {
  static const int overload = overload_id("aten::hardswish");
  at::Tensor out;
  return unary(Uniop::hardswish, overload, self, out) ? out : next_tier<at::_ops::hardswish>(self);
}
at::Tensor& hardswish_out(const at::Tensor& self, at::Tensor& out) {
  static const int overload = overload_id("aten::hardswish.out");
  return unary(Uniop::hardswish, overload, self, out) ? out : next_tier<at::_ops::hardswish_out>(self, out);
}
at::Tensor& hardswish_(at::Tensor& self) {
  static const int overload = overload_id("aten::hardswish_");
  return unary(Uniop::hardswish, overload, self, self) ? self : next_tier<at::_ops::hardswish_>(self);
}

// logit and nan_to_num: floating results for integers (logit), integers unchanged (nan_to_num).
at::Tensor& logit_out(const at::Tensor& self, std::optional<double> eps, at::Tensor& out) {
  static const int overload = overload_id("aten::logit.out");
  DeviceContext context(self.device());
  auto iter = at::TensorIterator::unary_float_op(out, self);
  return run(what(Uniop::logit, overload), iter, eps) ? out : next_tier<at::_ops::logit_out>(self, eps, out);
}
at::Tensor logit(const at::Tensor& self, std::optional<double> eps) {
  static const int overload = overload_id("aten::logit");
  DeviceContext context(self.device());
  at::Tensor out;
  auto iter = at::TensorIterator::unary_float_op(out, self);
  return run(what(Uniop::logit, overload), iter, eps) ? iter.output() : next_tier<at::_ops::logit>(self, eps);
}

double highest(c10::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return 65504.0;
    case at::kBFloat16:
      return 3.3895313892515355e38;
    case at::kDouble:
      return std::numeric_limits<double>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}
at::Tensor& nan_to_num_out(const at::Tensor& self, std::optional<double> nan, std::optional<double> posinf,
                           std::optional<double> neginf, at::Tensor& out) {
  static const int overload = overload_id("aten::nan_to_num.out");
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "nan_to_num: dtype of out: ", out.scalar_type(),
              " should be same as input: ", self.scalar_type());
  if (c10::isIntegralType(self.scalar_type(), true)) {
    at::native::resize_output(out, self.sizes());
    return out.copy_(self), out;
  }
  DeviceContext context(self.device());
  if (!self.is_complex()) {
    auto iter = at::TensorIterator::unary_op(out, self);
    const double most = highest(self.scalar_type());
    if (run(what(Uniop::nan_to_num, overload), iter, nan.value_or(0.0), posinf.value_or(most), neginf.value_or(-most)))
      return out;
  }
  return next_tier<at::_ops::nan_to_num_out>(self, nan, posinf, neginf, out);
}

at::Tensor& logical_not_out(const at::Tensor& self, at::Tensor& out) {
  static const int overload = overload_id("aten::logical_not.out");
  DeviceContext context(self.device());
  auto iter = at::TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
  return run(what(Uniop::logical_not, overload, OutType::Bool, self.scalar_type()), iter)
             ? out
             : next_tier<at::_ops::logical_not_out>(self, out);
}

template <class Op>
at::Tensor predicate(Uniop uniop, int overload, const at::Tensor& self) {
  if (c10::isIntegralType(self.scalar_type(), true)) {
    at::Tensor none = empty(self.sizes(), at::kBool, self.device(), self.suggest_memory_format());
    return none.zero_(), none;
  }
  if (!self.is_complex()) {
    at::Tensor out = empty(self.sizes(), at::kBool, self.device(), self.suggest_memory_format());
    auto iter = at::TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
    if (run(what(uniop, overload, OutType::Bool, self.scalar_type()), iter)) return out;
  }
  return next_tier<Op>(self);
}

// ---- fill

bool fill(const at::Tensor& self, const c10::Scalar& value, int overload) {
  if (self.numel() == 0) return true;
  DeviceContext context(self.device());
  auto iter = at::TensorIteratorConfig()
                  .set_check_mem_overlap(false)
                  .check_all_same_dtype(false)
                  .add_output(self)
                  .resize_outputs(false)
                  .build();
  return run(what(Uniop::fill, overload, OutType::Same, self.scalar_type()), iter, value);
}
at::Tensor& fill_scalar(at::Tensor& self, const c10::Scalar& value) {
  static const int overload = overload_id("aten::fill_.Scalar");
  return fill(self, value, overload) ? self : next_tier<at::_ops::fill__Scalar>(self, value);
}
at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.device() != self.device()) return fill_scalar(self, value.item());
  self.copy_(value);  // stays on the device: no synchronisation
  return self;
}
at::Tensor& zero_(at::Tensor& self) {
  static const int overload = overload_id("aten::zero_");
  return fill(self, 0, overload) ? self : next_tier<at::_ops::fill__Scalar>(self, 0);
}

// ---- binary

template <class Op>
at::Tensor& logical(Uniop uniop, int overload, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  DeviceContext context(out.device());
  auto iter = at::TensorIterator::comparison_op(out, self, other);
  return run(what(uniop, overload, OutType::Bool), iter) ? out : next_tier<Op>(self, other, out);
}

at::Tensor& floor_divide_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  static const int overload = overload_id("aten::floor_divide.out");
  DeviceContext context(out.device());
  auto iter = at::TensorIterator::binary_op(out, self, other);
  return run(what(Uniop::div_floor, overload), iter) ? out : next_tier<at::_ops::floor_divide_out>(self, other, out);
}
at::Tensor floor_divide(const at::Tensor& self, const at::Tensor& other) {
  static const int overload = overload_id("aten::floor_divide");
  DeviceContext context(self.is_privateuseone() ? self.device() : other.device());
  at::Tensor out;
  auto iter = at::TensorIterator::binary_op(out, self, other);
  return run(what(Uniop::div_floor, overload), iter) ? iter.output() : next_tier<at::_ops::floor_divide>(self, other);
}
at::Tensor& floor_divide_(at::Tensor& self, const at::Tensor& other) {
  static const int overload = overload_id("aten::floor_divide_.Tensor");
  DeviceContext context(self.device());
  auto iter = at::TensorIterator::binary_op(self, self, other);
  return run(what(Uniop::div_floor, overload), iter) ? self : next_tier<at::_ops::floor_divide__Tensor>(self, other);
}

// grad-like binary operators: result has the operands' type.
template <class Op, class... Attrs>
at::Tensor backward(Uniop uniop, int overload, const at::Tensor& grad, const at::Tensor& self, const Attrs&... attrs) {
  DeviceContext context(self.device());
  at::Tensor out;
  auto iter = at::TensorIterator::borrowing_binary_op(out, grad, self);
  if (run(what(uniop, overload), iter, attrs...)) return iter.output();
  return next_tier<Op>(grad, self, attrs...);
}

// ---- losses: per element, then reduced

bool reduce_loss(const at::Tensor& each, int64_t reduction, at::Tensor& out) {
  if (reduction == at::Reduction::Mean)
    at::mean_out(out, each, at::IntArrayRef{});
  else
    at::sum_out(out, each, at::IntArrayRef{});
  return true;
}

template <class... Attrs>
bool loss(Uniop uniop, const at::Tensor& self, const at::Tensor& target, int64_t reduction, const at::Tensor& out,
          const Attrs&... attrs) {
  if (!has_kernel(uniop, out)) return false;
  at::Tensor each = reduction == at::Reduction::None ? out : at::Tensor();
  auto iter = at::TensorIterator::borrowing_binary_op(each, self, target);
  if (!run(what(uniop, kUncounted), iter, attrs...)) return false;
  if (reduction == at::Reduction::None) return true;
  at::Tensor result = out;
  return reduce_loss(iter.output(), reduction, result);
}

// ---- ternary

at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  static const int overload = overload_id("aten::where.self_out");
  const auto type = at::result_type(self, other);
  TORCH_CHECK(out.scalar_type() == type, "Expected out type to be ", type, " but got ", out.scalar_type());
  TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ", condition.scalar_type());
  DeviceContext context(out.device());
  const at::Tensor mask = condition.scalar_type() == at::kByte ? condition.to(at::kBool) : condition;
  const at::Tensor self_ = self.scalar_type() == type || (self.is_cpu() && self.dim() == 0) ? self : self.to(type);
  const at::Tensor other_ =
      other.scalar_type() == type || (other.is_cpu() && other.dim() == 0) ? other : other.to(type);
  const at::Tensor mask_ = mask.is_cpu() && mask.dim() == 0 ? mask.to(out.device()) : mask;
  auto iter = at::TensorIteratorConfig()
                  .check_all_same_dtype(false)
                  .allow_cpu_scalars(true)
                  .add_output(out)
                  .add_const_input(mask_)
                  .add_const_input(self_)
                  .add_const_input(other_)
                  .build();
  if (iter.numel() == 0) return out;
  if (run(what(Uniop::where, overload, OutType::Same, type, 1u), iter)) return out;
  return next_tier<at::_ops::where_self_out>(condition, self, other, out);
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const auto device = condition.is_privateuseone() ? condition.device()
                      : self.is_privateuseone()    ? self.device()
                                                   : other.device();
  for (const at::Tensor* t : {&condition, &self, &other})
    TORCH_CHECK(t->device() == device || (t->is_cpu() && t->dim() == 0),
                "Expected all tensors to be on the same device, but got ", t->device(), " and ", device,
                " in torch.where");
  at::Tensor out = empty({0}, at::result_type(self, other), device);
  return where_out(condition, self, other, out), out;
}

bool masked_fill(at::Tensor& self, const at::Tensor& mask, const c10::Scalar& value, int overload) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_fill_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  DeviceContext context(self.device());
  const at::Tensor mask_ = mask.is_cpu() && mask.dim() == 0 ? mask.to(self.device()) : mask;
  auto iter = at::TensorIteratorConfig()
                  .set_check_mem_overlap(false)
                  .check_all_same_dtype(false)
                  .resize_outputs(false)
                  .add_output(self)
                  .add_const_input(self)
                  .add_const_input(mask_)
                  .build();
  return run(what(Uniop::masked_fill, overload, OutType::Same, self.scalar_type(), 2u), iter, value);
}
at::Tensor& masked_fill_scalar(at::Tensor& self, const at::Tensor& mask, const c10::Scalar& value) {
  static const int overload = overload_id("aten::masked_fill_.Scalar");
  return masked_fill(self, mask, value, overload) ? self : next_tier<at::_ops::masked_fill__Scalar>(self, mask, value);
}
at::Tensor& masked_fill_tensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  if (value.is_cpu()) return masked_fill_scalar(self, mask, value.item());
  DeviceContext context(self.device());
  at::Tensor out = at::_ops::where_self::call(mask, value.to(self.scalar_type()), self);
  return self.copy_(out), self;
}

}  // namespace

namespace lower {

bool div_Tensor_mode(const at::Tensor& self, const at::Tensor& other, std::optional<c10::string_view> mode,
                     const at::Tensor& out) {
  // meta() has checked the mode and promoted types; the iterator is rebuilt as the modes need different promotion.
  if (!mode) {
    auto iter = at::TensorIterator::binary_float_op(const_cast<at::Tensor&>(out), self, other);
    return run(what(Uniop::div, kUncounted), iter);
  }
  auto iter = at::TensorIterator::binary_op(const_cast<at::Tensor&>(out), self, other);
  return run(what(*mode == "trunc" ? Uniop::div_trunc : Uniop::div_floor, kUncounted), iter);
}

bool mse_loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, const at::Tensor& out) {
  return loss(Uniop::mse, self, target, reduction, out);
}
bool smooth_l1_loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double beta,
                    const at::Tensor& out) {
  return loss(Uniop::smooth_l1, self, target, reduction, out, beta);
}

}  // namespace lower

namespace {

at::Tensor huber_loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta) {
  static const int overload = overload_id("aten::huber_loss");
  TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
  DeviceContext context(self.device());
  at::Tensor each;
  auto iter = at::TensorIterator::borrowing_binary_op(each, self, target);
  if (!run(what(Uniop::huber, overload), iter, delta))
    return next_tier<at::_ops::huber_loss>(self, target, reduction, delta);
  if (reduction == at::Reduction::Mean) return at::mean(iter.output());
  if (reduction == at::Reduction::Sum) return at::sum(iter.output());
  return iter.output();
}

std::tuple<at::Tensor, at::Tensor> log_sigmoid_forward(const at::Tensor& self) {
  static const int overload = overload_id("aten::log_sigmoid_forward");
  at::Tensor out;
  if (!unary(Uniop::log_sigmoid, overload, self, out)) return next_tier<at::_ops::log_sigmoid_forward>(self);
  return {out, empty({0}, self.scalar_type(), self.device())};  // the buffer is the CPU kernel's alone
}
at::Tensor log_sigmoid_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& buffer) {
  static const int overload = overload_id("aten::log_sigmoid_backward");
  DeviceContext context(self.device());
  at::Tensor out;
  auto iter = at::TensorIterator::borrowing_binary_op(out, grad, self);
  if (run(what(Uniop::log_sigmoid_backward, overload), iter)) return iter.output();
  return next_tier<at::_ops::log_sigmoid_backward>(grad, self, buffer);
}

}  // namespace

bool lower_fill(const at::Tensor& out, const c10::Scalar& value) { return fill(out, value, kUncounted); }

#define OVERLOAD(name)                                \
  ([] {                                               \
    static const int id = overload_id("aten::" name); \
    return id;                                        \
  }())

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("relu", relu);
  m.impl("relu_", relu_);
  m.impl("abs.out", abs_out);
  m.impl("hardswish", hardswish);
  m.impl("hardswish.out", hardswish_out);
  m.impl("hardswish_", hardswish_);
  m.impl("logit", logit);
  m.impl("logit.out", logit_out);
  m.impl("nan_to_num.out", nan_to_num_out);
  m.impl("logical_not.out", logical_not_out);
  m.impl("isnan", [](const at::Tensor& t) { return predicate<at::_ops::isnan>(Uniop::isnan_, OVERLOAD("isnan"), t); });
  m.impl("isinf", [](const at::Tensor& t) { return predicate<at::_ops::isinf>(Uniop::isinf_, OVERLOAD("isinf"), t); });
  m.impl("fill_.Scalar", fill_scalar);
  m.impl("fill_.Tensor", fill_tensor);
  m.impl("zero_", zero_);
  m.impl("logical_and.out", [](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) -> at::Tensor& {
    return logical<at::_ops::logical_and_out>(Uniop::logical_and, OVERLOAD("logical_and.out"), a, b, out);
  });
  m.impl("logical_or.out", [](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) -> at::Tensor& {
    return logical<at::_ops::logical_or_out>(Uniop::logical_or, OVERLOAD("logical_or.out"), a, b, out);
  });
  m.impl("logical_xor.out", [](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) -> at::Tensor& {
    return logical<at::_ops::logical_xor_out>(Uniop::logical_xor, OVERLOAD("logical_xor.out"), a, b, out);
  });
  m.impl("floor_divide", floor_divide);
  m.impl("floor_divide.out", floor_divide_out);
  m.impl("floor_divide_.Tensor", floor_divide_);
  m.impl("where.self", where);
  m.impl("where.self_out", where_out);
  m.impl("masked_fill_.Scalar", masked_fill_scalar);
  m.impl("masked_fill_.Tensor", masked_fill_tensor);
  m.impl("huber_loss", huber_loss);
  m.impl("log_sigmoid_forward", log_sigmoid_forward);
  m.impl("log_sigmoid_backward", log_sigmoid_backward);
  m.impl("hardtanh_backward",
         [](const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& low, const c10::Scalar& high) {
           return backward<at::_ops::hardtanh_backward>(Uniop::hardtanh_backward, OVERLOAD("hardtanh_backward"), grad,
                                                        self, low, high);
         });
  m.impl("hardswish_backward", [](const at::Tensor& grad, const at::Tensor& self) {
    return backward<at::_ops::hardswish_backward>(Uniop::hardswish_backward, OVERLOAD("hardswish_backward"), grad,
                                                  self);
  });
  m.impl("mish_backward", [](const at::Tensor& grad, const at::Tensor& self) {
    return backward<at::_ops::mish_backward>(Uniop::mish_backward, OVERLOAD("mish_backward"), grad, self);
  });
}

}  // namespace fl::bridge
