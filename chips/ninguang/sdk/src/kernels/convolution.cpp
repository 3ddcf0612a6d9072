// The operators convolution, convolution_backward_input and convolution_backward_weight: reads the attributes, brings
// them to the canonical form and picks an implementation by type and layout.
#include "convolution.h"

#include <algorithm>

#include "half.h"
#include "image.h"
#include "scratch.h"

namespace ng {

namespace {

ConvProblem conv_problem(const Args& args, const Image& src, const Image& dst, const Image& weight) {
  ConvProblem p{};
  const int spatial = static_cast<int>(args.i(0));
  p.batch = src.batch, p.in_channels = src.channels, p.out_channels = dst.channels;
  p.groups = args.i(1 + 4 * spatial + 1);
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    p.in[d] = src.size[d], p.out[d] = dst.size[d], p.kernel[d] = weight.size[d];
    p.stride[d] = from >= 0 ? args.i(1 + from) : 1;
    p.padding[d] = from >= 0 ? args.i(1 + spatial + from) : 0;
    p.dilation[d] = from >= 0 ? args.i(1 + 2 * spatial + from) : 1;
  }
  return p;
}

bool is_transposed(const Args& args) { return args.i(1 + 3 * args.i(0)) != 0; }

template <class T, class S> const T* bias_values(const Tensor& bias) {
  if (!bias) return nullptr;
  const int64_t n = bias.sizes[0];
  if (std::is_same_v<T, S> && (n == 1 || bias.strides[0] == 1)) return static_cast<const T*>(bias.data);
  T* copy = scratch<T>(kScratchRow, n);
  for (int64_t i = 0; i < n; ++i) copy[i] = static_cast<T>(bias.as<S>()[i * bias.strides[0]]);
  return copy;
}

struct ConvCall {
  ConvProblem problem;
  Image src, dst, weight;
};

template <class S> ngResult run_forward(const ConvCall& call, const Tensor* bias) {
  using T = Compute<S>;
  const ConvProblem& p = call.problem;
  const Image src = as_row_major<S, S>(call.src, kScratchOperand);
  const Image weight = as_row_major<S, S>(call.weight, kScratchOperand2);
  ImageResult<S, S> result(call.dst);
  const T* bias_data = bias ? bias_values<T, S>(*bias) : nullptr;
  bool done = false;
  if constexpr (std::is_same_v<S, float>) {
    done = winograd_applies(p);
    if (done) conv_forward_winograd(p, src, weight, bias_data, result.value);
  }
  if (!done) conv_forward_gemm<S>(p, src, weight, bias_data, result.value);
  result.finish();
  return NG_SUCCESS;
}

template <class S> ngResult run_backward_data(const ConvCall& call, const Tensor* bias) {
  using T = Compute<S>;
  const ConvProblem& p = call.problem;
  const Image dst = as_row_major<S, S>(call.dst, kScratchOperand);
  const Image weight = as_row_major<S, S>(call.weight, kScratchOperand2);
  ImageResult<S, S> result(call.src);
  const T* bias_data = bias ? bias_values<T, S>(*bias) : nullptr;
  bool done = false;
  if constexpr (std::is_same_v<S, float>) {
    done = winograd_applies(p);
    if (done) conv_backward_data_winograd(p, dst, weight, bias_data, result.value);
  }
  if (!done) conv_backward_data_gemm<S>(p, dst, weight, bias_data, result.value);
  result.finish();
  return NG_SUCCESS;
}

template <class S> ngResult run_backward_weight(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  const Image src = as_row_major<S, S>(call.src, kScratchOperand);
  const Image dst = as_row_major<S, S>(call.dst, kScratchOperand2);
  ImageResult<S, S> result(call.weight);
  bool done = false;
  if constexpr (std::is_same_v<S, float>) {
    done = winograd_applies(p);
    if (done) conv_backward_weight_winograd(p, src, dst, result.value);
  }
  if (!done) conv_backward_weight_gemm<S>(p, src, dst, result.value);
  result.finish();
  return NG_SUCCESS;
}

template <class Body> ngResult for_type(ngDataType type, const Body& body) {
  switch (type) {
    case NG_FLOAT16: return body(Half());
    case NG_BFLOAT16: return body(BFloat16());
    case NG_FLOAT32: return body(float());
    case NG_FLOAT64: return body(double());
    default: return fail(NG_ERROR_NOT_SUPPORTED, "convolution: type %d", type);
  }
}

ConvCall make_call(const Args& args, const Tensor& src, const Tensor& dst, const Tensor& weight) {
  const Image s = make_image(src), d = make_image(dst), w = make_image(weight);
  return {conv_problem(args, s, d, w), s, d, w};
}

ngResult run_convolution(const Args& args) {
  const Tensor &input = args.in[0], &weight = args.in[1], &out = args.out[0];
  const Tensor* bias = args.num_in > 2 && args.in[2] ? &args.in[2] : nullptr;
  if (is_transposed(args)) {
    const ConvCall call = make_call(args, out, input, weight);
    return for_type(input.type, [&](auto tag) { return run_backward_data<decltype(tag)>(call, bias); });
  }
  const ConvCall call = make_call(args, input, out, weight);
  return for_type(input.type, [&](auto tag) { return run_forward<decltype(tag)>(call, bias); });
}

ngResult run_convolution_backward_input(const Args& args) {
  const Tensor &grad_output = args.in[0], &weight = args.in[1], &grad_input = args.out[0];
  if (is_transposed(args)) {
    const ConvCall call = make_call(args, grad_output, grad_input, weight);
    return for_type(weight.type, [&](auto tag) { return run_forward<decltype(tag)>(call, nullptr); });
  }
  const ConvCall call = make_call(args, grad_input, grad_output, weight);
  return for_type(weight.type, [&](auto tag) { return run_backward_data<decltype(tag)>(call, nullptr); });
}

ngResult run_convolution_backward_weight(const Args& args) {
  const Tensor &grad_output = args.in[0], &input = args.in[1], &grad_weight = args.out[0];
  const ConvCall call = is_transposed(args) ? make_call(args, grad_output, input, grad_weight)
                                            : make_call(args, input, grad_output, grad_weight);
  return for_type(input.type, [&](auto tag) { return run_backward_weight<decltype(tag)>(call); });
}

NG_KERNEL("convolution", kFloatTypes, run_convolution);
NG_KERNEL("convolution_backward_input", kFloatTypes, run_convolution_backward_input);
NG_KERNEL("convolution_backward_weight", kFloatTypes, run_convolution_backward_weight);

}  // namespace
}  // namespace ng
