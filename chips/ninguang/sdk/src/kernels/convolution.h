// A convolution in one canonical form: source [N, IC, in], destination [N, OC, out], weight [OC, IC / groups, kernel]
// with exactly three spatial dims. A transposed convolution is the same form with source and destination swapped.
#pragma once
#include <cstdint>

#include "kernel.h"

namespace ng {

struct ConvProblem {
  int64_t batch, groups, in_channels, out_channels;
  int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];

  int64_t in_plane() const { return in[0] * in[1] * in[2]; }
  int64_t out_plane() const { return out[0] * out[1] * out[2]; }
  int64_t kernel_volume() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t group_in() const { return in_channels / groups; }
  int64_t group_out() const { return out_channels / groups; }
};

// A tensor [N, C, spatial…] (or the weight [OC, IC / groups, kernel…]) with its strides in elements.
struct ConvTensor {
  void* data;
  ngDataType type;
  int64_t batch_stride, channel_stride, stride[3];

  template <class T> T* as() const { return static_cast<T*>(data); }
};

enum class ConvLayout { kRowMajor, kChannelsLast, kOther };

// Of a dense tensor with these sizes; dims of size 1 have no say. Row-major wins where both fit.
ConvLayout conv_layout(const ConvTensor& t, int64_t batch, int64_t channels, const int64_t* spatial);
void set_row_major(ConvTensor& t, int64_t channels, const int64_t* spatial);

// ---- implicit matrix products (convolution_gemm.cpp): float32 and float64; planes dense and row-major ----
template <class T> void conv_forward_gemm(const ConvProblem& p, const ConvTensor& src, const ConvTensor& weight,
                                          const T* bias, const ConvTensor& dst);
template <class T> void conv_backward_data_gemm(const ConvProblem& p, const ConvTensor& dst_grad,
                                                const ConvTensor& weight, const T* bias, const ConvTensor& src_grad);
template <class T> void conv_backward_weight_gemm(const ConvProblem& p, const ConvTensor& src,
                                                  const ConvTensor& dst_grad, const ConvTensor& weight_grad);

}  // namespace ng
