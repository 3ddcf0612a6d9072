// Batch, layer, group and rms normalisation, forward and backward, and the softmax family.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <ATen/ops/_batch_norm_with_update_ops.h>
#include <ATen/ops/_fused_rms_norm_backward_ops.h>
#include <ATen/ops/_fused_rms_norm_ops.h>
#include <ATen/ops/_native_batch_norm_legit_ops.h>
#include <ATen/ops/batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <torch/library.h>

#include "bridge/device_context.h"
#include "bridge/lower.h"
#include "bridge/same_device.h"
#include "lowerings.h"

namespace fl::bridge {

namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor or_undefined(const OptionalTensor& t) { return t && t->defined() ? *t : at::Tensor(); }

// Statistics of half-typed inputs are kept in float32.
c10::ScalarType statistics_type(const at::Tensor& input, const at::Tensor& weight = {}) {
  if (weight.defined())
    return weight.scalar_type() == input.scalar_type() && input.scalar_type() != at::kHalf &&
                   input.scalar_type() != at::kBFloat16
               ? input.scalar_type()
               : at::kFloat;
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// ---- batch norm

struct BatchNorm {
  at::Tensor out, save_mean, save_invstd;
};

// False: next tier. Statistics live in the running statistics' type, else in float32 for half types.
bool batch_norm(const at::Tensor& input, const at::Tensor& weight_, const at::Tensor& bias_, const at::Tensor& mean_,
                const at::Tensor& var_, bool training, double momentum, double eps, int overload, BatchNorm& result) {
  SameDevice("aten::native_batch_norm")(input, "input")(weight_, "weight")(bias_, "bias")(mean_, "running_mean")(
      var_, "running_var");
  const auto dense = [](const at::Tensor& t) { return t.defined() ? t.contiguous() : t; };
  const at::Tensor weight = dense(weight_), bias = dense(bias_);
  const at::Tensor mean = training ? mean_ : dense(mean_), var = training ? var_ : dense(var_);  // written in training
  if (input.dim() < 2 || input.numel() == 0 || !has_kernel(Uniop::batch_norm, input) || (!training && !mean.defined()))
    return false;
  for (const at::Tensor* t : {&weight, &bias, &mean, &var})
    if (t->defined() &&
        (!t->is_contiguous() || (t->scalar_type() != at::kFloat && t->scalar_type() != input.scalar_type())))
      return false;
  DeviceContext context(input.device());
  const auto type = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  result.out = empty_like(input);
  at::Tensor none;
  if (training) {
    result.save_mean = empty({input.size(1)}, type, input.device());
    result.save_invstd = empty({input.size(1)}, type, input.device());
  } else {
    result.save_mean = empty({0}, type, input.device());
    result.save_invstd = empty({0}, type, input.device());
  }
  return Call(Uniop::batch_norm, input)
      .in(input)
      .in_optional(weight)
      .in_optional(bias)
      .in_optional(mean)
      .in_optional(var)
      .out(result.out)
      .out_optional(training ? result.save_mean : none)
      .out_optional(training ? result.save_invstd : none)
      .out_optional(training ? mean : none)
      .out_optional(training ? var : none)
      .attr(training)
      .attr(momentum)
      .attr(eps)
      .launch(input.scalar_type(), overload);
}

Triple native_batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                         const OptionalTensor& mean, const OptionalTensor& var, bool training, double momentum,
                         double eps) {
  static const int overload = overload_id("aten::native_batch_norm");
  BatchNorm r;
  if (batch_norm(input, or_undefined(weight), or_undefined(bias), or_undefined(mean), or_undefined(var), training,
                 momentum, eps, overload, r))
    return {r.out, r.save_mean, r.save_invstd};
  return next_tier<at::_ops::native_batch_norm>(input, weight, bias, mean, var, training, momentum, eps);
}
Triple batch_norm_legit(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                        at::Tensor& mean, at::Tensor& var, bool training, double momentum, double eps) {
  static const int overload = overload_id("aten::_native_batch_norm_legit");
  BatchNorm r;
  if (batch_norm(input, or_undefined(weight), or_undefined(bias), mean, var, training, momentum, eps, overload, r))
    return {r.out, r.save_mean, r.save_invstd};
  return next_tier<at::_ops::_native_batch_norm_legit>(input, weight, bias, mean, var, training, momentum, eps);
}
Triple batch_norm_no_stats(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                           bool training, double momentum, double eps) {
  static const int overload = overload_id("aten::_native_batch_norm_legit.no_stats");
  BatchNorm r;
  if (batch_norm(input, or_undefined(weight), or_undefined(bias), {}, {}, training, momentum, eps, overload, r))
    return {r.out, r.save_mean, r.save_invstd};
  return next_tier<at::_ops::_native_batch_norm_legit_no_stats>(input, weight, bias, training, momentum, eps);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_with_update(const at::Tensor& input,
                                                                                  const OptionalTensor& weight,
                                                                                  const OptionalTensor& bias,
                                                                                  at::Tensor& mean, at::Tensor& var,
                                                                                  double momentum, double eps) {
  static const int overload = overload_id("aten::_batch_norm_with_update");
  BatchNorm r;
  if (batch_norm(input, or_undefined(weight), or_undefined(bias), mean, var, true, momentum, eps, overload, r))
    return {r.out, r.save_mean, r.save_invstd, empty({0}, at::kByte, input.device())};
  return next_tier<at::_ops::_batch_norm_with_update>(input, weight, bias, mean, var, momentum, eps);
}

Triple native_batch_norm_backward(const at::Tensor& grad_, const at::Tensor& input, const OptionalTensor& weight_,
                                  const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                  const OptionalTensor& save_mean, const OptionalTensor& save_invstd, bool training,
                                  double eps, std::array<bool, 3> mask) {
  SameDevice("aten::native_batch_norm_backward")(grad_, "grad_out")(input, "input")(weight_, "weight")(
      running_mean, "running_mean")(running_var, "running_var")(save_mean, "save_mean")(save_invstd, "save_invstd");
  static const int overload = overload_id("aten::native_batch_norm_backward");
  const auto fallback = [&] {
    return next_tier<at::_ops::native_batch_norm_backward>(grad_, input, weight_, running_mean, running_var, save_mean,
                                                           save_invstd, training, eps, mask);
  };
  const at::Tensor weight = or_undefined(weight_);
  const at::Tensor mean = or_undefined(training ? save_mean : running_mean),
                   var = or_undefined(training ? save_invstd : running_var);
  if (input.dim() < 2 || input.numel() == 0 || !has_kernel(Uniop::batch_norm_backward, input) || !mean.defined() ||
      !var.defined() || (weight.defined() && !weight.is_contiguous()))
    return fallback();
  DeviceContext context(input.device());
  const at::Tensor grad = grad_.scalar_type() == input.scalar_type() ? grad_ : grad_.to(input.scalar_type());
  const auto type = weight.defined() ? weight.scalar_type() : input.scalar_type();
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) grad_input = empty_like(input);
  if (mask[1]) grad_weight = empty({input.size(1)}, type, input.device());
  if (mask[2]) grad_bias = empty({input.size(1)}, type, input.device());
  if (!Call(Uniop::batch_norm_backward, input)
           .in(grad)
           .in(input)
           .in_optional(weight)
           .in(mean)
           .in(var)
           .out_optional(grad_input)
           .out_optional(grad_weight)
           .out_optional(grad_bias)
           .attr(training)
           .attr(eps)
           .launch(input.scalar_type(), overload))
    return fallback();
  return {grad_input, grad_weight, grad_bias};
}
Triple batch_norm_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                           const OptionalTensor& running_mean, const OptionalTensor& running_var,
                           const OptionalTensor& save_mean, const OptionalTensor& save_var, bool update, double eps,
                           std::array<bool, 3> mask, const at::Tensor&) {
  return native_batch_norm_backward(grad, input, weight, running_mean, running_var, save_mean, save_var, update, eps,
                                    mask);
}

