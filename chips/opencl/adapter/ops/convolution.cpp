// The UniOps convolution, convolution_backward_input and convolution_backward_weight: reads the attributes, brings them
// to the canonical form and picks an implementation by device type. GPU devices take kernels/conv_direct.cl.
#include "convolution.h"

namespace ocl {

void add_conv_lines(Source& source, Type type) {
  const bool wide = type == Type::Float64;
  source.define("T", type);
  source.define("LINE", wide ? Type::Float64 : Type::Float32);
  source.define("LANES", conv_lanes(type));
  source.define("VEC", std::string(wide ? "double8" : "float16"));
  source.define("NUMBER", std::string(wide ? "double" : "float"));
  source.file("conv_lines.cl");
}

namespace {

constexpr int64_t kMaxElements = int64_t{1} << 31;  // extents are int32 in the kernels

ConvImage image_of(const fl_tensor& t, int spatial) {
  ConvImage image{};
  image.batch_stride = t.strides[0], image.channel_stride = t.strides[1];
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    image.size[d] = from >= 0 ? t.sizes[2 + from] : 1;
    image.stride[d] = from >= 0 ? t.strides[2 + from] : 0;
  }
  return image;
}

bool transposed(const Op& op) { return op.attr_int(1 + 3 * static_cast<int>(op.attr_int(0))) != 0; }

ConvProblem make_problem(const Op& op, const fl_tensor& src, const fl_tensor& dst, const fl_tensor& weight) {
  const int spatial = static_cast<int>(op.attr_int(0));
  ConvProblem p{};
  p.batch = src.sizes[0], p.in_channels = src.sizes[1], p.out_channels = dst.sizes[1];
  p.groups = op.attr_int(2 + 4 * spatial);
  p.src = image_of(src, spatial), p.dst = image_of(dst, spatial), p.weight = image_of(weight, spatial);
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    p.kernel[d] = p.weight.size[d];
    p.stride[d] = from >= 0 ? op.attr_int(1 + from) : 1;
    p.padding[d] = from >= 0 ? op.attr_int(1 + spatial + from) : 0;
    p.dilation[d] = from >= 0 ? op.attr_int(1 + 2 * spatial + from) : 1;
  }
  return p;
}

bool supported(const Op& op) {
  const int64_t spatial = op.attr_int(0);
  if (spatial < 1 || spatial > 3) return false;
  for (int i = 0; i < op.call.num_inputs; ++i) {
    if (op.has_input(i) && numel(op.input(i)) >= kMaxElements) return false;
  }
  return numel(op.output(0)) < kMaxElements;
}

// direct_t of kernels/conv_direct.cl
struct DirectArgs {
  int64_t in_n, in_c, in[3], out_n, out_c, out[3], weight_o, weight_i, weight[3];
  int32_t batch, groups, group_in, group_out;
  int32_t extent_in[3], extent_out[3], kernel[3], step[3], padding[3], dilation[3];
  int32_t has_bias, reserved;
};

DirectArgs direct_args(const ConvProblem& p, const fl_tensor* bias) {
  DirectArgs a{};
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  a.in_n = p.src.batch_stride, a.in_c = p.src.channel_stride;
  a.out_n = p.dst.batch_stride, a.out_c = p.dst.channel_stride;
  a.weight_o = p.weight.batch_stride, a.weight_i = p.weight.channel_stride;
  a.batch = narrow(p.batch), a.groups = narrow(p.groups);
  a.group_in = narrow(p.group_in()), a.group_out = narrow(p.group_out());
  for (int d = 0; d < 3; ++d) {
    a.in[d] = p.src.stride[d], a.out[d] = p.dst.stride[d], a.weight[d] = p.weight.stride[d];
    a.extent_in[d] = narrow(p.src.size[d]), a.extent_out[d] = narrow(p.dst.size[d]);
    a.kernel[d] = narrow(p.kernel[d]), a.step[d] = narrow(p.stride[d]);
    a.padding[d] = narrow(p.padding[d]), a.dilation[d] = narrow(p.dilation[d]);
  }
  a.has_bias = bias != nullptr;
  return a;
}

