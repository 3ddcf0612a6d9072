// batch_norm and batch_norm_backward over images of any strides: statistics by a reduction, factors by channel, and one
// pass that applies them.
#include "batch_norm.h"

#include <algorithm>

namespace ocl {

// ---------------------------------------------------------------- rows of images

void ChannelRows::choose_mode(const Device& device) {
  bool dense = true;
  for (int k = 0; k < axes.operands; ++k) dense = dense && (step[k] == 1 || length == 1);
  mode = !device.cpu ? RowMode::Group : dense ? RowMode::Dense : RowMode::Strided;
}

ChannelRows::ChannelRows(const Device& device, const fl_tensor* const* images, int operands) : axes(operands) {
  const auto strides = [&](int d, int k) { return images[k < operands ? k : operands - 1]->strides[d]; };
  const fl_tensor& first = *images[0];
  channels = first.sizes[1];
  for (int d = 0; d < first.ndim; ++d)
    if (d != 1) axes.add(first.sizes[d], {strides(d, 0), strides(d, 1), strides(d, operands - 1)});
  axes.order();
  bool planes = axes.dims > 0 && axes.size[axes.dims - 1] > 1, pixels = true;
  for (int k = 0; k < operands; ++k) {
    planes = planes && axes.stride[k][axes.dims - 1] == 1;
    pixels = pixels && (strides(1, k) == 1 || channels == 1);
  }
  along = pixels && !planes;
  if (along) {
    length = channels;
    for (int k = 0; k < operands; ++k) step[k] = 1;
  } else {
    if (axes.dims > 0) {
      --axes.dims;
      length = axes.size[axes.dims];
      for (int k = 0; k < operands; ++k) step[k] = axes.stride[k][axes.dims];
    }
    axes.size[axes.dims] = channels;  // the fastest, and kept apart
    for (int k = 0; k < operands; ++k) axes.stride[k][axes.dims] = strides(1, k);
    ++axes.dims;
  }
  count = axes.count();
  choose_mode(device);
}

ChannelRows::ChannelRows(const Device& device, int operands, int64_t rows, int64_t n) : axes(operands) {
  channels = rows;
  along = n == 1;
  length = along ? rows : n;
  if (!along) axes.add(rows, {n, n, n});
  count = axes.count();
  for (int k = 0; k < operands; ++k) step[k] = 1;
  choose_mode(device);
}

const Program& apply_program(Op& op, const ChannelRows& rows, bool weighted) {
  const int operands = rows.axes.operands, dims = dims_for(rows.axes.dims);
  const uint64_t key = uint64_t{2} << 56 | static_cast<uint64_t>(rows.mode) << 8 | (dims == kMaxDims ? 8 : 0) |
                       (operands == 3 ? 4 : 0) | (rows.along ? 2 : 0) | (weighted ? 1 : 0);
  return op.program(key, [&](Source& source) {
    const Type acc = computing_type(op.in);
    define_mode(source, rows.mode);
    source.define("T", op.in).define("D", op.in).define("A", acc).define("DA", acc);
    source.define("OPERANDS", int64_t{operands}).define("DIMS", int64_t{dims});
    if (rows.along) source.define("ALONG", int64_t{1});
    if (weighted) source.define("WEIGHTED", int64_t{1});
    if (operands == 3) source.define("BACKWARD", int64_t{1});
    source.file("reduce_row.cl").file("batch_norm.cl").kernel(operands == 3 ? "backward_apply" : "scale_shift");
  });
}

void apply_scale_shift(Op& op, const ChannelRows& rows, const fl_tensor& x, const fl_tensor& out, const Place& scale,
                       const Place& shift) {
  const int item = size_of(computing_type(op.in));
  const RowGrid grid = row_grid(op.device, rows.mode, rows.count, rows.length);
  op.launch(apply_program(op, rows, false), 0, grid.global, grid.local, x, out, Op::at(scale, item),
            Op::at(shift, item), PackedAxes(rows.axes, dims_for(rows.axes.dims)).bytes(), rows.count, rows.channels,
            rows.length, rows.step[0], rows.step[1]);
}

void apply_backward(Op& op, const ChannelRows& rows, const fl_tensor& grad, const fl_tensor& x, const fl_tensor& out,
                    const Place& factors, bool weighted) {
  const RowGrid grid = row_grid(op.device, rows.mode, rows.count, 2 * rows.length);
  op.launch(apply_program(op, rows, weighted), 0, grid.global, grid.local, grad, x, out,
            Op::at(factors, size_of(computing_type(op.in))), PackedAxes(rows.axes, dims_for(rows.axes.dims)).bytes(),
            rows.count, rows.channels, rows.length, rows.step[0], rows.step[1], rows.step[2]);
}

namespace {

// ---------------------------------------------------------------- forward

const fl_tensor* input_or_null(const Op& op, int i) { return op.has_input(i) ? &op.input(i) : nullptr; }
const fl_tensor* output_or_null(const Op& op, int i) { return op.has_output(i) ? &op.output(i) : nullptr; }

// One value per channel, side by side.
bool is_vector(const fl_tensor* t) { return t == nullptr || t->ndim == 0 || t->sizes[0] == 1 || t->strides[0] == 1; }

// Channels are kept, all else is reduced; results go to two dense vectors.
Reducer channel_reducer(Op& op, const Reduction& what, const fl_tensor* const* images, int inputs) {
  Axes kept(inputs + 2), reduced(inputs + 2);
  const fl_tensor& first = *images[0];
  for (int d = 0; d < first.ndim; ++d) {
    const int64_t a = images[0]->strides[d], b = images[inputs - 1]->strides[d];
    if (d == 1 && inputs == 1) kept.add(first.sizes[d], {a, 1, 1});
    if (d == 1 && inputs == 2) kept.add(first.sizes[d], {a, b, 1, 1});
    if (d != 1) reduced.add(first.sizes[d], {a, b});
  }
  if (inputs == 1)
    for (int64_t& s : reduced.stride[1]) s = 0;
  return Reducer(op, what, inputs, kept, reduced);
}

// Threads over channels: small kernels of batch_norm_factors.cl.
RowGrid channel_grid(const Op& op, int64_t channels) {
  if (!op.device.cpu) return {{channels}, {64}};
  return {{(channels + 63) / 64}, {1}};
}

void define_vectors(Source& source, const Op& op, const fl_tensor* weight, const fl_tensor* bias) {
  source.define("A", computing_type(op.in)).define("W", weight != nullptr ? type(*weight) : op.in);
  source.define("BIAS", bias != nullptr ? type(*bias) : op.in);
  if (weight != nullptr) source.define("WEIGHTED", int64_t{1});
  if (bias != nullptr) source.define("BIASED", int64_t{1});
}

// The types of up to six optional operands as a key.
uint64_t types_key(std::initializer_list<const fl_tensor*> tensors) {
  uint64_t key = 0;
  for (const fl_tensor* t : tensors) key = key << 5 | (t == nullptr ? 31 : static_cast<uint64_t>(type(*t)));
  return key;
}

fl_status batch_norm(Op& op) {
  const fl_tensor &x = op.input(0), &out = op.output(0);
  const fl_tensor *weight = input_or_null(op, 1), *bias = input_or_null(op, 2);
  const fl_tensor *mean = input_or_null(op, 3), *var = input_or_null(op, 4);
  const bool training = op.attr_int(0) != 0;
  const bool running = training && mean != nullptr && var != nullptr && op.has_output(3) && op.has_output(4);
  for (const fl_tensor* t : {weight, bias, mean, var})
    if (!is_vector(t)) return FL_STATUS_UNIMPLEMENTED;
  const int64_t channels = x.sizes[1], n = numel(x) / channels;
  const Type acc = computing_type(op.in);
  const auto bytes = [&](int64_t vectors) { return static_cast<uint64_t>(vectors * channels * size_of(acc)); };

  const fl_tensor* const images[] = {&x, &out};
  const Reduction variance = variance_reduction(acc, op.device.fp64);
  Reducer reducer = channel_reducer(op, variance, images, 1);
  // statistics: mean, var, scale, shift; then the reduction's own
  const uint64_t own = (bytes(4) + 63) / 64 * 64;
  const Place statistics = op.stream.scratch(own + static_cast<uint64_t>(training ? reducer.scratch_bytes() : 0));
  if (training) {
    const Operand image(x);
    reducer.run(&image, {statistics.plus(bytes(1)), acc}, {statistics, acc}, Place::of(x.memory),
                statistics.plus(own));
  }
  const fl_tensor* saved = output_or_null(op, 1);
  const uint64_t key = uint64_t{3} << 56 | types_key({weight, bias, mean, saved}) << 2 | (training ? 2 : 0) | running;
  const Program& program = op.program(key, [&](Source& source) {
    define_vectors(source, op, weight, bias);
    source.define("R", mean != nullptr ? type(*mean) : op.in).define("M", saved != nullptr ? type(*saved) : acc);
    source.define("M2", acc).define("GW", acc).define("GB", acc);
    if (!training) source.define("EVALUATION", int64_t{1});
    if (running) source.define("RUNNING", int64_t{1});
    source.file("batch_norm_factors.cl").kernel("forward_factors");
  });
  const auto or_x = [&](const fl_tensor* t) -> const fl_tensor& { return t != nullptr ? *t : x; };
  const RowGrid grid = channel_grid(op, channels);
  op.launch(program, 0, grid.global, grid.local, Op::at(statistics, size_of(acc)), or_x(weight), or_x(bias),
            or_x(mean), or_x(var), or_x(running ? &op.output(3) : nullptr), or_x(running ? &op.output(4) : nullptr),
            or_x(saved), or_x(output_or_null(op, 2)), channels, Value(acc, op.attr_float(1)),
            Value(acc, op.attr_float(2)), Value(acc, static_cast<double>(n) / static_cast<double>(n - 1)));
  apply_scale_shift(op, ChannelRows(op.device, images, 2), x, out, statistics.plus(bytes(2)),
                    statistics.plus(bytes(3)));
  return FL_STATUS_OK;
}

// ---------------------------------------------------------------- backward

const Program& backward_program(Op& op, const fl_tensor* weight, const fl_tensor& mean, const fl_tensor& invstd,
                                const fl_tensor* grad_weight, const fl_tensor* grad_bias, bool training, bool sums) {
  const uint64_t key = uint64_t{4} << 56 | types_key({weight, &mean, &invstd, grad_weight, grad_bias}) << 2 |
                       (training ? 2 : 0) | sums;
  return op.program(key, [&](Source& source) {
    const Type acc = computing_type(op.in);
    define_vectors(source, op, weight, nullptr);
    source.define("R", acc).define("M", type(mean)).define("M2", type(invstd));
    source.define("GW", grad_weight != nullptr ? type(*grad_weight) : acc);
    source.define("GB", grad_bias != nullptr ? type(*grad_bias) : acc);
    if (grad_weight != nullptr) source.define("GRAD_WEIGHT", int64_t{1});
    if (grad_bias != nullptr) source.define("GRAD_BIAS", int64_t{1});
    if (!training) source.define("EVALUATION", int64_t{1});
    if (sums) source.define("SUMS", int64_t{1});
    source.file("batch_norm_factors.cl").kernel("backward_centre").kernel("backward_factors");
  });
}

fl_status batch_norm_backward(Op& op) {
  const fl_tensor &grad = op.input(0), &x = op.input(1), &mean = op.input(3), &invstd = op.input(4);
  const fl_tensor* weight = input_or_null(op, 2);
  const fl_tensor *out = output_or_null(op, 0), *grad_weight = output_or_null(op, 1);
  const fl_tensor* grad_bias = output_or_null(op, 2);
  const bool training = op.attr_int(0) != 0, sums = training || grad_weight != nullptr || grad_bias != nullptr;
  for (const fl_tensor* t : {weight, &mean, &invstd, grad_weight, grad_bias})
    if (!is_vector(t)) return FL_STATUS_UNIMPLEMENTED;
  const int64_t channels = x.sizes[1], n = numel(x) / channels;
  const Type acc = computing_type(op.in);
  const int item = size_of(acc);
  const auto bytes = [&](int64_t vectors) { return static_cast<uint64_t>(vectors * channels * item); };

  const fl_tensor* const images[] = {&grad, &x, out};
  const Reduction products = products_reduction(acc);
  Reducer reducer = channel_reducer(op, products, images, 2);
  // factors: a, b, c, mean, and the two sums; then the reduction's own
  const uint64_t own = (bytes(6) + 63) / 64 * 64;
  const Place factors = op.stream.scratch(own + static_cast<uint64_t>(sums ? reducer.scratch_bytes() : 0));
  const Program& program = backward_program(op, weight, mean, invstd, grad_weight, grad_bias, training, sums);
  const RowGrid grid = channel_grid(op, channels);
  if (sums) {
    op.launch(program, 0, grid.global, grid.local, Op::at(factors, item), mean, channels);
    const Operand inputs[] = {grad, x};
    reducer.run(inputs, {factors.plus(bytes(4)), acc}, {factors.plus(bytes(5)), acc}, factors.plus(bytes(3)),
                factors.plus(own));
  }
  op.launch(program, 1, grid.global, grid.local, Op::at(factors, item), weight != nullptr ? *weight : x, invstd,
            grad_weight != nullptr ? *grad_weight : grad, grad_bias != nullptr ? *grad_bias : grad, channels,
            Value(acc, op.attr_float(1)), Value(acc, 1 / static_cast<double>(n)));
  if (out == nullptr) return FL_STATUS_OK;
  if (training) {
    apply_backward(op, ChannelRows(op.device, images, 3), grad, x, *out, factors, false);
  } else {
    // In evaluation x has no part, not even an infinite one.
    const fl_tensor* const pair[] = {&grad, out};
    apply_scale_shift(op, ChannelRows(op.device, pair, 2), grad, *out, factors, factors.plus(bytes(1)));
  }
  return FL_STATUS_OK;
}

OCL_KERNEL("batch_norm", kFloatTypes, batch_norm);
OCL_KERNEL("batch_norm_backward", kFloatTypes, batch_norm_backward);

}  // namespace
}  // namespace ocl