// ---- layer norm

struct Rows {
  int64_t rows = 1, columns = 1;
  c10::DimVector statistics;  // sizes of mean and rstd: 1 in normalised dims
};

Rows rows_of(const char* name, const at::Tensor& input, at::IntArrayRef normalized_shape) {
  const auto n = static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK(n >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
              "normalized_shape = ",
              normalized_shape);
  TORCH_CHECK(input.dim() >= n && input.sizes().slice(input.dim() - n) == normalized_shape,
              "Given normalized_shape=", normalized_shape, ", expected input with shape [*, ", normalized_shape,
              "], but got input of size", input.sizes());
  Rows r;
  for (int64_t d = 0; d < input.dim(); ++d) {
    const bool reduced = d >= input.dim() - n;
    (reduced ? r.columns : r.rows) *= input.size(d);
    r.statistics.push_back(reduced ? 1 : input.size(d));
  }
  return r;
}

Triple native_layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& weight_,
                         const OptionalTensor& bias_, double eps) {
  SameDevice("aten::native_layer_norm")(input, "input")(weight_, "weight")(bias_, "bias");
  static const int overload = overload_id("aten::native_layer_norm");
  const auto fallback = [&] {
    return next_tier<at::_ops::native_layer_norm>(input, normalized_shape, weight_, bias_, eps);
  };
  const Rows r = rows_of("layer_norm", input, normalized_shape);
  const at::Tensor weight = or_undefined(weight_), bias = or_undefined(bias_);
  TORCH_CHECK(!weight.defined() || weight.sizes() == normalized_shape,
              "Expected weight to be of same shape as normalized_shape, but got weight of shape ", weight.sizes(),
              " and normalized_shape = ", normalized_shape);
  TORCH_CHECK(!bias.defined() || bias.sizes() == normalized_shape,
              "Expected bias to be of same shape as normalized_shape, but got bias of shape ", bias.sizes(),
              " and normalized_shape = ", normalized_shape);
  if (!has_kernel(Uniop::layer_norm, input)) return fallback();
  DeviceContext context(input.device());
  const at::Tensor x = input.contiguous();
  const auto type = statistics_type(input, weight);
  at::Tensor out = empty(x.sizes(), x.scalar_type(), x.device()), mean = empty(r.statistics, type, x.device()),
             rstd = empty(r.statistics, type, x.device());
  if (r.rows == 0) return {out, mean, rstd};
  if (r.columns == 0) return fallback();
  const at::Tensor w = weight.defined() ? weight.contiguous() : weight, b = bias.defined() ? bias.contiguous() : bias;
  if (!Call(Uniop::layer_norm, x)
           .in(x)
           .in_optional(w)
           .in_optional(b)
           .out(out)
           .out(mean)
           .out(rstd)
           .attr(r.rows)
           .attr(r.columns)
           .attr(eps)
           .launch(x.scalar_type(), overload))
    return fallback();
  return {out, mean, rstd};
}