const Program& direct_program(Op& op) {
  return op.program(0, [&](Source& source) {
    source.define("T", op.in);
    source.file("conv_direct.cl");
    source.kernel("conv_direct").kernel("conv_direct_input").kernel("conv_direct_weight");
  });
}

// which: 0 forward, 1 backward to the source
void direct(Op& op, int which, const ConvProblem& p, const fl_tensor& from, const fl_tensor& weight,
            const fl_tensor* bias, const fl_tensor& to) {
  const DirectArgs args = direct_args(p, bias);
  const int64_t count = numel(to);
  op.launch(direct_program(op), which, {count}, {64}, to, from, weight, bias != nullptr ? *bias : weight,
            Bytes{&args, sizeof(args)}, count);
}

void forward(Op& op, const fl_tensor& src, const fl_tensor& weight, const fl_tensor* bias, const fl_tensor& dst) {
  const ConvProblem p = make_problem(op, src, dst, weight);
  if (op.device.cpu) return conv_tile_forward(op, p, src, weight, bias, dst);
  direct(op, 0, p, src, weight, bias, dst);
}

void backward(Op& op, const fl_tensor& dst_grad, const fl_tensor& weight, const fl_tensor* bias,
              const fl_tensor& src_grad) {
  const ConvProblem p = make_problem(op, src_grad, dst_grad, weight);
  if (op.device.cpu) return conv_tile_backward(op, p, dst_grad, weight, bias, src_grad);
  direct(op, 1, p, dst_grad, weight, bias, src_grad);
}

fl_status convolution(Op& op) {
  if (!supported(op)) return FL_STATUS_UNIMPLEMENTED;
  const fl_tensor* bias = op.has_input(2) ? &op.input(2) : nullptr;
  if (bias != nullptr && (type(*bias) != op.in || (bias->sizes[0] > 1 && bias->strides[0] != 1)))
    return FL_STATUS_UNIMPLEMENTED;
  if (transposed(op)) {
    backward(op, op.input(0), op.input(1), bias, op.output(0));
  } else {
    forward(op, op.input(0), op.input(1), bias, op.output(0));
  }
  return FL_STATUS_OK;
}

fl_status convolution_backward_input(Op& op) {
  if (!supported(op)) return FL_STATUS_UNIMPLEMENTED;
  if (transposed(op)) {
    forward(op, op.input(0), op.input(1), nullptr, op.output(0));
  } else {
    backward(op, op.input(0), op.input(1), nullptr, op.output(0));
  }
  return FL_STATUS_OK;
}

fl_status convolution_backward_weight(Op& op) {
  if (!supported(op)) return FL_STATUS_UNIMPLEMENTED;
  const fl_tensor &weight = op.output(0), &dst_grad = transposed(op) ? op.input(1) : op.input(0),
                  &src = transposed(op) ? op.input(0) : op.input(1);
  const ConvProblem p = make_problem(op, src, dst_grad, weight);
  if (op.device.cpu) {
    const bool depthwise = p.group_in() == 1 && p.group_out() < 8 && p.groups > 1;
    (depthwise ? conv_depthwise_weight : conv_weight)(op, p, dst_grad, src, weight);
    return FL_STATUS_OK;
  }
  const DirectArgs args = direct_args(p, nullptr);
  const int64_t count = numel(weight);
  op.launch(direct_program(op), 2, {count}, {64}, weight, dst_grad, src, Bytes{&args, sizeof(args)}, count);
  return FL_STATUS_OK;
}

OCL_KERNEL("convolution", kFloatTypes, convolution);
OCL_KERNEL("convolution_backward_input", kFloatTypes, convolution_backward_input);
OCL_KERNEL("convolution_backward_weight", kFloatTypes, convolution_backward_weight);

}  // namespace
}  // namespace ocl
