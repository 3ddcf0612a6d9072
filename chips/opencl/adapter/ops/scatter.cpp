// scatter, scatter_reduce, index_add, index_copy and index_put: out[place with coordinates taken from index operands]
// is set to, or combined with, src[place]. All are one engine (kernels/scatter.cl): dimensions along which places never
// meet are split over the work-items, along the others one work-item goes in row-major order, so sums have one order
// and the last write wins. Where too little is free, each work-item goes through everything and owns a part of out.
// The counterpart that reads through indices is gather.cpp.
#include "half_value.h"
#include "index_walk.h"

namespace ocl {
namespace {

constexpr int kFirstIndex = 2;  // operands of the walks: out, src, then the index operands

constexpr int64_t kCacheBytes = int64_t{1} << 20;

struct Scatter {
  Walk unmet, serial;
  IndexSet set;
  explicit Scatter(int count) : unmet(kFirstIndex + count), serial(kFirstIndex + count) {}
};

// What is done with an element.
enum class Combine { Assign, Sum, Product, Largest, Smallest, ScaledSum };

struct Plan {
  int64_t chunk, part, parts, use_value;
};

// Work-items: unmet positions first, then parts of the offsets that the indices can add.
Plan plan_of(const Op& op, const Scatter& s, int item) {
  const int64_t units = op.device.compute_units, unmet = s.unmet.numel(), serial = s.serial.numel();
  bool shared = unmet > 1;  // a run of unmet positions has one look-up
  for (int k = 0; k < s.set.count; ++k) shared &= s.unmet.inner_stride(kFirstIndex + k) == 0;
  // At least a cache line of out each, and enough to be worth a look-up.
  const int64_t least = !op.device.cpu ? 1 : shared ? 64 : std::max<int64_t>(1, 64 / item);
  Plan plan{1, 0, 1, 0};
  int64_t wanted = op.device.cpu ? std::min<int64_t>(units * 4, unmet * serial / 2048) : unmet;
  wanted = std::max<int64_t>(1, std::min(wanted, (unmet + least - 1) / least));
  plan.chunk = (unmet + wanted - 1) / wanted;
  if (plan.chunk > least) plan.chunk = (plan.chunk + least - 1) / least * least;
  const int64_t items = (unmet + plan.chunk - 1) / plan.chunk;
  const int64_t enough = op.device.cpu ? units : 4096;
  if (items >= enough || serial == 1 || unmet * serial < 16384) return plan;
  int64_t range = 1;
  for (int k = 0; k < s.set.count; ++k) range += (s.set.extents[k] - 1) * s.set.strides[k];
  // Each part reads all indices. On a CPU that pays only where out is too large for a core's cache.
  if (op.device.cpu && range * item < kCacheBytes) return plan;
  plan.parts = std::max<int64_t>(1, std::min(range, enough / items));
  plan.part = (range + plan.parts - 1) / plan.parts;
  return plan;
}

// The value of an immediate as the kernel takes it.
Value value_of(const fl_tensor& t, Type type) {
  fl_scalar scalar{};
  if (!immediate(t)) return Value(type, 0.0);
  scalar.tag = FL_SCALAR_INT;
  const auto bits = [&](auto value) {
    std::memcpy(&value, t.immediate, sizeof(value));
    return value;
  };
  switch (type) {
    case Type::Bool:
    case Type::UInt8: scalar.v.i = bits(uint8_t{}); break;
    case Type::Int8: scalar.v.i = bits(int8_t{}); break;
    case Type::Int16: scalar.v.i = bits(int16_t{}); break;
    case Type::Int32: scalar.v.i = bits(int32_t{}); break;
    case Type::Int64: scalar.v.i = bits(int64_t{}); break;
    case Type::Float32: scalar.tag = FL_SCALAR_FLOAT, scalar.v.f = bits(float{}); break;
    case Type::Float64: scalar.tag = FL_SCALAR_FLOAT, scalar.v.f = bits(double{}); break;
    case Type::Float16: scalar.tag = FL_SCALAR_FLOAT, scalar.v.f = half_value(bits(uint16_t{})); break;
    default: scalar.tag = FL_SCALAR_FLOAT, scalar.v.f = bfloat_value(bits(uint16_t{})); break;
  }
  return Value(type, scalar);
}

const char* text_of(Combine combine, Type type) {
  const bool is_bool = type == Type::Bool, integer = (bit(type) & kIntTypes) != 0;
  switch (combine) {
    case Combine::Assign: return "(b)";
    case Combine::Sum: return is_bool ? "((a) | (b))" : "((a) + (b))";
    case Combine::Product: return is_bool ? "((a) & (b))" : integer ? "((ulong)(a) * (ulong)(b))" : "((a) * (b))";
    case Combine::Largest: return "((a) != (a) || (a) > (b) ? (a) : (b))";
    case Combine::Smallest: return "((a) != (a) || (a) < (b) ? (a) : (b))";
    default:
      if (is_bool) return "((a) | (ALPHA & (b)))";
      return integer ? "((ulong)(a) + (ulong)ALPHA * (ulong)(b))" : "fma(ALPHA, b, a)";
  }
}

// `out` has type `to`, src type `from`.
template <class Out>
fl_status write(Op& op, const Scatter& s, const Out& out, Type to, Type from, const fl_tensor& src, Combine combine,
                const Value& value) {
  const uint64_t key = (static_cast<uint64_t>(combine) * 16 + static_cast<uint64_t>(s.set.count)) * 2 +
                       (s.set.type() == Type::Int64);
  const auto& program = op.program(key, [&](Source& source) {
    source.define("T", to);
    source.define("S", from);
    source.define("I", s.set.type());
    source.define("NUM_INDEX", s.set.count);
    source.define("OPERANDS", kFirstIndex + s.set.count);
    if (combine != Combine::Assign && combine != Combine::Sum) source.define("NO_VECTORS", int64_t{1});
    source.define("ALPHA", std::string("t->value"));
    source.define("COMBINE(a, b)", std::string(text_of(combine, to)));
    source.file("index_walk.cl");
    source.file("scatter.cl");
    source.kernel("index_write");
  });
  Plan plan = plan_of(op, s, size_of(to));
  plan.use_value = immediate(src);
  const int64_t items = (s.unmet.numel() + plan.chunk - 1) / plan.chunk, local = op.device.cpu ? 1 : 64;
  const auto source = immediate(src) ? op.at(Place::of(op.output(0).memory), size_of(from))
                                     : op.at(Place::of(src.memory), size_of(from));
  op.stream.errors_possible = true;
  with_indices(s.set, [&](const auto&... index) {
    op.launch(program, 0, {items, plan.parts}, {local, 1}, out, source, index..., op.at(op.stream.error_words(), 4),
              bytes_of(s.unmet.words()), bytes_of(s.serial.words()), bytes_of(s.set.words()),
              Bytes{&plan, sizeof(plan)}, value);
  });
  return FL_STATUS_OK;
}

struct Strides {
  int64_t of[kMaxDims];
  Strides(int ndim, const fl_tensor& t) {
    const Shape shape(t);
    for (int d = 0; d < ndim; ++d) of[d] = immediate(t) || t.ndim == 0 ? 0 : shape.strides[d];
  }
};

// One index operand for dimension `dim`. full_index: it has all dims of src; else it is one-dimensional.
Scatter plan_along(const Op& op, const int64_t* out_strides, bool full_index) {
  const fl_tensor &index = op.input(0), &src = op.input(1);
  const Shape to(op.output(0)), index_shape(index);
  const int ndim = to.ndim, dim = to.dim(op.attr_int(0));
  Scatter s(1);
  s.set.add(index, to.sizes[dim], out_strides[dim]);
  const Strides src_strides(ndim, src);
  int order[kMaxDims];
  order_by_stride(ndim, out_strides, order);
  for (int k = 0; k < ndim; ++k) {
    const int d = order[k];
    if (d == dim) continue;
    // The source of index_add and index_copy has out's sizes in the other dims.
    const int64_t strides[3] = {out_strides[d], src_strides.of[d], full_index ? index_shape.strides[d] : 0};
    s.unmet.add(full_index ? index_shape.sizes[d] : to.sizes[d], strides);
  }
  const int at = full_index ? dim : 0;
  const int64_t strides[3] = {0, src_strides.of[dim], index_shape.strides[at]};
  s.serial.add(index_shape.sizes[at], strides);
  return s;
}

bool fits_along(const Op& op) { return is_index(op.input(0)) && type(op.input(1)) == type(op.output(0)); }

fl_status assign(Op& op, const Scatter& s, const fl_tensor& src) {
  const Type element = mover(op.in);
  const Value none(element, 0.0);
  if (!immediate(src)) return write(op, s, op.output(0), element, element, src, Combine::Assign, none);
  return write(op, s, op.output(0), element, element, src, Combine::Assign, value_of(src, element));
}

fl_status scatter(Op& op) {
  if (!fits_along(op)) return FL_STATUS_UNIMPLEMENTED;
  return assign(op, plan_along(op, Shape(op.output(0)).strides, true), op.input(1));
}

fl_status index_copy(Op& op) {
  if (!fits_along(op)) return FL_STATUS_UNIMPLEMENTED;
  return assign(op, plan_along(op, Shape(op.output(0)).strides, false), op.input(1));
}

fl_status index_add(Op& op) {
  if (!fits_along(op)) return FL_STATUS_UNIMPLEMENTED;
  const Scatter s = plan_along(op, Shape(op.output(0)).strides, false);
  const bool scaled = op.attr_given(1) && op.attr_float(1) != 1.0;
  const Value alpha = scaled ? Value(op.in, op.call.attrs[1]) : Value(op.in, 1.0);
  return write(op, s, op.output(0), op.in, op.in, op.input(1), scaled ? Combine::ScaledSum : Combine::Sum, alpha);
}

// Repeated indices of half types accumulate in a float copy of out, rounded once at the end.
fl_status reduce_in_float(Op& op, Combine combine) {
  const fl_tensor& out = op.output(0);
  const Shape shape(out);
  int64_t strides[kMaxDims], step = 1;
  for (int d = shape.ndim - 1; d >= 0; --d) strides[d] = step, step *= shape.sizes[d];
  Walk walk(2);
  for (int d = 0; d < shape.ndim; ++d) {
    const int64_t both[2] = {shape.strides[d], strides[d]};
    walk.add(shape.sizes[d], both);
  }
  const auto& program = op.program(~uint64_t{0}, [&](Source& source) {
    source.define("T", op.in);
    source.define("OPERANDS", 2);
    source.file("index_walk.cl");
    source.file("scatter_widen.cl");
    source.kernel("widen");
    source.kernel("narrow");
  });
  const auto wide = op.at(op.stream.scratch(static_cast<uint64_t>(step) * sizeof(float)), sizeof(float));
  const Pieces pieces(op.device, walk.numel(), 2048);
  const auto words = walk.words();
  op.launch(program, 0, {pieces.count}, {pieces.local}, out, wide, bytes_of(words), pieces.chunk);
  const Scatter s = plan_along(op, strides, true);
  const fl_status status =
      write(op, s, wide, Type::Float32, op.in, op.input(1), combine, Value(Type::Float32, 0.0));
  op.launch(program, 1, {pieces.count}, {pieces.local}, out, wide, bytes_of(words), pieces.chunk);
  return status;
}

fl_status scatter_reduce(Op& op) {
  static constexpr Combine kModes[] = {Combine::Sum, Combine::Product, Combine::Largest, Combine::Smallest};
  const int64_t mode = op.attr_int(1);
  if (!fits_along(op) || mode < 0 || mode > 3) return FL_STATUS_UNIMPLEMENTED;
  if ((bit(op.in) & kHalfTypes) != 0) return reduce_in_float(op, kModes[mode]);
  const Scatter s = plan_along(op, Shape(op.output(0)).strides, true);
  return write(op, s, op.output(0), op.in, op.in, op.input(1), kModes[mode], Value(op.in, 0.0));
}

fl_status index_put(Op& op) {
  const fl_tensor &values = op.input(0), &self = op.output(0);
  const Shape to(self);
  const int count = op.call.num_inputs - 1;
  if (count < 1 || count > IndexSet::kMax || type(values) != op.in) return FL_STATUS_UNIMPLEMENTED;
  Scatter s(count);
  s.set.from_end = true;
  for (int k = 0; k < count; ++k) {
    const fl_tensor& t = op.input(1 + k);
    if (!is_index(t) || type(t) != type(op.input(1)) || Shape(t).ndim != to.ndim) return FL_STATUS_UNIMPLEMENTED;
    s.set.add(t, op.attr_int(k), op.attr_int(count + k));
  }
  const Strides value_strides(to.ndim, values);
  for (int d = 0; d < to.ndim; ++d) {
    int64_t strides[Walk::kMaxOperands] = {to.strides[d], value_strides.of[d]};
    bool unmet = to.strides[d] != 0;
    for (int k = 0; k < count; ++k) {
      const int64_t stride = Shape(*s.set.tensors[k]).strides[d];
      unmet &= stride == 0;
      strides[kFirstIndex + k] = stride;
    }
    (unmet ? s.unmet : s.serial).add(immediate(values) ? to.sizes[d] : Shape(values).sizes[d], strides);
  }
  if (op.attr_int(2 * count) == 0) return assign(op, s, values);
  return write(op, s, self, op.in, op.in, values, Combine::Sum, value_of(values, op.in));
}

OCL_KERNEL("scatter", kAllTypes, scatter, 0, 0);
OCL_KERNEL("index_copy", kAllTypes, index_copy, 0, 0);
OCL_KERNEL("scatter_reduce", kAllTypes, scatter_reduce);
OCL_KERNEL("index_add", kAllTypes, index_add);
OCL_KERNEL("index_put", kAllTypes, index_put, 0, 0);

}  // namespace
}  // namespace ocl
