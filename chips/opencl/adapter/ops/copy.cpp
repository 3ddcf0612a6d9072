// copy: any type to any type, any strides; transposing copies tile by tile. cat, flip and triangle move elements too.
#include "copy.h"

#include <algorithm>

namespace ocl {
namespace {

// Forms of programs. Those of elementwise operations are rows of the table, far below kTranspose, to which the size of
// the elements is added.
enum Form : uint64_t { kConvert, kMove, kTriangle, kTranspose = 1000 };

constexpr Elementwise kCopy{"copy", "T", 0, kAllTypes, 'T', "", "x", false};
constexpr Elementwise kConversion{"copy", "T", 0, kAllTypes, 'T', "", "CONVERTV(T, TR, x)", false};

fl_status copy(Op& op) {
  if (op.in == op.out && !immediate(op.input(0))) {
    move_elements(op, op.output(0), op.input(0));
    return FL_STATUS_OK;
  }
  const Operands operands(op, 1);
  const Walk walk = walk_of(op.device, operands);
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

// struct Places of copy.cl.
struct Places {
  int64_t size[kMaxDims], out[kMaxDims], in[kMaxDims];
  int64_t dims = 0;
  void add(const fl_tensor& to, const fl_tensor& from, int d) {
    size[dims] = to.sizes[d];
    out[dims] = to.strides[d];
    in[dims++] = from.strides[d];
  }
};

const auto& copy_program(Op& op, uint64_t form, Type as, const char* define, const char* kernel) {
  return op.program(key_of(form, Walk::Dense), [&](Source& source) {
    source.define("T", as).define("NDIM", kMaxDims).define(define, 1);
    source.file("copy.cl").kernel(kernel);
  });
}

fl_status triangle(Op& op) {
  const fl_tensor &out = op.output(0), &in = op.input(0);
  if (out.ndim < 2 || immediate(in)) return FL_STATUS_UNIMPLEMENTED;
  const int last = out.ndim - 1;
  Places places;
  for (int d = 0; d < last; ++d) places.add(out, in, d);
  const int64_t columns = out.sizes[last], rows = numel(out) / columns;
  const int64_t chunk = op.device.cpu ? std::max<int64_t>(1, std::max(2048 / columns, rows / 64)) : 1;
  const auto& program = copy_program(op, kTriangle, raw_type(op.out), "TRIANGLE", "triangle");
  op.launch(program, 0, {(rows + chunk - 1) / chunk}, {op.device.cpu ? 1 : 64}, out, in, rows, chunk, columns,
            out.strides[last], in.strides[last], op.attr_int(0), static_cast<int32_t>(op.attr_int(1) != 0),
            Bytes{&places, sizeof places});
  return FL_STATUS_OK;
}

constexpr int64_t kTile = 16;

// True if the tensor is dense along another dim than the last, and large enough there for tiles.
bool is_transposed(const fl_tensor& t, const int64_t* sizes) {
  if (immediate(t) || t.ndim < 2 || sizes[t.ndim - 1] < kTile || t.strides[t.ndim - 1] < kTile / 2) return false;
  for (int d = 0; d < t.ndim - 1; ++d) {
    if (t.strides[d] == 1 && sizes[d] >= kTile) return true;
  }
  return false;
}

// Copies a transposed source; false if it is not, or if the general way is as good.
bool try_transpose(Op& op, const fl_tensor& out, const fl_tensor& in) {
  if (!op.device.cpu || !is_transposed(in, out.sizes) || out.strides[out.ndim - 1] != 1) return false;
  const int columns = out.ndim - 1;
  int rows = -1;
  int64_t outer = 1;
  Places places;
  for (int d = 0; d < columns; ++d) {
    if (rows < 0 && in.strides[d] == 1 && out.sizes[d] >= kTile) {
      rows = d;
    } else {
      places.add(out, in, d);
      outer *= out.sizes[d];
    }
  }
  const int64_t bands = (out.sizes[rows] + kTile - 1) / kTile;
  // Enough items for all cores, and no more columns each than keep the source's lines near.
  const int64_t wanted = 8 * static_cast<int64_t>(op.device.compute_units);
  const int64_t parts = std::max<int64_t>(1, std::min(out.sizes[columns] / 64, wanted / (bands * outer)));
  const int64_t width = ((out.sizes[columns] + parts - 1) / parts + kTile - 1) / kTile * kTile;
  const auto& program = copy_program(op, kTranspose + static_cast<uint64_t>(size_of(type(out))), raw_type(type(out)),
                                      "TRANSPOSE", "transpose");
  op.launch(program, 0, {bands, (out.sizes[columns] + width - 1) / width, outer}, {1, 1, 1}, out, in, out.sizes[rows],
            out.sizes[columns], in.strides[columns], out.strides[rows], width, Bytes{&places, sizeof places});
  return true;
}

OCL_KERNEL("copy", kAllTypes, copy, kAllTypes, 0);
OCL_KERNEL("cat", kAllTypes, cat, 0, 0);
OCL_KERNEL("flip", kAllTypes, flip, 0, 0);
OCL_KERNEL("triangle", kAllTypes, triangle, 0, 0);

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
  const Walk walk = walk_of(op.device, operands);
  if (walk != Walk::Dense && try_transpose(op, out, in)) return;
  const Type as = raw_type(type(out));
  const auto& program = op.program(key_of(kMove, walk), [&](Source& source) {
    elementwise_source(source, as, as, kCopy, walk, op.device.cpu);
  });
  launch_elementwise(op, program, walk, operands, nullptr);
}

bool Untangled::untangle(Op& op, Operands& operands) {
  constexpr int64_t kLeast = 1 << 14, kMostBytes = int64_t{1} << 28;
  const fl_tensor& out = *operands.out;
  const int64_t n = numel(out);
  if (!op.device.cpu || n < kLeast) return false;
  bool tangled[3] = {};
  uint64_t starts[4] = {};
  for (int k = 0; k < operands.arity; ++k) {
    const fl_tensor& in = *operands.in[k];
    tangled[k] = is_transposed(in, out.sizes) && n * size_of(type(in)) <= kMostBytes;
    starts[k + 1] = starts[k] + (tangled[k] ? static_cast<uint64_t>(n * size_of(type(in)) + 63) / 64 * 64 : 0);
  }
  if (starts[operands.arity] == 0) return false;
  const Place scratch = op.stream.scratch(starts[operands.arity]);
  int64_t step = 1;
  for (int d = out.ndim - 1; d >= 0; --d) {
    strides_[d] = step;
    step *= out.sizes[d];
  }
  for (int k = 0; k < operands.arity; ++k) {
    if (!tangled[k]) continue;
    const Place place = scratch.plus(starts[k]);
    copies_[k] = *operands.in[k];
    copies_[k].memory = {place.pointer, place.buffer, place.offset};
    copies_[k].sizes = out.sizes;
    copies_[k].strides = strides_;
    try_transpose(op, copies_[k], *operands.in[k]);
    operands.in[k] = &copies_[k];
  }
  return true;
}

}  // namespace ocl
