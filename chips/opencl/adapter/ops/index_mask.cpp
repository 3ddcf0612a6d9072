// nonzero and masked_select: the result's length depends on values. Hits are counted per piece of the input, the counts
// are added up, then each piece's results are filled in from where the earlier ones end (kernels/index_mask.cl).
#include "index_walk.h"

namespace ocl {
namespace {

// Pieces of an input of which each is counted by one work-item.
Pieces pieces_of(const Device& device, int64_t numel) {
  Pieces pieces(device, numel, 4096);
  if (device.cpu) return pieces;
  pieces.chunk = std::max<int64_t>(256, (numel + (int64_t{1} << 16) - 1) >> 16);
  pieces.count = (numel + pieces.chunk - 1) / pieces.chunk;
  return pieces;
}

const char* unsigned_of(int bytes) {
  return bytes == 1 ? "uchar" : bytes == 2 ? "ushort" : bytes == 4 ? "uint" : "ulong";
}

// The bits that make a value non-zero: all, but for the sign of a float.
const char* value_bits(Type type) {
  switch (type) {
    case Type::Float16:
    case Type::BFloat16: return "0x7fff";
    case Type::Float32: return "0x7fffffff";
    case Type::Float64: return "0x7ffffffffffffffful";
    default: return "0xfffffffffffffffful";
  }
}

fl_status nonzero(Op& op) {
  const fl_tensor &self = op.input(0), &out = op.output(0);
  const Shape shape(self);
  Walk walk(1);
  for (int d = 0; d < shape.ndim; ++d) walk.add(shape.sizes[d], &shape.strides[d], false);
  // Dimensions of one element have coordinates too, so the walk is written out in full.
  std::vector<int64_t> words(2 + 2 * kMaxDims, 0);
  words[0] = shape.ndim;
  words[1] = walk.numel();
  for (int d = 0; d < shape.ndim; ++d) {
    words[2 + d] = shape.sizes[d];
    words[2 + kMaxDims + d] = shape.strides[d];
  }
  const auto& program = op.program(0, [&](Source& source) {
    source.define("NONZERO", int64_t{1});
    source.define("U", std::string(unsigned_of(size_of(op.in))));
    source.define("MASK", std::string(value_bits(op.in)));
    source.define("OPERANDS", int64_t{1});
    source.file("index_walk.cl");
    source.file("index_mask.cl");
    source.kernel("mask_count");
    source.kernel("mask_starts");
    source.kernel("mask_fill");
  });
  const Pieces pieces = pieces_of(op.device, walk.numel());
  const auto counts = op.at(op.stream.scratch(static_cast<uint64_t>(pieces.count) * 8), 8);
  const int64_t row_stride = out.ndim > 0 ? out.strides[0] : 0, column_stride = out.ndim > 1 ? out.strides[1] : 1;
  const Extent global{pieces.count}, local{pieces.local};
  op.launch(program, 0, global, local, self, counts, bytes_of(words), pieces.chunk);
  op.launch(program, 1, {1}, {1}, counts, op.output(1), pieces.count);
  op.launch(program, 2, global, local, self, out, op.output(1), counts, pieces.count, bytes_of(words), pieces.chunk,
            static_cast<int64_t>(self.ndim), row_stride, column_stride);
  return FL_STATUS_OK;
}

fl_status masked_select(Op& op) {
  const fl_tensor &self = op.input(0), &mask = op.input(1);
  const Shape from(self), by(mask);
  if (size_of(type(mask)) != 1 || from.ndim != by.ndim) return FL_STATUS_UNIMPLEMENTED;
  Walk walk(2);
  for (int d = 0; d < from.ndim; ++d) {
    const int64_t strides[2] = {from.strides[d], by.strides[d]};
    walk.add(from.sizes[d], strides);
  }
  const auto& program = op.program(0, [&](Source& source) {
    source.define("E", mover(op.in));
    source.define("OPERANDS", int64_t{2});
    source.file("index_walk.cl");
    source.file("index_mask.cl");
    source.kernel("mask_count");
    source.kernel("mask_starts");
    source.kernel("mask_fill");
  });
  const Pieces pieces = pieces_of(op.device, walk.numel());
  const auto counts = op.at(op.stream.scratch(static_cast<uint64_t>(pieces.count) * 8), 8);
  const auto words = walk.words();
  const Extent global{pieces.count}, local{pieces.local};
  op.launch(program, 0, global, local, mask, counts, bytes_of(words), pieces.chunk);
  op.launch(program, 1, {1}, {1}, counts, op.output(1), pieces.count);
  op.launch(program, 2, global, local, self, mask, op.output(0), op.output(1), counts, pieces.count,
            bytes_of(words), pieces.chunk, Shape(op.output(0)).strides[0]);
  return FL_STATUS_OK;
}

OCL_KERNEL("nonzero", kAllTypes, nonzero, bit(Type::Int64));
OCL_KERNEL("masked_select", kAllTypes, masked_select);

}  // namespace
}  // namespace ocl
