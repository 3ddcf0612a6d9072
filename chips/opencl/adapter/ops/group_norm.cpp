// group_norm and group_norm_backward over dense [N, C, HxW]; a group is a run of channels and so one dense row.
#include "batch_norm.h"

namespace ocl {
namespace {

struct Shape {
  int64_t batch, channels, plane, groups;
  explicit Shape(const Op& op)
      : batch(op.attr_int(0)), channels(op.attr_int(1)), plane(op.attr_int(2)), groups(op.attr_int(3)) {}
  int64_t group_size() const { return channels / groups * plane; }
};

const fl_tensor* input_or_null(const Op& op, int i) { return op.has_input(i) ? &op.input(i) : nullptr; }
const fl_tensor* output_or_null(const Op& op, int i) { return op.has_output(i) ? &op.output(i) : nullptr; }
bool is_vector(const fl_tensor* t) { return t == nullptr || t->ndim == 0 || t->sizes[0] == 1 || t->strides[0] == 1; }

RowGrid item_grid(const Op& op, int64_t items) {
  if (!op.device.cpu) return {{items}, {64}};
  return {{(items + 255) / 256}, {1}};
}

fl_status group_norm(Op& op) {
  const Shape s(op);
  const fl_tensor &x = op.input(0), &mean = op.output(1), &rstd = op.output(2);
  const fl_tensor *weight = input_or_null(op, 1), *bias = input_or_null(op, 2);
  if (!is_vector(weight) || !is_vector(bias)) return FL_STATUS_UNIMPLEMENTED;
  const Type acc = computing_type(op.in), w = weight != nullptr ? type(*weight) : op.in;
  const Type b = bias != nullptr ? type(*bias) : op.in, m = type(mean);
  const int item = size_of(acc);
  const int64_t count = s.batch * s.groups, all = s.batch * s.channels;

  Axes kept(3), reduced(3);
  kept.add(count, {s.group_size(), 1, 1});
  reduced.add(s.group_size(), {1});
  const Reduction variance = variance_reduction(acc, op.device.fp64);
  Reducer reducer(op, variance, 1, kept, reduced);
  const auto bytes = [&](int64_t values) { return static_cast<uint64_t>(values * item + 63) / 64 * 64; };
  const Place statistics = op.stream.scratch(bytes(2 * count) + bytes(2 * all) +
                                             static_cast<uint64_t>(reducer.scratch_bytes()));
  const Place factors = statistics.plus(bytes(2 * count));
  const Operand input(x);
  reducer.run(&input, {statistics.plus(static_cast<uint64_t>(count * item)), acc}, {statistics, acc},
              Place::of(x.memory), factors.plus(bytes(2 * all)));

  const uint64_t key = uint64_t{3} << 56 | static_cast<uint64_t>(w) << 24 | static_cast<uint64_t>(b) << 16 |
                       static_cast<uint64_t>(m) << 8 | (weight != nullptr ? 2 : 0) | (bias != nullptr ? 1 : 0);
  const Program& program = op.program(key, [&](Source& source) {
    source.define("A", acc).define("W", w).define("BIAS", b).define("M", m).define("FORWARD", int64_t{1});
    if (weight != nullptr) source.define("WEIGHTED", int64_t{1});
    if (bias != nullptr) source.define("BIASED", int64_t{1});
    source.file("group_norm_factors.cl").kernel("group_forward_factors");
  });
  const RowGrid grid = item_grid(op, all);
  op.launch(program, 0, grid.global, grid.local, Op::at(statistics, item), Op::at(factors, item),
            weight != nullptr ? *weight : x, bias != nullptr ? *bias : x, mean, rstd, s.batch, s.channels, s.groups,
            Value(acc, op.attr_float(4)));
  apply_scale_shift(op, ChannelRows(op.device, 2, all, s.plane), x, op.output(0), factors,
                    factors.plus(static_cast<uint64_t>(all * item)));
  return FL_STATUS_OK;
}

const Program& backward_program(Op& op, const fl_tensor* weight, Type m, const fl_tensor* grad_weight,
                                const fl_tensor* grad_bias) {
  const Type acc = computing_type(op.in), w = weight != nullptr ? type(*weight) : op.in;
  const Type gw = grad_weight != nullptr ? type(*grad_weight) : acc, gb = grad_bias != nullptr ? type(*grad_bias) : acc;
  const uint64_t key = uint64_t{4} << 56 | static_cast<uint64_t>(w) << 32 | static_cast<uint64_t>(gw) << 24 |
                       static_cast<uint64_t>(gb) << 16 | static_cast<uint64_t>(m) << 8 | (weight != nullptr ? 4 : 0) |
                       (grad_weight != nullptr ? 2 : 0) | (grad_bias != nullptr ? 1 : 0);
  return op.program(key, [&](Source& source) {
    source.define("A", acc).define("W", w).define("BIAS", w).define("M", m).define("GW", gw).define("GB", gb);
    if (weight != nullptr) source.define("WEIGHTED", int64_t{1});
    if (grad_weight != nullptr) source.define("GRAD_WEIGHT", int64_t{1});
    if (grad_bias != nullptr) source.define("GRAD_BIAS", int64_t{1});
    source.file("group_norm_factors.cl").kernel("group_backward_centre").kernel("group_backward_factors");
    source.kernel("group_parameter_gradients");
  });
}

fl_status group_norm_backward(Op& op) {
  const Shape s(op);
  const fl_tensor &grad = op.input(0), &x = op.input(1), &mean = op.input(2), &rstd = op.input(3);
  const fl_tensor* weight = input_or_null(op, 4);
  const fl_tensor *out = output_or_null(op, 0), *grad_weight = output_or_null(op, 1);
  const fl_tensor* grad_bias = output_or_null(op, 2);
  for (const fl_tensor* t : {weight, grad_weight, grad_bias})
    if (!is_vector(t)) return FL_STATUS_UNIMPLEMENTED;
  const Type acc = computing_type(op.in);
  const int item = size_of(acc);
  const int64_t all = s.batch * s.channels;

  Axes kept(4), reduced(4);
  kept.add(all, {s.plane, s.plane, 1, 1});
  reduced.add(s.plane, {1, 1});
  const Reduction products = products_reduction(acc);
  Reducer reducer(op, products, 2, kept, reduced);
  // factors: a, b, c, mean, weight, and the two sums; then the reduction's own
  const auto bytes = [&](int64_t vectors) { return static_cast<uint64_t>(vectors * all * item); };
  const uint64_t own = (bytes(7) + 63) / 64 * 64;
  const Place factors = op.stream.scratch(own + static_cast<uint64_t>(reducer.scratch_bytes()));
  const Program& program = backward_program(op, weight, type(mean), grad_weight, grad_bias);
  const auto factors_at = Op::at(factors, item);
  const RowGrid spread = item_grid(op, all), groups = item_grid(op, s.batch * s.groups);
  op.launch(program, 0, spread.global, spread.local, factors_at, mean, weight != nullptr ? *weight : x, s.batch,
            s.channels, s.groups);
  const Operand inputs[] = {grad, x};
  reducer.run(inputs, {factors.plus(bytes(5)), acc}, {factors.plus(bytes(6)), acc}, factors.plus(bytes(3)),
              factors.plus(own));
  if (grad_weight != nullptr || grad_bias != nullptr) {
    const RowGrid channels = item_grid(op, s.channels);
    op.launch(program, 2, channels.global, channels.local, factors_at, rstd,
              grad_weight != nullptr ? *grad_weight : grad, grad_bias != nullptr ? *grad_bias : grad, s.batch,
              s.channels, s.groups);
  }
  if (out == nullptr) return FL_STATUS_OK;
  op.launch(program, 1, groups.global, groups.local, factors_at, rstd, s.batch, s.channels, s.groups,
            Value(acc, 1 / static_cast<double>(s.group_size())));
  apply_backward(op, ChannelRows(op.device, 3, all, s.plane), grad, x, *out, factors, true);
  return FL_STATUS_OK;
}

OCL_KERNEL("group_norm", kFloatTypes, group_norm);
OCL_KERNEL("group_norm_backward", kFloatTypes, group_norm_backward);

}  // namespace
}  // namespace ocl
