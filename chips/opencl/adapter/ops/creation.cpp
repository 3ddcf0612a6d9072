// Tensors made of their positions: arange, linspace, eye; and fill. Elementwise kernels without inputs.
#include <algorithm>

#include "elementwise.h"

namespace ocl {
namespace {

struct Range {
  const char* expression;
  bool integers;  // the attributes are whole numbers, and computed with as such
};
constexpr Range kArange{"CONVERTV(W, T, range(a, b, POSITIONS))", true};
constexpr Range kLinspace{"CONVERTV(W, T, even_steps(a, b, POSITIONS, n))", false};

// struct Attributes of creation.cl.
struct RangeAttributes {
  unsigned char bytes[24];
  size_t size = 0;
  void put(const Value& value) {
    std::copy_n(value.bytes, value.size, bytes + size);
    size += value.size;
  }
};

fl_status create(Op& op, const Range& range) {
  const fl_scalar *start = op.call.attrs, *step = op.call.attrs + 1;  // or the end
  const bool integers = range.integers && start->tag == FL_SCALAR_INT && step->tag == FL_SCALAR_INT;
  const Type wide = integers ? Type::Int64 : op.device.fp64 ? Type::Float64 : Type::Float32;
  const Operands operands(op, 0);
  const Walk walk = walk_of(op.device, operands);
  const Elementwise what{"", "", 1, kAllTypes, 'T', "creation.cl", range.expression, false};
  const Program& program = op.program(key_of(integers, walk), [&](Source& source) {
    source.define("W", wide);
    elementwise_source(source, op.out, op.out, what, walk, op.device.cpu);
  });
  RangeAttributes attributes;
  attributes.put(Value(wide, *start));
  attributes.put(Value(wide, *step));
  fl_scalar count{};
  count.tag = FL_SCALAR_INT;
  count.v.i = numel(op.output(0));
  attributes.put(Value(Type::Int64, count));
  const Bytes bytes{attributes.bytes, attributes.size};
  launch_elementwise(op, program, walk, operands, &bytes);
  return FL_STATUS_OK;
}

fl_status arange(Op& op) { return create(op, kArange); }
fl_status linspace(Op& op) { return create(op, kLinspace); }

void fill_with(Op& op, const fl_tensor& out, const fl_scalar& value) {
  const Operands operands(out);
  const Walk walk = walk_of(op.device, operands);
  const Elementwise& what = row(Row::fill);
  const Program& program = op.program(key_of(0, walk), [&](Source& source) {
    elementwise_source(source, op.out, op.out, what, walk, op.device.cpu);
  });
  Attributes attributes(op.out);
  attributes.set(0, value);
  const Bytes bytes = attributes.bytes();
  launch_elementwise(op, program, walk, operands, &bytes);
}

fl_status fill(Op& op) {
  fill_with(op, op.output(0), op.call.attrs[0]);
  return FL_STATUS_OK;
}

// Zeros, then ones along the diagonal.
fl_status eye(Op& op) {
  const fl_tensor& out = op.output(0);
  if (out.ndim != 2) return FL_STATUS_UNIMPLEMENTED;
  fl_scalar value{};
  value.tag = FL_SCALAR_INT;
  fill_with(op, out, value);
  const int64_t length = std::min(out.sizes[0], out.sizes[1]), step = out.strides[0] + out.strides[1];
  fl_tensor diagonal = out;
  diagonal.ndim = 1;
  diagonal.sizes = &length;
  diagonal.strides = &step;
  value.v.i = 1;
  fill_with(op, diagonal, value);
  return FL_STATUS_OK;
}

OCL_KERNEL("arange", kRealTypes, arange, kRealTypes, 0);
OCL_KERNEL("linspace", kRealTypes, linspace, kRealTypes, 0);
OCL_KERNEL("fill", kAllTypes, fill, kAllTypes, 0);
OCL_KERNEL("eye", kAllTypes, eye, 0, 0);

}  // namespace
}  // namespace ocl
