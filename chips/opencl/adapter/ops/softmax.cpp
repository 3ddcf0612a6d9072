// softmax, log_softmax and their backward passes along one dim of tensors with any strides.
#include "reduce.h"

namespace ocl {
namespace {

// All dims but the softmax one, and how the kernel walks them.
struct Rows {
  Axes axes;
  RowMode mode = RowMode::Strided;
  int64_t count = 1, length = 1, step[3] = {};
  Rows(Op& op, const fl_tensor* const* tensors, int operands);
};

Rows::Rows(Op& op, const fl_tensor* const* tensors, int operands) : axes(operands) {
  const fl_tensor& t = *tensors[0];
  const auto dim = static_cast<int>(op.attr_int(0) < 0 ? op.attr_int(0) + t.ndim : op.attr_int(0));
  for (int d = 0; d < t.ndim; ++d) {
    int64_t strides[3] = {};
    for (int k = 0; k < operands; ++k) strides[k] = tensors[k]->strides[d];
    if (d != dim) {
      axes.add(t.sizes[d], {strides[0], strides[1], strides[operands - 1]});
      continue;
    }
    length = t.sizes[d];
    for (int k = 0; k < operands; ++k) step[k] = strides[k];
  }
  axes.order();
  bool dense = true, columns = axes.dims > 0 && axes.size[axes.dims - 1] >= 8;
  for (int k = 0; k < operands; ++k) {
    dense = dense && (step[k] == 1 || length == 1);
    columns = columns && axes.stride[k][axes.dims - 1] == 1;
  }
  count = axes.count();
  if (!op.device.cpu) {
    mode = columns && !dense ? RowMode::Item : RowMode::Group;
  } else if (dense && length > 1) {
    mode = RowMode::Dense;
  } else if (columns) {
    const int64_t width = axes.size[axes.dims - 1];
    mode = RowMode::Columns;
    count = count / width * ((width + 15) / 16);
  }
}

template <bool log, bool backward>
const Program& program(Op& op, const Rows& rows, int operands) {
  const int dims = dims_for(rows.axes.dims);
  return op.program(static_cast<uint64_t>(rows.mode) << 1 | (dims == kMaxDims), [&](Source& source) {
    const Type acc = computing_type(op.in);
    define_mode(source, rows.mode);
    source.define("T", op.in).define("D", op.out).define("A", acc).define("DA", acc);
    source.define("OPERANDS", int64_t{operands}).define("DIMS", int64_t{dims});
    if (log) source.define("LOG", int64_t{1});
    if (!backward && !log && op.in == op.out && acc == op.in) source.define("KEEP", int64_t{1});
    source.file("reduce_row.cl").file(backward ? "softmax_backward.cl" : "softmax.cl");
    source.kernel(backward ? "softmax_backward" : "softmax");
  });
}

RowGrid grid_of(const Op& op, const Rows& rows) {
  return row_grid(op.device, rows.mode, rows.count, rows.length * (rows.mode == RowMode::Columns ? 64 : 4));
}

template <bool log>
fl_status forward(Op& op) {
  const fl_tensor* const tensors[] = {&op.input(0), &op.output(0)};
  const Rows rows(op, tensors, 2);
  const Program& kernels = program<log, false>(op, rows, 2);
  const RowGrid grid = grid_of(op, rows);
  op.launch(kernels, 0, grid.global, grid.local, op.input(0), op.output(0),
            PackedAxes(rows.axes, dims_for(rows.axes.dims)).bytes(), rows.count, rows.length, rows.step[0],
            rows.step[1]);
  return FL_STATUS_OK;
}

template <bool log>
fl_status backward(Op& op) {
  const fl_tensor* const tensors[] = {&op.input(0), &op.input(1), &op.output(0)};
  const Rows rows(op, tensors, 3);
  const Program& kernels = program<log, true>(op, rows, 3);
  const RowGrid grid = grid_of(op, rows);
  op.launch(kernels, 0, grid.global, grid.local, op.input(0), op.input(1), op.output(0),
            PackedAxes(rows.axes, dims_for(rows.axes.dims)).bytes(), rows.count, rows.length, rows.step[0],
            rows.step[1], rows.step[2]);
  return FL_STATUS_OK;
}

constexpr uint32_t kFloat32 = bit(Type::Float32);
OCL_KERNEL("softmax", kFloatTypes, forward<false>);
OCL_KERNEL("softmax", kHalfTypes, forward<false>, kFloat32);
OCL_KERNEL("log_softmax", kFloatTypes, forward<true>);
OCL_KERNEL("log_softmax", kHalfTypes, forward<true>, kFloat32);
OCL_KERNEL("softmax_backward", kFloatTypes, backward<false>);
OCL_KERNEL("softmax_backward", kFloat32, backward<false>, kHalfTypes);
OCL_KERNEL("log_softmax_backward", kFloatTypes, backward<true>);
OCL_KERNEL("log_softmax_backward", kFloat32, backward<true>, kHalfTypes);

}  // namespace
}  // namespace ocl
