// How batch_norm and group_norm walk images to apply per-channel factors (kernels/batch_norm.cl).
#pragma once
#include "reduce.h"

namespace ocl {

struct ChannelRows {
  RowMode mode = RowMode::Strided;
  bool along = false;  // a row runs along the channels
  Axes axes;
  int64_t count = 1, channels = 1, length = 1, step[3] = {};

  // Images [N, C, *spatial] of equal sizes.
  ChannelRows(const Device& device, const fl_tensor* const* images, int operands);
  // Dense [channels, length].
  ChannelRows(const Device& device, int operands, int64_t rows, int64_t n);

 private:
  void choose_mode(const Device& device);
};

// The program of kernels/batch_norm.cl: kernel 0 is scale_shift (two operands), or backward_apply (three).
const Program& apply_program(Op& op, const ChannelRows& rows, bool weighted);
void apply_scale_shift(Op& op, const ChannelRows& rows, const fl_tensor& x, const fl_tensor& out, const Place& scale,
                       const Place& shift);
void apply_backward(Op& op, const ChannelRows& rows, const fl_tensor& grad, const fl_tensor& x, const fl_tensor& out,
                    const Place& factors, bool weighted);

}  // namespace ocl
