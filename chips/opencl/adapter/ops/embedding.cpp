// embedding_backward: sums the gradient's rows into the rows of the weight that they came from, in their own order
// (kernels/embedding.cl). The forward is index_select.
#include "index_walk.h"

namespace ocl {
namespace {

fl_status embedding_backward(Op& op) {
  const fl_tensor &grad = op.input(0), &index = op.input(1), &out = op.output(0);
  if (out.ndim != 2 || grad.ndim != index.ndim + 1 || !is_index(index) || type(grad) != type(out))
    return FL_STATUS_UNIMPLEMENTED;
  const Shape index_shape(index);
  const int last = grad.ndim - 1;
  Walk walk(2);
  for (int d = 0; d < last; ++d) {
    const int64_t strides[2] = {grad.strides[d], index_shape.strides[d]};
    walk.add(grad.sizes[d], strides);
  }
  const bool wide = type(index) == Type::Int64;
  const auto& program = op.program(wide, [&](Source& source) {
    source.define("T", op.in);
    source.define("I", type(index));
    source.define("OPERANDS", int64_t{2});
    source.file("index_walk.cl");
    source.file("embedding.cl");
    source.kernel("embedding_group");
    source.kernel("embedding_sum");
  });
  struct {
    int64_t rows, columns, grad_stride, row_stride, column_stride, scaled;
  } sum{out.sizes[0], out.sizes[1], grad.strides[last], out.strides[0], out.strides[1], op.attr_int(1)};
  const auto starts = op.at(op.stream.scratch(static_cast<uint64_t>(sum.rows + 2 + walk.numel()) * 8), 8);
  op.stream.errors_possible = true;
  op.launch(program, 0, {1}, {1}, index, starts, op.at(op.stream.error_words(), 4), bytes_of(walk.words()), sum.rows,
            op.attr_int(0));
  const Bytes what{&sum, sizeof(sum)};
  if (op.device.cpu) {
    const Pieces pieces(op.device, sum.rows, std::max<int64_t>(1, 4096 / sum.columns));
    op.launch(program, 1, {pieces.count}, {1}, grad, starts, out, what, pieces.chunk);
  } else {
    op.launch(program, 1, {sum.columns, sum.rows}, {64, 1}, grad, starts, out, what, int64_t{1});
  }
  return FL_STATUS_OK;
}

OCL_KERNEL("embedding_backward", kFloatTypes, embedding_backward);

}  // namespace
}  // namespace ocl
