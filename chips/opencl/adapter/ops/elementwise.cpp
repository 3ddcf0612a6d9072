// Registers the rows of kernels/elementwise_table.cl and launches their kernels.
#include "elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

namespace ocl {
namespace {

constexpr uint32_t FLOATS = kFloatTypes, INTS = kIntTypes, REALS = kRealTypes, EVERY = kAllTypes;
constexpr uint32_t INTS_BOOL = kIntTypes | bit(Type::Bool);
constexpr char T = 'T', B = 'B';

constexpr Elementwise kTable[] = {
#define OP(name, inputs, attributes, types, result, files, ...) \
  {#name, inputs, attributes, types, result, files, #__VA_ARGS__, false},
#define VARIANT(name, inputs, attributes, types, result, files, ...) \
  {#name, inputs, attributes, types, result, files, #__VA_ARGS__, false},
#define DIVISION(name, inputs, attributes, types, result, files, ...) \
  {#name, inputs, attributes, types, result, files, #__VA_ARGS__, true},
#include "../../kernels/elementwise_table.cl"
#undef OP
#undef VARIANT
#undef DIVISION
};

template <Row which>
fl_status run_row(Op& op) {
  return elementwise(op, which);
}

#define OP(name, inputs, attributes, types, result, ...) \
  OCL_KERNEL(#name, types, run_row<Row::name>, result == B ? bit(Type::Bool) : 0, 0);
#define VARIANT(...)
#define DIVISION(name, inputs, attributes, types, result, ...) OCL_KERNEL(#name, types, run_row<Row::name>, 0, 0);
#include "../../kernels/elementwise_table.cl"
#undef OP
#undef VARIANT
#undef DIVISION

constexpr int kFewDims = 4;
int dims_of(Walk walk) { return walk == Walk::Dense ? 0 : walk == Walk::Many ? kMaxDims : kFewDims; }

// As in kernels/math.cl.
int kind_of(Type type) {
  if (type == Type::Bool) return 0;
  if (type == Type::UInt8) return 1;
  if (type == Type::Float64) return 4;
  return (bit(type) & kFloatTypes) != 0 ? 3 : 2;
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or denormal
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = sign | (exponent == 31 ? 255u << 23 : (exponent + 112u) << 23) | mantissa << 13;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// The value in the form that kernels compute in.
uint64_t immediate_bits(const fl_tensor& t) {
  uint64_t result = 0;
  uint16_t half;
  std::memcpy(&half, t.immediate, sizeof half);
  if (type(t) == Type::Float16) {
    const float value = half_to_float(half);
    std::memcpy(&result, &value, sizeof value);
  } else if (type(t) == Type::BFloat16) {
    result = static_cast<uint64_t>(half) << 16;
  } else {
    std::memcpy(&result, t.immediate, static_cast<size_t>(size_of(type(t))));
  }
  return result;
}

// struct Layout of kernels/elementwise.cl, in the order of its members.
class Layout {
 public:
  Layout(const Operands& operands, int ndim) : ndim_(ndim) {
    const fl_tensor& out = *operands.out;
    const int skipped = ndim - out.ndim;
    for (int d = 0; d < ndim; ++d) put(d < skipped ? 1 : out.sizes[d - skipped]);
    put_strides(out, out);
    for (int k = 0; k < operands.arity; ++k) put_strides(*operands.in[k], out);
    int64_t immediates = 0;
    put(0);
    for (int k = 0; k < operands.arity; ++k) {
      const bool given = immediate(*operands.in[k]);
      put(given ? static_cast<int64_t>(immediate_bits(*operands.in[k])) : 0);
      if (given) immediates |= int64_t{1} << (k + 1);
    }
    int64_t lies_dense = dense(out);
    for (int k = 0; k < operands.arity; ++k)
      if (!immediate(*operands.in[k]) && dense(*operands.in[k])) lies_dense |= int64_t{1} << (k + 1);
    put(lies_dense << 32 | immediates);  // two ints
  }
  Bytes bytes() const { return {words_, sizeof(int64_t) * static_cast<size_t>(count_)}; }

 private:
  void put(int64_t word) { words_[count_++] = word; }
  void put_strides(const fl_tensor& t, const fl_tensor& out) {
    const int skipped = ndim_ - out.ndim;
    for (int d = 0; d < ndim_; ++d) {
      const bool stands = d < skipped || immediate(t) || out.sizes[d - skipped] == 1;
      put(stands ? 0 : t.strides[d - skipped]);
    }
  }
  const int ndim_;
  int count_ = 0;
  int64_t words_[kMaxDims * 5 + 5];
};

// How many elements a work-item takes.
int64_t chunk_of(const Device& device, int64_t n, int64_t row) {
  constexpr int64_t kLeast = 1024, kItemsPerUnit = 16;
  if (!device.cpu) return 4;
  const int64_t items = kItemsPerUnit * static_cast<int64_t>(std::max(1u, device.compute_units));
  int64_t chunk = std::max(kLeast, (n + items - 1) / items);
  chunk = (chunk + 15) / 16 * 16;
  return row > 0 && row < chunk ? (chunk + row - 1) / row * row : chunk;  // whole rows
}

}  // namespace

const Elementwise& row(Row row) { return kTable[static_cast<int>(row)]; }

Attributes::Attributes(Type type, const Op& op, int count) : type_(type) {
  for (int i = 0; i < count && i < op.call.num_attrs; ++i) put(i, Value(type, op.call.attrs[i]));
}
void Attributes::set(int i, const fl_scalar& value) { put(i, Value(type_, value)); }
void Attributes::set(int i, double value) { put(i, Value(type_, value)); }
void Attributes::round(int i) {
  float value;
  if (type_ != Type::Float16 && type_ != Type::BFloat16) return;
  std::memcpy(&value, values_ + static_cast<size_t>(i) * sizeof value, sizeof value);
  if (std::isfinite(value) && value != 0) {  // keeps 11 or 8 bits, half to even
    int exponent;
    const int bits = type_ == Type::Float16 ? 11 : 8;
    const float mantissa = std::frexp(value, &exponent);
    value = std::ldexp(std::nearbyint(std::ldexp(mantissa, bits)), exponent - bits);
  }
  put(i, Value(type_, static_cast<double>(value)));
}
void Attributes::put(int i, const Value& value) {
  std::memcpy(values_ + static_cast<size_t>(i) * value.size, value.bytes, value.size);
}
Bytes Attributes::bytes() const { return {values_, 4 * Value(type_, 0.0).size}; }

Walk walk_of(const Device& device, const Operands& operands) {
  constexpr int64_t kShortRow = 16;
  const fl_tensor& out = *operands.out;
  bool all = dense(out);
  for (int k = 0; k < operands.arity && all; ++k) all = !immediate(*operands.in[k]) && dense(*operands.in[k]);
  if (all) return Walk::Dense;
  if (out.ndim > kFewDims) return Walk::Many;
  if (!device.cpu || out.ndim < 2 || out.sizes[out.ndim - 1] >= kShortRow) return Walk::Few;
  constexpr int64_t kMostStride = 1 << 24;  // of the last two dims: short_rows computes places of a vector in 32 bits
  for (int k = -1; k < operands.arity; ++k) {
    const fl_tensor& t = k < 0 ? out : *operands.in[k];
    if (immediate(t)) continue;
    for (int d = out.ndim - 2; d < out.ndim; ++d)
      if (t.strides[d] > kMostStride || t.strides[d] < -kMostStride) return Walk::Few;
  }
  return Walk::Short;
}

void elementwise_source(Source& source, Type computing, Type result, const Elementwise& what, Walk walk, bool cpu) {
  static constexpr const char* kInputs[] = {"TX", "TY", "TZ"};
  const int arity = static_cast<int>(std::strlen(what.inputs));
  source.define("T", computing).define("TR", result).define("KIND", kind_of(computing));
  source.define("HALF_TYPE", computing == Type::Float16 ? 1 : computing == Type::BFloat16 ? 2 : 0);
  bool mixed = false;
  for (int k = 0; k < arity; ++k) {
    const bool is_bool = what.inputs[k] == 'B';
    source.define(kInputs[k], is_bool ? Type::Bool : computing);
    mixed = mixed || (is_bool && computing != Type::Bool);
  }
  source.define("ARITY", arity).define("MIXED", mixed).define("LANES", cpu ? 16 : 4);
  source.define("NDIM", dims_of(walk)).define("SHORT_ROWS", walk == Walk::Short);
  source.define("HAS_ATTRIBUTES", what.attributes > 0).define("RESULT_IS_MASK", what.result == 'B');
  source.define("CHECK_DIVISOR", what.division && (bit(computing) & kIntTypes) != 0);
  source.define("EXPRESSION", std::string("(") + what.expression + ")");
  source.file("math.cl");
  if ((bit(computing) & kFloatTypes) != 0) source.file("math_float.cl");
  std::istringstream files(what.files);
  for (std::string file; files >> file;) source.file(file.c_str());
  source.file("elementwise.cl").kernel(walk == Walk::Dense ? "dense" : walk == Walk::Short ? "short_rows" : "strided");
}

namespace {

// Passes the operands that there are, then `rest`.
template <class... Rest>
void launch_operands(Op& op, const Program& program, const Operands& operands, Extent items, Extent group,
                     const Rest&... rest) {
  const fl_tensor& out = *operands.out;
  // What an immediate is passed as: never read.
  const auto in = [&](int k) -> const fl_tensor& { return immediate(*operands.in[k]) ? out : *operands.in[k]; };
  switch (operands.arity) {
    case 0: return op.launch(program, 0, items, group, out, rest...);
    case 1: return op.launch(program, 0, items, group, out, in(0), rest...);
    case 2: return op.launch(program, 0, items, group, out, in(0), in(1), rest...);
    default: return op.launch(program, 0, items, group, out, in(0), in(1), in(2), rest...);
  }
}

}  // namespace

void launch_elementwise(Op& op, const Program& program, Walk walk, const Operands& operands, const Bytes* attributes,
                        bool check_divisor) {
  const fl_tensor& out = *operands.out;
  const int64_t n = numel(out);
  const bool rows = walk == Walk::Few || walk == Walk::Many;
  const int64_t inner = rows && out.ndim > 0 ? out.sizes[out.ndim - 1] : 0;
  const int64_t chunk = chunk_of(op.device, n, inner);
  const Extent items{(n + chunk - 1) / chunk}, group{op.device.cpu ? 1 : 128};
  const auto launch = [&](const auto&... front) {
    if (check_divisor) {
      launch_operands(op, program, operands, items, group, front..., Op::at(op.stream.error_words(), 4));
      op.stream.errors_possible = true;
    } else if (attributes != nullptr) {
      launch_operands(op, program, operands, items, group, front..., *attributes);
    } else {
      launch_operands(op, program, operands, items, group, front...);
    }
  };
  if (walk == Walk::Dense) return launch(n, chunk);
  const Layout layout(operands, dims_of(walk));
  launch(n, chunk, layout.bytes());
}

fl_status elementwise(Op& op, Row which, const Attributes* given) {
  const Elementwise& what = row(which);
  Operands operands(op, static_cast<int>(std::strlen(what.inputs)));
  Walk walk = walk_of(op.device, operands);
  Untangled untangled;
  if (walk != Walk::Dense && untangled.untangle(op, operands)) walk = walk_of(op.device, operands);
  const uint64_t key = key_of(static_cast<uint64_t>(which), walk);
  const Program& program = op.program(
      key, [&](Source& source) { elementwise_source(source, op.in, op.out, what, walk, op.device.cpu); });
  if (what.attributes == 0) {
    const bool check = what.division && (bit(op.in) & kIntTypes) != 0;
    launch_elementwise(op, program, walk, operands, nullptr, check);
  } else {
    const Attributes own(op.in, op, given == nullptr ? what.attributes : 0);
    const Bytes bytes = (given != nullptr ? *given : own).bytes();
    launch_elementwise(op, program, walk, operands, &bytes);
  }
  return FL_STATUS_OK;
}

}  // namespace ocl