Triple native_layer_norm_backward(const at::Tensor& grad_, const at::Tensor& input, at::IntArrayRef normalized_shape,
                                  const at::Tensor& mean_, const at::Tensor& rstd_, const OptionalTensor& weight_,
                                  const OptionalTensor& bias_, std::array<bool, 3> mask) {
  SameDevice("aten::native_layer_norm_backward")(grad_, "grad_out")(input, "input")(mean_, "mean")(rstd_, "rstd")(
      weight_, "weight")(bias_, "bias");
  static const int overload = overload_id("aten::native_layer_norm_backward");
  const auto fallback = [&] {
    return next_tier<at::_ops::native_layer_norm_backward>(grad_, input, normalized_shape, mean_, rstd_, weight_, bias_,
                                                           mask);
  };
  const Rows r = rows_of("layer_norm", input, normalized_shape);
  if (!has_kernel(Uniop::layer_norm_backward, input) || r.rows == 0 || r.columns == 0) return fallback();
  DeviceContext context(input.device());
  const at::Tensor grad = grad_.contiguous(), x = input.contiguous(), mean = mean_.contiguous(),
                   rstd = rstd_.contiguous();
  const at::Tensor weight = weight_ && weight_->defined() ? weight_->contiguous() : at::Tensor();
  const at::Tensor bias = or_undefined(bias_);
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) grad_input = empty(x.sizes(), x.scalar_type(), x.device());
  if (mask[1] && weight.defined()) grad_weight = empty(weight.sizes(), weight.scalar_type(), x.device());
  if (mask[2] && bias.defined()) grad_bias = empty(bias.sizes(), bias.scalar_type(), x.device());
  if (!Call(Uniop::layer_norm_backward, x)
           .in(grad)
           .in(x)
           .in(mean)
           .in(rstd)
           .in_optional(weight)
           .out_optional(grad_input)
           .out_optional(grad_weight)
           .out_optional(grad_bias)
           .attr(r.rows)
           .attr(r.columns)
           .launch(x.scalar_type(), overload))
    return fallback();
  return {grad_input, grad_weight, grad_bias};
}

// ---- rms norm

