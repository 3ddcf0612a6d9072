// A convolution in one canonical form: source [N, IC, in], destination [N, OC, out], weight [OC, IC / groups, kernel],
// with exactly three spatial dims. A transposed convolution is the same form with source and destination swapped.
#pragma once
#include "../kernel.h"

namespace ocl {

// An operand [batch, channels, z, y, x] with strides in elements.
struct ConvImage {
  int64_t size[3];
  int64_t batch_stride, channel_stride, stride[3];
};

struct ConvProblem {
  int64_t batch, groups, in_channels, out_channels;
  int64_t kernel[3], stride[3], padding[3], dilation[3];
  ConvImage src, dst, weight;  // of the weight: batch_stride is that of output, channel_stride of input channels

  int64_t group_in() const { return in_channels / groups; }
  int64_t group_out() const { return out_channels / groups; }
  int64_t kernel_volume() const { return kernel[0] * kernel[1] * kernel[2]; }
};

// What one pass of the tiled product does along a dim: source coordinate = position * step + first + tap * tap_step;
// the tap is number tap0 + tap * tap_stride of the weight's.
struct ConvDim {
  int64_t extent, grid, step, first, tap_step, taps;
  int64_t tap0 = 0, tap_stride = 1;
};

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }
inline int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// ---- CPU devices
// Lanes of a 64-byte vector of the computing type.
inline int64_t conv_lanes(Type type) { return type == Type::Float64 ? 8 : 16; }
// T, LINE, VEC … and conv_lines.cl, which the CPU kernels build on.
void add_conv_lines(Source& source, Type type);

// convolution_tile.cpp. bias: nullptr if there is none.
void conv_tile_forward(Op& op, const ConvProblem& p, const fl_tensor& src, const fl_tensor& weight,
                       const fl_tensor* bias, const fl_tensor& dst);
void conv_tile_backward(Op& op, const ConvProblem& p, const fl_tensor& dst_grad, const fl_tensor& weight,
                        const fl_tensor* bias, const fl_tensor& src_grad);
// Each output channel reads one input channel.
void conv_depthwise_weight(Op& op, const ConvProblem& p, const fl_tensor& dst_grad, const fl_tensor& src,
                           const fl_tensor& weight_grad);
// convolution_weight.cpp
void conv_weight(Op& op, const ConvProblem& p, const fl_tensor& dst_grad, const fl_tensor& src,
                 const fl_tensor& weight_grad);

}  // namespace ocl
