// gather, index_select and index: out[place] = self[place with one or more coordinates taken from index operands].
// All three are one loop over out; they differ in how the index operands are laid over it. The counterpart that
// writes through indices is scatter.cpp.
#include "index_walk.h"

namespace ocl {
namespace {

constexpr int kFirstIndex = 2;  // operands of the walk: out, self, then the index operands

fl_status read(Op& op, const Walk& walk, const IndexSet& set) {
  const auto& program = op.program(static_cast<uint64_t>(set.count) * 2 + (set.type() == Type::Int64), [&](Source& s) {
    s.define("E", mover(op.in));
    s.define("I", set.type());
    s.define("NUM_INDEX", set.count);
    s.define("OPERANDS", kFirstIndex + set.count);
    s.file("index_walk.cl");
    s.file("gather.cl");
    s.kernel("index_read");
  });
  const Pieces pieces(op.device, walk.numel(), 2048);
  op.stream.errors_possible = true;
  with_indices(set, [&](const auto&... index) {
    op.launch(program, 0, {pieces.count}, {pieces.local}, op.output(0), op.input(0), index...,
              op.at(op.stream.error_words(), 4), bytes_of(walk.words()), bytes_of(set.words()), pieces.chunk);
  });
  return FL_STATUS_OK;
}

// gather and index_select: one index operand for dimension `dim`; full_index: it has all dims of out.
fl_status read_along(Op& op, bool full_index) {
  const fl_tensor& index = op.input(1);
  if (!is_index(index)) return FL_STATUS_UNIMPLEMENTED;
  const Shape from(op.input(0)), to(op.output(0)), index_shape(index);
  const int dim = from.dim(op.attr_int(0));
  IndexSet set;
  set.add(index, from.sizes[dim], from.strides[dim]);
  Walk walk(kFirstIndex + 1);
  int order[kMaxDims];
  order_by_stride(to.ndim, to.strides, order);
  for (int k = 0; k < to.ndim; ++k) {
    const int d = order[k];
    const int64_t self_stride = d == dim ? 0 : from.strides[d];
    const int64_t index_stride = full_index ? index_shape.strides[d] : d == dim ? index_shape.strides[0] : 0;
    const int64_t strides[3] = {to.strides[d], self_stride, index_stride};
    walk.add(to.sizes[d], strides);
  }
  return read(op, walk, set);
}

fl_status gather(Op& op) { return read_along(op, true); }
fl_status index_select(Op& op) { return read_along(op, false); }

fl_status index(Op& op) {
  const Shape from(op.input(0)), to(op.output(0));
  const int count = op.call.num_inputs - 1;
  if (count < 1 || count > IndexSet::kMax) return FL_STATUS_UNIMPLEMENTED;
  IndexSet set;
  set.from_end = true;
  for (int k = 0; k < count; ++k) {
    const fl_tensor& t = op.input(1 + k);
    if (!is_index(t) || type(t) != type(op.input(1)) || Shape(t).ndim != to.ndim) return FL_STATUS_UNIMPLEMENTED;
    set.add(t, op.attr_int(k), op.attr_int(count + k));
  }
  Walk walk(kFirstIndex + count);
  int order[kMaxDims];
  order_by_stride(to.ndim, to.strides, order);
  for (int d = 0; d < to.ndim; ++d) {
    const int dim = order[d];
    int64_t strides[Walk::kMaxOperands] = {to.strides[dim], from.strides[dim]};
    for (int k = 0; k < count; ++k) strides[kFirstIndex + k] = Shape(*set.tensors[k]).strides[dim];
    walk.add(to.sizes[dim], strides);
  }
  return read(op, walk, set);
}

OCL_KERNEL("gather", kAllTypes, gather);
OCL_KERNEL("index_select", kAllTypes, index_select);
OCL_KERNEL("index", kAllTypes, index);

}  // namespace
}  // namespace ocl
