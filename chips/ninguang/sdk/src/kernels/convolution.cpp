// The operators convolution, convolution_backward_input and convolution_backward_weight: reads the attributes, brings
// them to the canonical form and picks an implementation by type and layout.
#include "convolution.h"

#include <algorithm>

#include "half.h"
#include "parallel.h"
#include "scratch.h"

namespace ng {

ConvLayout conv_layout(const ConvTensor& t, int64_t batch, int64_t channels, const int64_t* spatial) {
  const int64_t sizes[5] = {batch, channels, spatial[0], spatial[1], spatial[2]};
  const int64_t strides[5] = {t.batch_stride, t.channel_stride, t.stride[0], t.stride[1], t.stride[2]};
  const auto dense = [&](const int* order) {
    int64_t expected = 1;
    for (int i = 4; i >= 0; --i) {
      const int d = order[i];
      if (sizes[d] != 1 && strides[d] != expected) return false;
      expected *= sizes[d];
    }
    return true;
  };
  const int row_major[5] = {0, 1, 2, 3, 4}, channels_last[5] = {0, 2, 3, 4, 1};
  if (dense(row_major)) return ConvLayout::kRowMajor;
  return dense(channels_last) ? ConvLayout::kChannelsLast : ConvLayout::kOther;
}

void set_row_major(ConvTensor& t, int64_t channels, const int64_t* spatial) {
  t.stride[2] = 1;
  t.stride[1] = spatial[2];
  t.stride[0] = spatial[1] * spatial[2];
  t.channel_stride = spatial[0] * t.stride[0];
  t.batch_stride = channels * t.channel_stride;
}

namespace {

ConvTensor conv_tensor(const Tensor& t) {
  ConvTensor result{t.data, t.type, t.strides[0], t.strides[1], {1, 1, 1}};
  const int spatial = t.ndim - 2;
  // Missing leading dims have size 1; their stride has no effect.
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    result.stride[d] = from >= 0 ? t.strides[2 + from] : 0;
  }
  return result;
}

// Size of the canonical dim d of t.
int64_t spatial_size(const Tensor& t, int d) {
  const int from = d - (3 - (t.ndim - 2));
  return from >= 0 ? t.sizes[2 + from] : 1;
}

ConvProblem conv_problem(const Args& args, const Tensor& src, const Tensor& dst, const Tensor& weight) {
  ConvProblem p{};
  const int spatial = static_cast<int>(args.i(0));
  p.batch = src.sizes[0], p.in_channels = src.sizes[1], p.out_channels = dst.sizes[1];
  p.groups = args.i(1 + 4 * spatial + 1);
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    p.in[d] = spatial_size(src, d), p.out[d] = spatial_size(dst, d), p.kernel[d] = spatial_size(weight, d);
    p.stride[d] = from >= 0 ? args.i(1 + from) : 1;
    p.padding[d] = from >= 0 ? args.i(1 + spatial + from) : 0;
    p.dilation[d] = from >= 0 ? args.i(1 + 2 * spatial + from) : 1;
  }
  return p;
}

bool is_transposed(const Args& args) { return args.i(1 + 3 * args.i(0)) != 0; }

// ---- operands in another type or layout ----

template <class Dst, class Src>
void copy_image(const ConvTensor& from, const ConvTensor& to, int64_t batch, int64_t channels, const int64_t* size) {
  parallel_for(batch * channels, 1.0 * size[0] * size[1] * size[2], [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / channels, c = i % channels;
      const Src* source = from.as<Src>() + n * from.batch_stride + c * from.channel_stride;
      Dst* target = to.as<Dst>() + n * to.batch_stride + c * to.channel_stride;
      for (int64_t z = 0; z < size[0]; ++z) {
        for (int64_t y = 0; y < size[1]; ++y) {
          const Src* s = source + z * from.stride[0] + y * from.stride[1];
          Dst* t = target + z * to.stride[0] + y * to.stride[1];
          for (int64_t x = 0; x < size[2]; ++x) t[x * to.stride[2]] = static_cast<Dst>(s[x * from.stride[2]]);
        }
      }
    }
  });
}

