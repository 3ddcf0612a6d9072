// searchsorted (which also serves bucketize) and bincount.
#include "index_walk.h"

namespace ocl {
namespace {

fl_status searchsorted(Op& op) {
  const fl_tensor &sequence = op.input(0), &values = op.input(1), &out = op.output(0);
  const bool sorted = op.has_input(2);
  const bool fits = dense(sequence) && dense(values) && dense(out) && type(sequence) == op.in &&
                    type(values) == op.in && (!sorted || (type(op.input(2)) == Type::Int64 && dense(op.input(2))));
  if (!fits) return FL_STATUS_UNIMPLEMENTED;
  const Shape rows(sequence);
  struct {
    int64_t count, length, values_per_row, shared, right;
  } s{numel(out), rows.sizes[rows.ndim - 1], values.ndim > 0 ? values.sizes[values.ndim - 1] : 1, rows.ndim == 1,
      op.attr_int(0)};
  const auto& program = op.program(sorted, [&](Source& source) {
    source.define("T", op.in);
    source.define("O", op.out);
    if (sorted) source.define("SORTED", int64_t{1});
    source.file("search.cl");
    source.kernel("search");
  });
  const Pieces pieces(op.device, s.count, 256);
  if (sorted) op.stream.errors_possible = true;
  const auto sorter = sorted ? op.at(Place::of(op.input(2).memory), 8) : op.at(Place::of(out.memory), size_of(op.out));
  op.launch(program, 0, {pieces.count}, {pieces.local}, sequence, values, sorter, out,
            op.at(op.stream.error_words(), 4), Bytes{&s, sizeof(s)}, pieces.chunk);
  return FL_STATUS_OK;
}

fl_status bincount(Op& op) {
  const fl_tensor &self = op.input(0), &out = op.output(0);
  const bool weighted = op.has_input(1);
  if ((bit(type(self)) & kIntTypes) == 0 || !dense(out)) return FL_STATUS_UNIMPLEMENTED;
  if (weighted ? type(op.input(1)) != type(out) : type(out) != Type::Int64) return FL_STATUS_UNIMPLEMENTED;
  const auto& program = op.program(static_cast<uint64_t>(type(self)) * 2 + weighted, [&](Source& source) {
    source.define("T", type(self));
    if (weighted) source.define("W", type(out));
    source.file("search_bincount.cl");
    for (const char* name : {"bin_count", "bin_sum"})
      if (!weighted) source.kernel(name);
    if (weighted) source.kernel("bin_weigh");
  });
  const int64_t bins = numel(out), n = numel(self), stride = Shape(self).strides[0];
  const auto errors = op.at(op.stream.error_words(), 4);
  op.stream.errors_possible = true;
  if (weighted) {
    const Pieces pieces(op.device, bins, std::max<int64_t>(1, bins / op.device.compute_units));
    op.launch(program, 0, {pieces.count}, {pieces.local}, self, op.input(1), out, errors, n, stride,
              Shape(op.input(1)).strides[0], bins, pieces.chunk);
    return FL_STATUS_OK;
  }
  // A slice is worth its bins, and all bins together some memory.
  const int64_t most = op.device.cpu ? op.device.compute_units : 4096;
  const int64_t room = std::max<int64_t>(1, (int64_t{64} << 20) / 8 / bins);
  const int64_t slices = std::max<int64_t>(1, std::min({most, room, n / (op.device.cpu ? 8192 : 256), n / bins}));
  const auto partial = slices == 1 ? op.at(Place::of(out.memory), 8)
                                   : op.at(op.stream.scratch(static_cast<uint64_t>(slices * bins) * 8), 8);
  op.launch(program, 0, {slices}, {op.device.cpu ? 1 : 64}, self, partial, errors, n, stride, bins, slices);
  if (slices == 1) return FL_STATUS_OK;
  const Pieces pieces(op.device, bins, 1024);
  op.launch(program, 1, {pieces.count}, {pieces.local}, partial, out, bins, slices, pieces.chunk);
  return FL_STATUS_OK;
}

constexpr uint32_t kWide = bit(Type::Float32) | bit(Type::Float64);
OCL_KERNEL("searchsorted", kAllTypes, searchsorted, bit(Type::Int64) | bit(Type::Int32));
// Asked for by the type of the values or of the weights.
OCL_KERNEL("bincount", kIntTypes | kWide, bincount, bit(Type::Int64) | kWide);

}  // namespace
}  // namespace ocl
