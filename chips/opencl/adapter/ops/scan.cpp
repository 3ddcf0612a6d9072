// Scans along one dim: cumsum, cumprod, cummax, cummin, logcumsumexp. Rows along the dim are independent; one is walked
// by one work-item, sixteen side by side where they lie so.
#include "reduce.h"

namespace ocl {
namespace {

enum Kind : int { kSum, kProduct, kExtreme, kLogSumExp };

// Sums and products of floats run in double where the device has it, of 16-bit floats in float.
Type scan_type(const Op& op, Kind kind) {
  if (kind == kExtreme) {
    if (op.in == Type::Int64 || op.in == Type::Float64) return op.in;
    return (bit(op.in) & kFloatTypes) != 0 ? Type::Float32 : Type::Int32;
  }
  return op.in == Type::Float32 && op.device.fp64 ? Type::Float64 : computing_type(op.in);
}

template <Kind kind, bool largest>
const Program& program(Op& op, RowMode mode, int dims) {
  return op.program(static_cast<uint64_t>(mode) << 1 | (dims == kMaxDims), [&](Source& source) {
    const Type acc = scan_type(op, kind);
    define_mode(source, mode);
    source.define("T", op.in).define("D", op.in).define("A", acc).define("DA", computing_type(op.in));
    source.define("OPERANDS", int64_t{3}).define("DIMS", int64_t{dims}).define("KIND", int64_t{kind});
    source.define("INDEX", mode == RowMode::Columns && size_of(acc) == 4 ? Type::Int32 : Type::Int64);
    source.define("REACHES(x, y)", std::string(largest ? "((x) >= (y))" : "((x) <= (y))"));
    source.file("reduce_row.cl").file("scan.cl").kernel("scan");
  });
}

template <Kind kind, bool largest>
fl_status scan(Op& op) {
  const fl_tensor &in = op.input(0), &out = op.output(0), &index = op.output(op.has_output(1) ? 1 : 0);
  const auto dim = static_cast<int>(op.attr_int(0) < 0 ? op.attr_int(0) + in.ndim : op.attr_int(0));
  Axes axes(3);
  for (int d = 0; d < in.ndim; ++d)
    if (d != dim) axes.add(in.sizes[d], {in.strides[d], out.strides[d], index.strides[d]});
  axes.order();
  const bool scalar = in.ndim == 0;
  const int64_t length = scalar ? 1 : in.sizes[dim], x_step = scalar ? 0 : in.strides[dim];
  const int64_t out_step = scalar ? 0 : out.strides[dim], index_step = scalar ? 0 : index.strides[dim];
  if (length >= int64_t{1} << 31) return FL_STATUS_UNIMPLEMENTED;

  bool columns = axes.dims > 0 && axes.size[axes.dims - 1] >= 8;
  for (int k = 0; k < 3 && columns; ++k) columns = axes.stride[k][axes.dims - 1] == 1;
  int64_t rows = axes.count();
  RowMode mode = RowMode::Item;
  if (op.device.cpu) {
    mode = columns ? RowMode::Columns : RowMode::Strided;
    const int64_t width = columns ? axes.size[axes.dims - 1] : 1;
    if (columns) rows = rows / width * ((width + 15) / 16);
  }
  const int dims = dims_for(axes.dims);
  const Program& kernels = program<kind, largest>(op, mode, dims);
  const RowGrid grid = row_grid(op.device, mode, rows, length * (columns ? 32 : 4));
  op.launch(kernels, 0, grid.global, grid.local, in, out, index, PackedAxes(axes, dims).bytes(), rows, length, x_step,
            out_step, index_step);
  return FL_STATUS_OK;
}

OCL_KERNEL("cumsum", kRealTypes, (scan<kSum, true>));
OCL_KERNEL("cumprod", kRealTypes, (scan<kProduct, true>));
OCL_KERNEL("cummax", kAllTypes, (scan<kExtreme, true>));
OCL_KERNEL("cummin", kAllTypes, (scan<kExtreme, false>));
OCL_KERNEL("logcumsumexp", kFloatTypes, (scan<kLogSumExp, true>));

}  // namespace
}  // namespace ocl
