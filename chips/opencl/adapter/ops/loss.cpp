// nll_loss and its backward over [N, C, *] (kernels/loss.cl).
#include "index_walk.h"

namespace ocl {
namespace {

enum Reduction { kNone = 0, kMean = 1, kSum = 2 };

// struct Nll of loss.cl.
struct Nll {
  int64_t classes, class_stride, weight_stride, ignore, has_weight, mean;
};

// The positions (N, *) of a loss with the class dimension taken out. Operands: input-like, target, out-like.
struct Positions {
  Walk walk{3};
  Nll nll;

  // `each`: the operand with one element per position, or nullptr.
  Positions(const Op& op, const fl_tensor& input, const fl_tensor* each) {
    const Shape in(input), at(op.input(1));
    const int class_dim = in.ndim > 1 ? 1 : 0;
    const bool weighted = op.has_input(2);
    nll = {in.sizes[class_dim], in.strides[class_dim], weighted ? Shape(op.input(2)).strides[0] : 0, op.attr_int(1),
           weighted, op.attr_int(0) == kMean};
    for (int d = 0, k = 0; d < in.ndim; ++d) {
      if (d == class_dim) continue;
      const int64_t strides[3] = {in.strides[d], at.strides[k], each != nullptr ? Shape(*each).strides[k] : 0};
      walk.add(in.sizes[d], strides);
      ++k;
    }
  }
};

enum Kernel { kEach, kParts, kFinish, kZero, kBackward };

const Program& loss_program(Op& op) {
  const Type index = type(op.input(1));
  return op.program(index == Type::Int64, [&](Source& source) {
    source.define("T", op.in);
    source.define("I", index);
    source.define("OPERANDS", int64_t{3});
    source.file("index_walk.cl");
    source.file("loss.cl");
    for (const char* name : {"nll_each", "nll_parts", "nll_finish", "nll_zero", "nll_backward"}) source.kernel(name);
  });
}

// All floats of one type: input-like, weight and the sum of weights.
bool fits(const Op& op, const fl_tensor& input) {
  return is_index(op.input(1)) && type(input) == op.in && (!op.has_input(2) || type(op.input(2)) == op.in);
}

fl_status nll_loss(Op& op) {
  const fl_tensor &self = op.input(0), &target = op.input(1), &out = op.output(0);
  if (!fits(op, self) || !op.has_output(1)) return FL_STATUS_UNIMPLEMENTED;
  const Program& program = loss_program(op);
  const bool each = op.attr_int(0) == kNone;
  const Positions positions(op, self, each ? &out : nullptr);
  const fl_tensor &weight = op.has_input(2) ? op.input(2) : self, &total = op.output(1);
  const auto words = positions.walk.words();
  const Bytes walk = bytes_of(words), nll{&positions.nll, sizeof(positions.nll)};
  const auto errors = op.at(op.stream.error_words(), 4);
  const int64_t n = positions.walk.numel();
  op.stream.errors_possible = true;
  if (each) {
    const Pieces pieces(op.device, n, 512);
    op.launch(program, kEach, {pieces.count}, {pieces.local}, self, target, weight, out, total, errors, walk, nll,
              pieces.chunk);
    return FL_STATUS_OK;
  }
  const int64_t parts = std::min<int64_t>(64, (n + 2047) / 2048);
  const int item = op.device.fp64 ? 8 : 4;
  const auto sums = op.at(op.stream.scratch(64 * 2 * 8), item);
  op.launch(program, kParts, {parts}, {1}, self, target, weight, out, total, sums, errors, walk, nll, parts);
  if (parts > 1) op.launch(program, kFinish, {1}, {1}, out, total, sums, parts, positions.nll.mean);
  return FL_STATUS_OK;
}

fl_status nll_loss_backward(Op& op) {
  const fl_tensor &grad = op.input(0), &target = op.input(1), &out = op.output(0);
  const bool mean = op.attr_int(0) == kMean;
  if (!fits(op, grad) || type(out) != op.in || (mean && !op.has_input(3))) return FL_STATUS_UNIMPLEMENTED;
  const Program& program = loss_program(op);
  const Positions positions(op, out, op.attr_int(0) == kNone ? &grad : nullptr);
  const fl_tensor &weight = op.has_input(2) ? op.input(2) : grad, &total = op.has_input(3) ? op.input(3) : grad;
  const Shape shape(out);
  Walk fill(3);
  int order[kMaxDims];
  order_by_stride(shape.ndim, shape.strides, order);
  for (int d = 0; d < shape.ndim; ++d) {
    const int64_t strides[3] = {shape.strides[order[d]], 0, 0};
    fill.add(shape.sizes[order[d]], strides);
  }
  const Pieces zeros(op.device, fill.numel(), 16384), pieces(op.device, positions.walk.numel(), 512);
  op.launch(program, kZero, {zeros.count}, {zeros.local}, out, bytes_of(fill.words()), zeros.chunk);
  op.stream.errors_possible = true;
  op.launch(program, kBackward, {pieces.count}, {pieces.local}, grad, target, weight, total, out,
            op.at(op.stream.error_words(), 4), bytes_of(positions.walk.words()),
            Bytes{&positions.nll, sizeof(positions.nll)}, pieces.chunk);
  return FL_STATUS_OK;
}

OCL_KERNEL("nll_loss", kFloatTypes, nll_loss);
OCL_KERNEL("nll_loss_backward", kFloatTypes, nll_loss_backward);

}  // namespace
}  // namespace ocl
