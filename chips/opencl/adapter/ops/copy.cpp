// copy: any type to any type, any strides. cat and flip move elements with it.
#include "copy.h"

#include <algorithm>

namespace ocl {
namespace {

enum Form : uint64_t { kConvert, kMove };

constexpr Elementwise kCopy{"copy", "T", 0, kAllTypes, 'T', "", "x", false};
constexpr Elementwise kConversion{"copy", "T", 0, kAllTypes, 'T', "", "CONVERTV(T, TR, x)", false};

fl_status copy(Op& op) {
  if (op.in == op.out && !immediate(op.input(0))) {
    move_elements(op, op.output(0), op.input(0));
    return FL_STATUS_OK;
  }
  const Operands operands(op, 1);
  const Walk walk = walk_of(operands);
  const auto& program = op.program(key_of(kConvert, walk), [&](Source& source) {
    elementwise_source(source, op.in, op.out, kConversion, walk, op.device.cpu);
  });
  launch_elementwise(op, program, walk, operands, nullptr);
  return FL_STATUS_OK;
}

// ---- cat: each operand is copied into its part of the output

fl_status cat(Op& op) {
  const fl_tensor& out = op.output(0);
  const int dim = static_cast<int>(op.attr_int(0) < 0 ? op.attr_int(0) + out.ndim : op.attr_int(0));
  for (int k = 0; k < op.call.num_inputs; ++k) {
    if (type(op.input(k)) != type(out) || immediate(op.input(k))) return FL_STATUS_UNIMPLEMENTED;
  }
  int64_t start = 0;
  for (int k = 0; k < op.call.num_inputs; ++k) {
    const fl_tensor& part = op.input(k);
    if (numel(part) == 0) continue;  // also the one-dimensional empty ones that PyTorch lets pass
    fl_tensor place = out;
    place.sizes = part.sizes;
    place.memory = advanced(out, start * out.strides[dim]);
    move_elements(op, place, part);
    start += part.sizes[dim];
  }
  return FL_STATUS_OK;
}

fl_status flip(Op& op) {
  fl_tensor from = op.input(0);
  if (immediate(from)) return FL_STATUS_UNIMPLEMENTED;
  int64_t strides[kMaxDims];
  std::copy_n(from.strides, from.ndim, strides);
  int64_t start = 0;
  for (int k = 0; k < op.call.num_attrs; ++k) {
    const auto dim = static_cast<int>(op.attr_int(k) < 0 ? op.attr_int(k) + from.ndim : op.attr_int(k));
    start += (from.sizes[dim] - 1) * from.strides[dim];
    strides[dim] = -from.strides[dim];
  }
  from.memory = advanced(from, start);
  from.strides = strides;
  move_elements(op, op.output(0), from);
  return FL_STATUS_OK;
}

OCL_KERNEL("copy", kAllTypes, copy, kAllTypes, 0);
OCL_KERNEL("cat", kAllTypes, cat, 0, 0);
OCL_KERNEL("flip", kAllTypes, flip, 0, 0);

}  // namespace

Type raw_type(Type type) {
  switch (size_of(type)) {
    case 1: return Type::UInt8;
    case 2: return Type::Int16;
    case 4: return Type::Int32;
    default: return Type::Int64;
  }
}

fl_memory advanced(const fl_tensor& t, int64_t elements) {
  fl_memory memory = t.memory;
  const int64_t bytes = elements * (t.dtype.bits / 8);
  if (memory.handle != nullptr) memory.offset += static_cast<uint64_t>(bytes);
  else memory.address = static_cast<char*>(memory.address) + bytes;
  return memory;
}

void move_elements(Op& op, const fl_tensor& out, const fl_tensor& in) {
  const Operands operands(out, in);
  const Walk walk = walk_of(operands);
  const Type as = raw_type(type(out));
  const auto& program = op.program(key_of(kMove, walk), [&](Source& source) {
    elementwise_source(source, as, as, kCopy, walk, op.device.cpu);
  });
  launch_elementwise(op, program, walk, operands, nullptr);
}

}  // namespace ocl
