// Random tensors: element i is made from (seed, offset, i) alone, whatever the layout, the device and the number of
// work-items (kernels/random.cl). Attributes 0 and 1 are seed and offset. The definitions are in uniops.yaml.
#include <cmath>
#include <limits>

#include "half_value.h"
#include "index_walk.h"

namespace ocl {
namespace {

// ---- rounding to a type on the host

float value_of(Type type, uint16_t bits) { return type == Type::Float16 ? half_value(bits) : bfloat_value(bits); }

// The bits of a 16-bit type nearest to a finite value, half to even: magnitudes are in the order of their bits.
uint16_t nearest_bits(Type type, double value) {
  const double magnitude = std::fabs(value);
  uint16_t low = 0, high = type == Type::Float16 ? 0x7c00 : 0x7f80;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    if (value_of(type, middle) <= magnitude) low = middle;
    else high = middle;
  }
  const double below = value_of(type, low);
  const double above = std::isinf(value_of(type, high)) ? std::ldexp(1.0, type == Type::Float16 ? 16 : 128)
                                                        : value_of(type, high);
  const double down = magnitude - below, up = above - magnitude;
  const uint16_t bits = down < up || (down == up && (low & 1) == 0) ? low : high;
  return static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0));
}

double round_to(Type type, double value) {
  if (type == Type::Float64 || !std::isfinite(value)) return value;
  if (type == Type::Float32) return static_cast<float>(value);
  return value_of(type, nearest_bits(type, value));
}

// The next number of the type from `value`, one of its own, in the direction of `towards`.
double neighbour(Type type, double value, double towards) {
  if (type == Type::Float64) return std::nextafter(value, towards);
  if (type == Type::Float32) return std::nextafter(static_cast<float>(value), static_cast<float>(towards));
  if (value == towards) return value;
  if (value == 0) return value_of(type, static_cast<uint16_t>(towards < 0 ? 0x8001 : 1));
  const uint16_t bits = nearest_bits(type, value);
  const bool outwards = (towards > value) == (value > 0);
  return value_of(type, static_cast<uint16_t>(outwards ? bits + 1 : bits - 1));
}

// ---- the launch

// u < p for u = k * 2^-24 is k < this.
int64_t threshold_of(double p) {
  if (!(p > 0)) return 0;
  return p >= 1 ? int64_t{1} << 24 : static_cast<int64_t>(std::ceil(std::ldexp(p, 24)));
}

template <class... Args>
fl_status fill(Op& op, const char* kind, Type p_type, const Args&... args) {
  const fl_tensor& out = op.output(0);
  const bool strided = !dense(out);
  const std::string name = kind;
  const bool wide = name == "RANDOM_INT" || (op.in == Type::Float64 && (name == "UNIFORM" || name == "NORMAL" ||
                                                                       name == "EXPONENTIAL"));
  const auto& program = op.program(static_cast<uint64_t>(p_type) * 2 + strided, [&](Source& source) {
    source.define("T", op.in);
    source.define(kind, int64_t{1});
    if (wide) source.define("WIDE", int64_t{1});
    if (p_type != Type::None) source.define("P", p_type);
    if (strided) {
      source.define("STRIDED", int64_t{1});
      source.define("OPERANDS", int64_t{1});
      source.file("index_walk.cl");
    }
    source.file("philox.cl");
    source.file("random.cl");
    source.kernel("random_fill");
  });
  const int64_t n = numel(out), words = op.device.cpu ? 64 : 4, each = wide ? words / 2 : words;
  const Pieces pieces(op.device, (n + each - 1) / each, 32);
  const Extent global{pieces.count}, local{pieces.local};
  const int64_t seed = op.attr_int(0), offset = op.attr_int(1);
  if (!strided) {
    op.launch(program, 0, global, local, out, seed, offset, n, pieces.chunk, args...);
    return FL_STATUS_OK;
  }
  Walk walk(1);
  for (int d = 0; d < out.ndim; ++d) walk.add(out.sizes[d], &out.strides[d]);
  op.launch(program, 0, global, local, out, seed, offset, n, pieces.chunk, bytes_of(walk.words()), args...);
  return FL_STATUS_OK;
}

fl_status uniform(Op& op) {
  const double from = op.attr_float(2), end = op.attr_float(3), to = round_to(op.in, end);
  // Rounding may have moved `to` up or down; the last number must be below both.
  const double last = to < end || from == end ? to : neighbour(op.in, to, from);
  return fill(op, "UNIFORM", Type::None, Value(op.in, from), Value(op.in, end - from), Value(op.in, last));
}

fl_status normal(Op& op) {
  return fill(op, "NORMAL", Type::None, Value(op.in, op.attr_float(2)), Value(op.in, op.attr_float(3)),
              Value(op.in, 0.0));
}

fl_status exponential(Op& op) {
  const double least = op.in == Type::Float64   ? std::numeric_limits<double>::min()
                       : op.in == Type::Float16 ? 0x1p-14
                                                : std::numeric_limits<float>::min();
  return fill(op, "EXPONENTIAL", Type::None, Value(op.in, op.attr_float(2)), Value(op.in, least), Value(op.in, 0.0));
}

fl_status bernoulli(Op& op) {
  if (!op.has_input(0)) return fill(op, "BERNOULLI", Type::None, threshold_of(op.attr_float(2)));
  const fl_tensor& p = op.input(0);
  if ((bit(type(p)) & (bit(Type::Float32) | bit(Type::Float64))) == 0 || !dense(p)) return FL_STATUS_UNIMPLEMENTED;
  return fill(op, "BERNOULLI_EACH", type(p), p);
}

fl_status random_int(Op& op) {
  const auto range = static_cast<uint64_t>(op.attr_int(3));
  const auto inverse = range == 0 ? uint64_t{0} : ~uint64_t{0} / range;
  return fill(op, "RANDOM_INT", Type::None, op.attr_int(2), static_cast<int64_t>(range),
              static_cast<int64_t>(inverse));
}

fl_status dropout(Op& op) {
  if (!dense(op.input(0)) || !dense(op.output(0)) || !dense(op.output(1))) return FL_STATUS_UNIMPLEMENTED;
  const double p = op.attr_float(2);
  const Value scale(op.in, p < 1 ? 1 / (1 - p) : 0.0);
  return fill(op, "DROPOUT", Type::None, op.input(0), op.output(1), threshold_of(static_cast<float>(p)), scale);
}

OCL_KERNEL("uniform", kFloatTypes, uniform);
OCL_KERNEL("normal", kFloatTypes, normal);
OCL_KERNEL("exponential", kFloatTypes, exponential);
OCL_KERNEL("bernoulli", kAllTypes, bernoulli);
OCL_KERNEL("random_int", kAllTypes, random_int);
OCL_KERNEL("dropout", kFloatTypes, dropout);

}  // namespace
}  // namespace ocl
