// layer_norm, rms_norm and their backward passes over dense [rows, columns]; rms_norm is layer_norm without the mean
// and the bias.
#include <algorithm>

#include "reduce.h"

namespace ocl {
namespace {

RowMode mode_of(const Op& op) { return op.device.cpu ? RowMode::Dense : RowMode::Group; }

Type type_or(const fl_tensor* t, Type missing) { return t != nullptr ? type(*t) : missing; }
const fl_tensor* input_or_null(const Op& op, int i) { return op.has_input(i) ? &op.input(i) : nullptr; }
const fl_tensor* output_or_null(const Op& op, int i) { return op.has_output(i) ? &op.output(i) : nullptr; }

// What both directions define. Types of operands are part of the key.
void define_rows(Source& source, const Op& op, bool centre) {
  define_mode(source, mode_of(op));
  source.define("T", op.in).define("D", op.in).define("A", computing_type(op.in));
  source.define("DA", computing_type(op.in));
  if (centre) source.define("CENTRE", int64_t{1});
}

template <bool centre>
fl_status forward(Op& op) {
  const fl_tensor *weight = input_or_null(op, 1), *bias = centre ? input_or_null(op, 2) : nullptr;
  const fl_tensor &mean = op.output(1), &rstd = op.output(centre ? 2 : 1);
  const Type w = type_or(weight, op.in), b = type_or(bias, op.in), m = type(rstd);
  const uint64_t key = static_cast<uint64_t>(w) << 24 | static_cast<uint64_t>(b) << 16 | static_cast<uint64_t>(m) << 8 |
                       (weight != nullptr ? 2 : 0) | (bias != nullptr ? 1 : 0);
  const Program& program = op.program(key, [&](Source& source) {
    define_rows(source, op, centre);
    source.define("W", w).define("BIAS", b).define("M", m).define("FORWARD", int64_t{1});
    if (weight != nullptr) source.define("WEIGHTED", int64_t{1});
    if (bias != nullptr) source.define("BIASED", int64_t{1});
    source.file("reduce_row.cl").file("layer_norm.cl").kernel("layer_norm");
  });
  const int64_t rows = op.attr_int(0), columns = op.attr_int(1);
  const RowGrid grid = row_grid(op.device, mode_of(op), rows, 3 * columns);
  const fl_tensor& x = op.input(0);
  op.launch(program, 0, grid.global, grid.local, x, weight != nullptr ? *weight : x, bias != nullptr ? *bias : x,
            op.output(0), mean, rstd, rows, columns, Value(computing_type(op.in), op.attr_float(2)));
  return FL_STATUS_OK;
}

// Sums the parts' gradients of a parameter: partial [parts, 2, columns] from `place`.
void gather(Op& op, const Place& place, Type acc, int64_t parts, int64_t columns, const fl_tensor& out) {
  Axes kept(3), reduced(3);
  const int64_t step = out.ndim > 0 ? out.strides[out.ndim - 1] : 1;
  kept.add(columns, {1, step, step});
  reduced.add(parts, {2 * columns});
  Reduction sum = sum_reduction(acc);
  sum.split = false;  // scratch memory holds the parts
  Reducer reducer(op, sum, 1, kept, reduced);
  const Operand partial(place, acc);
  reducer.run(&partial, out, out, place, place);
}

template <bool centre>
fl_status backward(Op& op) {
  const fl_tensor &grad = op.input(0), &x = op.input(1), &mean = op.input(2), &rstd = op.input(centre ? 3 : 2);
  const fl_tensor* weight = input_or_null(op, centre ? 4 : 3);
  const fl_tensor *out = output_or_null(op, 0), *grad_weight = output_or_null(op, 1);
  const fl_tensor* grad_bias = centre ? output_or_null(op, 2) : nullptr;
  const bool sums = grad_weight != nullptr || grad_bias != nullptr;
  if (out == nullptr && !sums) return FL_STATUS_OK;
  const Type acc = computing_type(op.in), w = type_or(weight, op.in), m = type(rstd);
  const uint64_t key = uint64_t{1} << 40 | static_cast<uint64_t>(w) << 16 | static_cast<uint64_t>(m) << 8 |
                       (weight != nullptr ? 4 : 0) | (out != nullptr ? 2 : 0) | (sums ? 1 : 0);
  const Program& program = op.program(key, [&](Source& source) {
    define_rows(source, op, centre);
    source.define("W", w).define("BIAS", w).define("M", m);
    if (weight != nullptr) source.define("WEIGHTED", int64_t{1});
    if (out != nullptr) source.define("GRAD_INPUT", int64_t{1});
    if (sums) source.define("SUMS", int64_t{1});
    source.file("reduce_row.cl").file("layer_norm.cl").kernel("layer_norm_backward");
  });
  const int64_t rows = op.attr_int(0), columns = op.attr_int(1);
  // With sums the parts are few, as each has its own.
  RowGrid grid = row_grid(op.device, mode_of(op), rows, 5 * columns);
  int64_t parts = rows;
  Place partial = Place::of(grad.memory);
  if (sums) {
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>(4 * op.device.compute_units, 256));
    parts = std::max<int64_t>(1, std::min({rows, most, rows * columns / 8192}));
    grid = row_grid(op.device, mode_of(op), parts, rows / parts * 5 * columns);
    partial = op.stream.scratch(static_cast<uint64_t>(parts * 2 * columns * size_of(acc)));
  }
  op.launch(program, 0, grid.global, grid.local, grad, x, mean, rstd, weight != nullptr ? *weight : x,
            out != nullptr ? *out : grad, Op::at(partial, size_of(acc)), rows, parts, columns);
  if (grad_weight != nullptr) gather(op, partial, acc, parts, columns, *grad_weight);
  const Place second = partial.plus(static_cast<uint64_t>(columns * size_of(acc)));
  if (grad_bias != nullptr) gather(op, second, acc, parts, columns, *grad_bias);
  return FL_STATUS_OK;
}

OCL_KERNEL("layer_norm", kFloatTypes, forward<true>);
OCL_KERNEL("layer_norm_backward", kFloatTypes, backward<true>);
OCL_KERNEL("rms_norm", kFloatTypes, forward<false>);
OCL_KERNEL("rms_norm_backward", kFloatTypes, backward<false>);

}  // namespace
}  // namespace ocl