// An operand as row-major T: itself if it is so already, else a copy in scratch.
template <class T, class S>
ConvTensor as_row_major(const ConvTensor& t, int64_t batch, int64_t channels, const int64_t* size, ScratchSlot slot) {
  if (std::is_same_v<T, S> && conv_layout(t, batch, channels, size) == ConvLayout::kRowMajor) {
    ConvTensor same = t;
    set_row_major(same, channels, size);
    return same;
  }
  ConvTensor copy{scratch<T>(slot, batch * channels * size[0] * size[1] * size[2]), TypeOf<T>::value, 0, 0, {}};
  set_row_major(copy, channels, size);
  copy_image<T, S>(t, copy, batch, channels, size);
  return copy;
}

// Where to compute a result: in place if it is row-major T, else in scratch, to be copied by finish().
template <class T, class S> class Result {
 public:
  Result(const ConvTensor& t, int64_t batch, int64_t channels, const int64_t* size)
      : target_(t), batch_(batch), channels_(channels), size_(size) {
    in_place_ = std::is_same_v<T, S> && conv_layout(t, batch, channels, size) == ConvLayout::kRowMajor;
    value = t;
    set_row_major(value, channels, size);
    if (!in_place_) value.data = scratch<T>(kScratchResult, batch * value.batch_stride);
  }
  void finish() {
    if (!in_place_) copy_image<S, T>(value, target_, batch_, channels_, size_);
  }
  ConvTensor value;

 private:
  ConvTensor target_;
  int64_t batch_, channels_;
  const int64_t* size_;
  bool in_place_;
};

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
  ConvTensor src, dst, weight;
};

template <class S> ngResult run_forward(const ConvCall& call, const Tensor* bias) {
  using T = Compute<S>;
  const ConvProblem& p = call.problem;
  const ConvTensor src = as_row_major<T, S>(call.src, p.batch, p.in_channels, p.in, kScratchOperand);
  const ConvTensor weight = as_row_major<T, S>(call.weight, p.out_channels, p.group_in(), p.kernel, kScratchOperand2);
  Result<T, S> result(call.dst, p.batch, p.out_channels, p.out);
  conv_forward_gemm<T>(p, src, weight, bias ? bias_values<T, S>(*bias) : nullptr, result.value);
  result.finish();
  return NG_SUCCESS;
}

template <class S> ngResult run_backward_data(const ConvCall& call, const Tensor* bias) {
  using T = Compute<S>;
  const ConvProblem& p = call.problem;
  const ConvTensor dst = as_row_major<T, S>(call.dst, p.batch, p.out_channels, p.out, kScratchOperand);
  const ConvTensor weight = as_row_major<T, S>(call.weight, p.out_channels, p.group_in(), p.kernel, kScratchOperand2);
  Result<T, S> result(call.src, p.batch, p.in_channels, p.in);
  conv_backward_data_gemm<T>(p, dst, weight, bias ? bias_values<T, S>(*bias) : nullptr, result.value);
  result.finish();
  return NG_SUCCESS;
}

template <class S> ngResult run_backward_weight(const ConvCall& call) {
  using T = Compute<S>;
  const ConvProblem& p = call.problem;
  const ConvTensor src = as_row_major<T, S>(call.src, p.batch, p.in_channels, p.in, kScratchOperand);
  const ConvTensor dst = as_row_major<T, S>(call.dst, p.batch, p.out_channels, p.out, kScratchOperand2);
  Result<T, S> result(call.weight, p.out_channels, p.group_in(), p.kernel);
  conv_backward_weight_gemm<T>(p, src, dst, result.value);
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
  return {conv_problem(args, src, dst, weight), conv_tensor(src), conv_tensor(dst), conv_tensor(weight)};
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
