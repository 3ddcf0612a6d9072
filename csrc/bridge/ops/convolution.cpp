// Convolution with all its options: convolution_overrideable is what ATen's convolution picks for our device.
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_backward_overrideable_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/convolution_overrideable_ops.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include "bridge/device_context.h"
#include "bridge/lower.h"
#include "bridge/ops/operands.h"
#include "bridge/same_device.h"

namespace fl::bridge {

namespace {

struct Options {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

Call& add_attrs(Call& call, const Options& o, int64_t spatial) {
  return call.attr(spatial)
      .attrs(o.stride)
      .attrs(o.padding)
      .attrs(o.dilation)
      .attr(o.transposed)
      .attrs(o.output_padding)
      .attr(o.groups);
}

c10::DimVector output_sizes(const at::Tensor& input, const at::Tensor& weight, const Options& o) {
  const auto spatial = static_cast<size_t>(input.dim() - 2);
  c10::DimVector sizes{input.size(0), o.transposed ? weight.size(1) * o.groups : weight.size(0)};
  for (size_t d = 0; d < spatial; ++d) {
    const int64_t in = input.size(static_cast<int64_t>(d) + 2), k = weight.size(static_cast<int64_t>(d) + 2);
    const int64_t extent = o.dilation[d] * (k - 1) + 1;
    sizes.push_back(o.transposed ? (in - 1) * o.stride[d] - 2 * o.padding[d] + extent + o.output_padding[d]
                                 : (in + 2 * o.padding[d] - extent) / o.stride[d] + 1);
  }
  return sizes;
}

// Channels-last if the input or the weight is, as ATen's CPU convolutions decide.
c10::MemoryFormat format_of(const at::Tensor& input, const at::Tensor& weight) {
  const auto last = input.dim() == 5 ? c10::MemoryFormat::ChannelsLast3d : c10::MemoryFormat::ChannelsLast;
  if (input.dim() != 4 && input.dim() != 5) return c10::MemoryFormat::Contiguous;
  return input.suggest_memory_format() == last || weight.suggest_memory_format() == last
             ? last
             : c10::MemoryFormat::Contiguous;
}

// The device all operands must be on: the first fl device among them.
void check_devices(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& third) {
  const at::Tensor& self = input.is_privateuseone() ? input : weight.is_privateuseone() ? weight : third;
  for (const at::Tensor* t : {&input, &weight, &third}) check_device("convolution", "an operand", *t, self);
}

at::Tensor convolution(const at::Tensor& input_, const at::Tensor& weight_, const std::optional<at::Tensor>& bias_,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  static const int overload = overload_id("aten::convolution");
  const Options options{stride, padding, dilation, transposed, output_padding, groups};
  check_devices(input_, weight_, bias_.value_or(at::Tensor()));
  DeviceContext context(input_.device());
  const auto fallback = [&] {
    return next_tier<at::_ops::convolution>(input_, weight_, bias_, stride, padding, dilation, transposed,
                                            output_padding, groups);
  };
  if (transposed) {  // ATen leaves this check to its CPU kernels
    for (size_t d = 0; d < output_padding.size(); ++d)
      TORCH_CHECK(output_padding[d] < stride[d] || output_padding[d] < dilation[d],
                  "output padding must be smaller than either stride or dilation, but got output_padding: ",
                  output_padding, ", stride: ", stride, ", dilation: ", dilation);
  }
  if (!has_kernel(Uniop::convolution, input_)) return fallback();
  const auto format = format_of(input_, weight_);
  const at::Tensor input = input_.contiguous(format);
  const at::Tensor weight = weight_.is_contiguous(format) ? weight_ : weight_.contiguous();
  at::Tensor out = empty(output_sizes(input, weight, options), input.scalar_type(), input.device(), format);
  if (out.numel() == 0) return out;
  if (input.numel() == 0 || weight.numel() == 0) return fallback();
  const at::Tensor bias = bias_ && bias_->defined() ? bias_->contiguous() : at::Tensor();
  Call call(Uniop::convolution, out);
  call.in(input).in(weight).in_optional(bias).out(out);
  if (!add_attrs(call, options, input.dim() - 2).launch(out.scalar_type(), overload)) return fallback();
  return out;
}

at::Tensor sum_bias(const at::Tensor& grad) {
  c10::DimVector dims{0};
  for (int64_t d = 2; d < grad.dim(); ++d) dims.push_back(d);
  return at::sum(grad, dims);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_, const at::Tensor& input_,
                                                        const at::Tensor& weight_, at::OptionalIntArrayRef bias_sizes,
                                                        at::IntArrayRef stride, at::IntArrayRef padding,
                                                        at::IntArrayRef dilation, bool transposed,
                                                        at::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> mask) {
  static const int overload = overload_id("aten::convolution_backward");
  const Options options{stride, padding, dilation, transposed, output_padding, groups};
  check_devices(input_, weight_, grad_);
  DeviceContext context(input_.device());
  const auto fallback = [&] {
    return next_tier<at::_ops::convolution_backward>(grad_, input_, weight_, bias_sizes, stride, padding, dilation,
                                                     transposed, output_padding, groups, mask);
  };
  if (!has_kernel(Uniop::convolution_backward_input, input_) ||
      !has_kernel(Uniop::convolution_backward_weight, input_) || grad_.numel() == 0 || input_.numel() == 0 ||
      weight_.numel() == 0)
    return fallback();
  const auto format = format_of(input_, weight_);
  const int64_t spatial = input_.dim() - 2;
  const at::Tensor grad = grad_.contiguous(format);
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) {
    const at::Tensor weight = weight_.is_contiguous(format) ? weight_ : weight_.contiguous();
    grad_input = empty(input_.sizes(), input_.scalar_type(), input_.device(), format);
    Call call(Uniop::convolution_backward_input, grad_input);
    call.in(grad).in(weight).out(grad_input);
    if (!add_attrs(call, options, spatial).launch(grad_input.scalar_type())) return fallback();
  }
  if (mask[1]) {
    const at::Tensor input = input_.contiguous(format);
    grad_weight = empty(weight_.sizes(), weight_.scalar_type(), weight_.device(), format);
    Call call(Uniop::convolution_backward_weight, grad_weight);
    call.in(grad).in(input).out(grad_weight);
    if (!add_attrs(call, options, spatial).launch(grad_weight.scalar_type())) return fallback();
  }
  if (mask[2]) grad_bias = sum_bias(grad);
  count_native_call(input_, overload);
  return {grad_input, grad_weight, grad_bias};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_overrideable(const at::Tensor& grad, const at::Tensor& input,
                                                                     const at::Tensor& weight, at::IntArrayRef stride,
                                                                     at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                     bool transposed, at::IntArrayRef output_padding,
                                                                     int64_t groups, std::array<bool, 3> mask) {
  const c10::DimVector bias_sizes{grad.size(1)};
  return backward(grad, input, weight, at::OptionalIntArrayRef(at::IntArrayRef(bias_sizes)), stride, padding, dilation,
                  transposed, output_padding, groups, mask);
}

// PyTorch's own chooses its implementation by the input's device alone: with the input on the CPU and the weight here,
// it would read memory that the host cannot.
std::tuple<at::Tensor, at::Tensor, at::Tensor> checked_backward(const at::Tensor& grad, const at::Tensor& input,
                                                                const at::Tensor& weight,
                                                                at::OptionalIntArrayRef bias_sizes,
                                                                at::IntArrayRef stride, at::IntArrayRef padding,
                                                                at::IntArrayRef dilation, bool transposed,
                                                                at::IntArrayRef output_padding, int64_t groups,
                                                                std::array<bool, 3> mask) {
  SameDevice("aten::convolution_backward")(grad, "grad_output")(input, "input")(weight, "weight");
  return at::native::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed,
                                          output_padding, groups, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_backward", checked_backward);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", backward_overrideable);
}

}  // namespace fl::bridge