std::tuple<at::Tensor, at::Tensor> fused_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                                  const OptionalTensor& weight_, std::optional<double> eps) {
  SameDevice("aten::_fused_rms_norm")(input, "input")(weight_, "weight");
  static const int overload = overload_id("aten::_fused_rms_norm");
  const auto fallback = [&] { return next_tier<at::_ops::_fused_rms_norm>(input, normalized_shape, weight_, eps); };
  const Rows r = rows_of("rms_norm", input, normalized_shape);
  if (!has_kernel(Uniop::rms_norm, input) || r.columns == 0 || input.is_complex()) return fallback();
  DeviceContext context(input.device());
  const at::Tensor x = input.contiguous(),
                   weight = weight_ && weight_->defined() ? weight_->contiguous() : at::Tensor();
  if (weight.defined() && weight.scalar_type() != x.scalar_type()) return fallback();
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const double epsilon = eps.value_or(type == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                          : std::numeric_limits<float>::epsilon());
  at::Tensor out = empty(x.sizes(), x.scalar_type(), x.device()), rstd = empty(r.statistics, type, x.device());
  if (r.rows == 0) return {out, rstd};
  if (!Call(Uniop::rms_norm, x)
           .in(x)
           .in_optional(weight)
           .out(out)
           .out(rstd)
           .attr(r.rows)
           .attr(r.columns)
           .attr(epsilon)
           .launch(x.scalar_type(), overload))
    return fallback();
  return {out, rstd};
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm_backward(const at::Tensor& grad_, const at::Tensor& input,
                                                           at::IntArrayRef normalized_shape, const at::Tensor& rstd_,
                                                           const OptionalTensor& weight_, std::array<bool, 2> mask) {
  SameDevice("aten::_fused_rms_norm_backward")(grad_, "grad_out")(input, "input")(rstd_, "rstd")(weight_, "weight");
  static const int overload = overload_id("aten::_fused_rms_norm_backward");
  const auto fallback = [&] {
    return next_tier<at::_ops::_fused_rms_norm_backward>(grad_, input, normalized_shape, rstd_, weight_, mask);
  };
  const Rows r = rows_of("rms_norm", input, normalized_shape);
  if (!has_kernel(Uniop::rms_norm_backward, input) || r.rows == 0 || r.columns == 0) return fallback();
  DeviceContext context(input.device());
  const at::Tensor grad = grad_.contiguous(), x = input.contiguous(), rstd = rstd_.contiguous();
  const at::Tensor weight = weight_ && weight_->defined() ? weight_->contiguous() : at::Tensor();
  at::Tensor grad_input, grad_weight;
  if (mask[0]) grad_input = empty(x.sizes(), x.scalar_type(), x.device());
  if (mask[1] && weight.defined()) grad_weight = empty(weight.sizes(), weight.scalar_type(), x.device());
  if (!Call(Uniop::rms_norm_backward, x)
           .in(grad)
           .in(x)
           .in(rstd)
           .in_optional(weight)
           .out_optional(grad_input)
           .out_optional(grad_weight)
           .attr(r.rows)
           .attr(r.columns)
           .launch(x.scalar_type(), overload))
    return fallback();
  return {grad_input, grad_weight};
}

// ---- group norm

Triple native_group_norm(const at::Tensor& input, const OptionalTensor& weight_, const OptionalTensor& bias_, int64_t n,
                         int64_t c, int64_t hw, int64_t groups, double eps) {
  SameDevice("aten::native_group_norm")(input, "input")(weight_, "weight")(bias_, "bias");
  static const int overload = overload_id("aten::native_group_norm");
  const auto fallback = [&] {
    return next_tier<at::_ops::native_group_norm>(input, weight_, bias_, n, c, hw, groups, eps);
  };
  if (!has_kernel(Uniop::group_norm, input) || input.numel() == 0) return fallback();
  DeviceContext context(input.device());
  const at::Tensor x = input.contiguous(),
                   weight = weight_ && weight_->defined() ? weight_->contiguous() : at::Tensor();
  const at::Tensor bias = bias_ && bias_->defined() ? bias_->contiguous() : at::Tensor();
  const auto type = statistics_type(input, weight);
  at::Tensor out = empty(x.sizes(), x.scalar_type(), x.device()), mean = empty({n, groups}, type, x.device()),
             rstd = empty({n, groups}, type, x.device());
  if (!Call(Uniop::group_norm, x)
           .in(x)
           .in_optional(weight)
           .in_optional(bias)
           .out(out)
           .out(mean)
           .out(rstd)
           .attr(n)
           .attr(c)
           .attr(hw)
           .attr(groups)
           .attr(eps)
           .launch(x.scalar_type(), overload))
    return fallback();
  return {out, mean, rstd};
}

Triple native_group_norm_backward(const at::Tensor& grad_, const at::Tensor& input, const at::Tensor& mean_,
                                  const at::Tensor& rstd_, const OptionalTensor& weight_, int64_t n, int64_t c,
                                  int64_t hw, int64_t groups, std::array<bool, 3> mask) {
  SameDevice("aten::native_group_norm_backward")(grad_, "grad_out")(input, "input")(mean_, "mean")(rstd_, "rstd")(
      weight_, "weight");
  static const int overload = overload_id("aten::native_group_norm_backward");
  const auto fallback = [&] {
    return next_tier<at::_ops::native_group_norm_backward>(grad_, input, mean_, rstd_, weight_, n, c, hw, groups, mask);
  };
  if (!has_kernel(Uniop::group_norm_backward, input) || input.numel() == 0) return fallback();
  DeviceContext context(input.device());
  const at::Tensor grad = grad_.contiguous(), x = input.contiguous(), mean = mean_.contiguous(),
                   rstd = rstd_.contiguous();
  const at::Tensor weight = weight_ && weight_->defined() ? weight_->contiguous() : at::Tensor();
  const auto type = weight.defined() ? weight.scalar_type() : x.scalar_type();
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) grad_input = empty(x.sizes(), x.scalar_type(), x.device());
  if (mask[1]) grad_weight = empty({c}, type, x.device());
  if (mask[2]) grad_bias = empty({c}, type, x.device());
  if (!Call(Uniop::group_norm_backward, x)
           .in(grad)
           .in(x)
           .in(mean)
           .in(rstd)
           .in_optional(weight)
           .out_optional(grad_input)
           .out_optional(grad_weight)
           .out_optional(grad_bias)
           .attr(n)
           .attr(c)
           .attr(hw)
           .attr(groups)
           .launch(x.scalar_type(), overload))
    return fallback();
  return {grad_input, grad_weight, grad_bias};
}

