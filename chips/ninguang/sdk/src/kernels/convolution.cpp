// The operators convolution, convolution_backward_input and convolution_backward_weight: reads the attributes, brings
// them to the canonical form and picks an implementation by type and layout.
#include "convolution.h"

#include <algorithm>
#include <vector>

#include "half.h"
#include "image.h"
#include "scratch.h"

namespace ng {
namespace {

// The part of a phase along one dim.
struct PhaseDim {
  int64_t first, count;
  std::vector<int64_t> taps, offsets;
};

PhaseDim phase_dim(const ConvProblem& p, int d, int64_t residue) {
  PhaseDim dim{residue, residue < p.in[d] ? (p.in[d] - residue + p.stride[d] - 1) / p.stride[d] : 0, {}, {}};
  for (int64_t k = 0; k < p.kernel[d]; ++k) {
    const int64_t position = residue + p.padding[d] - k * p.dilation[d];
    if (position % p.stride[d] != 0) continue;
    dim.taps.push_back(k);
    dim.offsets.push_back(position / p.stride[d]);
  }
  return dim;
}

}  // namespace

bool winograd_suits(const ConvProblem& p) {
  for (int d = 1; d < 3; ++d) {
    if (p.kernel[d] != 3 || p.stride[d] != 1 || p.dilation[d] != 1 || p.padding[d] > 2) return false;
  }
  const int64_t tiles = p.batch * ((p.out[1] + 1) / 2) * ((p.out[2] + 1) / 2);
  return p.in[0] == 1 && p.kernel[0] == 1 && p.padding[0] == 0 && p.groups == 1 && p.in_channels >= 32 &&
         p.in_channels <= 1024 && p.out_channels >= 32 && p.out_channels <= 1024 && p.out[1] >= 4 && p.out[2] >= 4 &&
         tiles >= 32;
}

bool for_phases(const ConvProblem& p, const std::function<void(const ConvPhase&)>& body) {
  bool gaps = false;
  const int64_t classes = p.stride[0] * p.stride[1] * p.stride[2];
  for (int64_t i = 0; i < classes; ++i) {
    const PhaseDim dims[3] = {phase_dim(p, 0, i / (p.stride[1] * p.stride[2])),
                              phase_dim(p, 1, i / p.stride[2] % p.stride[1]), phase_dim(p, 2, i % p.stride[2])};
    if (dims[0].count * dims[1].count * dims[2].count == 0) continue;
    if (dims[0].taps.empty() || dims[1].taps.empty() || dims[2].taps.empty()) {
      gaps = true;
      continue;
    }
    ConvPhase phase{};
    phase.grid.batch = p.batch;
    for (int d = 0; d < 3; ++d) {
      phase.first[d] = dims[d].first;
      phase.grid.grid[d] = dims[d].count, phase.grid.extent[d] = p.out[d], phase.grid.step[d] = 1;
    }
    for (size_t z = 0; z < dims[0].taps.size(); ++z) {
      for (size_t y = 0; y < dims[1].taps.size(); ++y) {
        for (size_t x = 0; x < dims[2].taps.size(); ++x) {
          phase.grid.taps.push_back({{dims[0].offsets[z], dims[1].offsets[y], dims[2].offsets[x]}});
          phase.taps.push_back((dims[0].taps[z] * p.kernel[1] + dims[1].taps[y]) * p.kernel[2] + dims[2].taps[x]);
        }
      }
    }
    body(phase);
  }
  return gaps;
}

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

template <class T, class S>
const T* bias_values(const Tensor& bias) {
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

// Both images are channels-last, and not row-major as well.
bool pixels_suit(const Image& a, const Image& b) {
  return a.is_channels_last() && b.is_channels_last() && !(a.is_row_major() && b.is_row_major());
}

// The weight with its input channels innermost: itself or a copy.
template <class S>
Image channels_last_weight(const Image& weight) {
  if (weight.is_channels_last()) return weight;
  Image copy = weight;
  copy.data = scratch<S>(kScratchOperand2, weight.numel());
  set_channels_last(copy);
  copy_image<S, S>(weight, copy);
  return copy;
}

template <class S>
ngResult run_forward(const ConvCall& call, const Tensor* bias) {
  const ConvProblem& p = call.problem;
  const auto* bias_data = bias ? bias_values<Compute<S>, S>(*bias) : nullptr;
  const bool depthwise = depthwise_applies(p), pixels = pixels_suit(call.src, call.dst);
  if (depthwise && pixels && p.group_in() == 1 && p.group_out() == 1) {
    conv_forward_depthwise<S>(p, call.src, as_row_major<S, S>(call.weight, kScratchOperand2), bias_data, call.dst);
    return NG_SUCCESS;
  }
  if (!depthwise && pixels) {
    const Image weight = channels_last_weight<S>(call.weight);
    if constexpr (std::is_same_v<S, float>) {
      if (winograd_suits(p)) {
        conv_forward_winograd_pixels(p, call.src, weight, bias_data, call.dst);
        return NG_SUCCESS;
      }
    }
    conv_forward_pixels<S>(p, call.src, weight, bias_data, call.dst);
    return NG_SUCCESS;
  }
  const Image src = as_row_major<S, S>(call.src, kScratchOperand);
  const Image weight = as_row_major<S, S>(call.weight, kScratchOperand2);
  ImageResult<S, S> result(call.dst);
  bool done = false;
  if constexpr (std::is_same_v<S, float>) {
    done = winograd_applies(p);
    if (done) conv_forward_winograd(p, src, weight, bias_data, result.value);
  }
  if (depthwise) {
    conv_forward_depthwise<S>(p, src, weight, bias_data, result.value);
  } else if (!done) {
    conv_forward_gemm<S>(p, src, weight, bias_data, result.value);
  }
  result.finish();
  return NG_SUCCESS;
}

template <class S>
ngResult run_backward_data(const ConvCall& call, const Tensor* bias) {
  const ConvProblem& p = call.problem;
  const auto* bias_data = bias ? bias_values<Compute<S>, S>(*bias) : nullptr;
  const bool depthwise = depthwise_applies(p), pixels = pixels_suit(call.src, call.dst);
  if (depthwise && pixels && p.group_in() == 1 && p.group_out() == 1) {
    conv_backward_data_depthwise<S>(p, call.dst, as_row_major<S, S>(call.weight, kScratchOperand2), bias_data,
                                    call.src);
    return NG_SUCCESS;
  }
  if (!depthwise && pixels) {
    const Image weight = channels_last_weight<S>(call.weight);
    if constexpr (std::is_same_v<S, float>) {
      if (winograd_suits(p)) {
        conv_backward_data_winograd_pixels(p, call.dst, weight, bias_data, call.src);
        return NG_SUCCESS;
      }
    }
    conv_backward_data_pixels<S>(p, call.dst, weight, bias_data, call.src);
    return NG_SUCCESS;
  }
  const Image dst = as_row_major<S, S>(call.dst, kScratchOperand);
  const Image weight = as_row_major<S, S>(call.weight, kScratchOperand2);
  ImageResult<S, S> result(call.src);
  bool done = false;
  if constexpr (std::is_same_v<S, float>) {
    done = winograd_applies(p);
    if (done) conv_backward_data_winograd(p, dst, weight, bias_data, result.value);
  }
  if (depthwise) {
    conv_backward_data_depthwise<S>(p, dst, weight, bias_data, result.value);
  } else if (!done) {
    conv_backward_data_gemm<S>(p, dst, weight, bias_data, result.value);
  }
  result.finish();
  return NG_SUCCESS;
}

template <class S>
ngResult run_backward_weight(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  const bool depthwise = depthwise_applies(p);
  if (!depthwise && pixels_suit(call.src, call.dst)) {
    const bool in_place = call.weight.is_channels_last();
    Image grad = call.weight;
    if (!in_place) {
      grad.data = scratch<S>(kScratchResult, grad.numel());
      set_channels_last(grad);
    }
    bool done = false;
    if constexpr (std::is_same_v<S, float>) {
      done = winograd_suits(p);
      if (done) conv_backward_weight_winograd_pixels(p, call.src, call.dst, grad);
    }
    if (!done) conv_backward_weight_pixels<S>(p, call.src, call.dst, grad);
    if (!in_place) copy_image<S, S>(grad, call.weight);
    return NG_SUCCESS;
  }
  const Image src = as_row_major<S, S>(call.src, kScratchOperand);
  const Image dst = as_row_major<S, S>(call.dst, kScratchOperand2);
  ImageResult<S, S> result(call.weight);
  bool done = false;
  if constexpr (std::is_same_v<S, float>) {
    done = winograd_applies(p);
    if (done) conv_backward_weight_winograd(p, src, dst, result.value);
  }
  if (depthwise) {
    conv_backward_weight_depthwise<S>(p, src, dst, result.value);
  } else if (!done) {
    conv_backward_weight_gemm<S>(p, src, dst, result.value);
  }
  result.finish();
  return NG_SUCCESS;
}

template <class Body>
ngResult for_type(ngDataType type, const Body& body) {
  switch (type) {
    case NG_FLOAT16:
      return body(Half());
    case NG_BFLOAT16:
      return body(BFloat16());
    case NG_FLOAT32:
      return body(float());
    case NG_FLOAT64:
      return body(double());
    default:
      return fail(NG_ERROR_NOT_SUPPORTED, "convolution: type %d", type);
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
