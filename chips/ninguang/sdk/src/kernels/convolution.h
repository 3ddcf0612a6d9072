// A convolution in one canonical form: source [N, IC, in], destination [N, OC, out], weight [OC, IC / groups, kernel]
// with exactly three spatial dims. A transposed convolution is the same form with source and destination swapped.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "conv_patch.h"
#include "image.h"

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

// Backward to the data with strides: source positions of one residue class modulo the stride meet the same taps, and
// are a convolution with steps of one over the destination.
struct ConvPhase {
  int64_t first[3];           // its first source position
  ConvGrid grid;              // batch_stride is the caller's
  std::vector<int64_t> taps;  // numbers of the kernel's taps, in grid.taps' order
};

// Calls body for each class with positions and taps. True if some positions meet no tap: their gradient is zero.
bool for_phases(const ConvProblem& p, const std::function<void(const ConvPhase&)>& body);

// ---- implicit matrix products (convolution_gemm.cpp): every float type, row-major ----
template <class S>
void conv_forward_gemm(const ConvProblem& p, const Image& src, const Image& weight, const Compute<S>* bias,
                       const Image& dst);
template <class S>
void conv_backward_data_gemm(const ConvProblem& p, const Image& dst_grad, const Image& weight, const Compute<S>* bias,
                             const Image& src_grad);
template <class S>
void conv_backward_weight_gemm(const ConvProblem& p, const Image& src, const Image& dst_grad, const Image& weight_grad);

// ---- the same for channels-last images and weights (convolution_pixels.cpp) ----
template <class S>
void conv_forward_pixels(const ConvProblem& p, const Image& src, const Image& weight, const Compute<S>* bias,
                         const Image& dst);
template <class S>
void conv_backward_data_pixels(const ConvProblem& p, const Image& dst_grad, const Image& weight, const Compute<S>* bias,
                               const Image& src_grad);
template <class S>
void conv_backward_weight_pixels(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                 const Image& weight_grad);

// ---- few channels per group (convolution_depthwise.cpp): row-major, or for the first two one channel per group
// and both images channels-last; the weight is row-major ----
bool depthwise_applies(const ConvProblem& p);
template <class S>
void conv_forward_depthwise(const ConvProblem& p, const Image& src, const Image& weight, const Compute<S>* bias,
                            const Image& dst);
template <class S>
void conv_backward_data_depthwise(const ConvProblem& p, const Image& dst_grad, const Image& weight,
                                  const Compute<S>* bias, const Image& src_grad);
template <class S>
void conv_backward_weight_depthwise(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                    const Image& weight_grad);

// ---- Winograd: float32, 3 x 3 with steps of one ----
bool winograd_suits(const ConvProblem& p);
// Row-major, needs AVX-512 (convolution_winograd.cpp, convolution_winograd_weight.cpp).
bool winograd_applies(const ConvProblem& p);
void conv_forward_winograd(const ConvProblem& p, const Image& src, const Image& weight, const float* bias,
                           const Image& dst);
void conv_backward_data_winograd(const ConvProblem& p, const Image& dst_grad, const Image& weight, const float* bias,
                                 const Image& src_grad);
void conv_backward_weight_winograd(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                   const Image& weight_grad);
// Channels-last images and weights (convolution_winograd_pixels.cpp).
void conv_forward_winograd_pixels(const ConvProblem& p, const Image& src, const Image& weight, const float* bias,
                                  const Image& dst);
void conv_backward_data_winograd_pixels(const ConvProblem& p, const Image& dst_grad, const Image& weight,
                                        const float* bias, const Image& src_grad);
void conv_backward_weight_winograd_pixels(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                          const Image& weight_grad);

}  // namespace ng