bool softmax(Uniop uniop, const at::Tensor& self, int64_t dim, const at::Tensor& out) {
  if (out.numel() == 0) return true;
  if (!has_kernel(uniop, self, self.scalar_type(), out.scalar_type())) return false;
  if (self.dim() == 0) {
    const at::Tensor x = self.view({1}), y = out.view({1});
    return Call(uniop, self).in(x).out(y).attr(0).launch(self.scalar_type(), out.scalar_type());
  }
  return Call(uniop, self)
      .in(self)
      .out(out)
      .attr(c10::maybe_wrap_dim(dim, self.dim()))
      .launch(self.scalar_type(), out.scalar_type());
}

bool softmax_backward(Uniop uniop, const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                      const at::Tensor& grad_input) {
  if (grad_input.numel() == 0) return true;
  if (grad.scalar_type() != grad_input.scalar_type() || output.scalar_type() != grad_input.scalar_type() ||
      grad.dim() == 0)
    return false;
  return Call(uniop, grad)
      .in(grad)
      .in(output)
      .out(grad_input)
      .attr(c10::maybe_wrap_dim(dim, grad.dim()))
      .launch(grad_input.scalar_type());
}

}  // namespace

namespace lower {

bool _softmax(const at::Tensor& self, int64_t dim, bool, const at::Tensor& out) {
  return softmax(Uniop::softmax, self, dim, out);
}
bool _log_softmax(const at::Tensor& self, int64_t dim, bool, const at::Tensor& out) {
  return softmax(Uniop::log_softmax, self, dim, out);
}
bool _softmax_backward_data(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType,
                            const at::Tensor& grad_input) {
  return softmax_backward(Uniop::softmax_backward, grad, output, dim, grad_input);
}
bool _log_softmax_backward_data(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType,
                                const at::Tensor& grad_input) {
  return softmax_backward(Uniop::log_softmax_backward, grad, output, dim, grad_input);
}

}  // namespace lower

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", native_batch_norm);
  m.impl("_native_batch_norm_legit", batch_norm_legit);
  m.impl("_native_batch_norm_legit.no_stats", batch_norm_no_stats);
  m.impl("_batch_norm_with_update", batch_norm_with_update);
  m.impl("native_batch_norm_backward", native_batch_norm_backward);
  m.impl("batch_norm_backward", batch_norm_backward);
  m.impl("native_layer_norm", native_layer_norm);
  m.impl("native_layer_norm_backward", native_layer_norm_backward);
  m.impl("_fused_rms_norm", fused_rms_norm);
  m.impl("_fused_rms_norm_backward", fused_rms_norm_backward);
  m.impl("native_group_norm", native_group_norm);
  m.impl("native_group_norm_backward", native_group_norm_backward);
}

}  // namespace fl::bridge
