// gather, index_select and index: out[place] = self[place with one or more coordinates taken from index operands].
// All three are one loop over out; they differ in how the index operands are laid over it. The counterpart that
// writes through indices is scatter.cpp.
#include <cstring>

#include "index_walk.h"

namespace ng {
namespace {

constexpr int kFirstIndex = 2;  // operands of the walk: out, self, then the index operands

struct Gather {
  Walk walk{kFirstIndex};
  IndexSet set;

  void add_index(const Tensor& t, int64_t extent, int64_t stride, int dim) {
    set.add(t, extent, stride, dim);
    walk.operands = kFirstIndex + set.count;
  }
};

// n elements whose indices are all the same: one look-up, then a copy.
template <class E>
void gather_block(const Gather& g, E* out, const E* self, const int64_t* at, int64_t n, IndexCheck& check) {
  const int64_t offset = g.set.offset(at + kFirstIndex, check);
  if (offset < 0) return;
  const int64_t out_stride = g.walk.inner_stride(0), self_stride = g.walk.inner_stride(1);
  E* to = out + at[0];
  const E* from = self + at[1] + offset;
  if (out_stride == 1 && self_stride == 1) {
    std::memcpy(to, from, n * sizeof(E));
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i * out_stride] = from[i * self_stride];
}

// n elements that each look up their place.
template <class E>
void gather_each(const Gather& g, E* out, const E* self, const int64_t* start, int64_t n, IndexCheck& check) {
  int64_t at[Walk::kMaxOperands], steps[Walk::kMaxOperands];
  for (int o = 0; o < g.walk.operands; ++o) at[o] = start[o], steps[o] = g.walk.inner_stride(o);
  int64_t offsets[kIndexBatch];
  for (int64_t done = 0; done < n; done += kIndexBatch) {
    const int64_t batch = std::min(kIndexBatch, n - done);
    const bool inside = g.set.offsets(at + kFirstIndex, steps + kFirstIndex, batch, offsets, check);
    E* const to = out + at[0];
    const E* const from = self + at[1];
    if (!inside) {
      for (int64_t i = 0; i < batch; ++i) {
        if (offsets[i] >= 0) to[i * steps[0]] = from[i * steps[1] + offsets[i]];
      }
    } else if (steps[0] == 1 && steps[1] == 0) {
      for (int64_t i = 0; i < batch; ++i) to[i] = from[offsets[i]];
    } else {
      for (int64_t i = 0; i < batch; ++i) to[i * steps[0]] = from[i * steps[1] + offsets[i]];
    }
    for (int o = 0; o < g.walk.operands; ++o) at[o] += batch * steps[o];
  }
}

ngResult run_walk(const Gather& g, const Tensor& out, const Tensor& self) {
  IndexCheck check;
  bool block = true;  // no index moves along the innermost dimension
  for (int k = 0; k < g.set.count; ++k) block &= g.walk.inner_stride(kFirstIndex + k) == 0;
  const int64_t bytes = size_of(out.type);
  const double inner = static_cast<double>(g.walk.inner_size());
  const double cost = block ? 0.1 * static_cast<double>(bytes) + 20.0 / inner : 1.5 * g.set.count;
  for_size(bytes, [&](auto tag) {
    using E = decltype(tag);
    E* to = out.as<E>();
    const E* from = self.as<E>();
    parallel_for(g.walk.numel, cost, [&](int64_t begin, int64_t end) {
      g.walk.run(begin, end, [&](const int64_t* at, int64_t n) {
        if (block) {
          gather_block(g, to, from, at, n, check);
        } else {
          gather_each(g, to, from, at, n, check);
        }
      });
    });
  });
  return check.result();
}

// gather and index_select: one index operand for dimension `dim`; `along` says whether it has all dims of out.
ngResult run_along(const Args& args, bool full_index) {
  const Tensor &self = args.in[0], &index = args.in[1], &out = args.out[0];
  const Shape from(self), to(out), index_shape(index);
  const int dim = from.dim(args.i(0));
  Gather g;
  g.add_index(index, from.sizes[dim], from.strides[dim], dim);
  int order[kMaxDims];
  order_by_stride(to.ndim, to.strides, order);
  for (int k = 0; k < to.ndim; ++k) {
    const int d = order[k];
    const int64_t self_stride = d == dim ? 0 : from.strides[d];
    const int64_t index_stride = full_index ? index_shape.strides[d] : d == dim ? index_shape.strides[0] : 0;
    const int64_t strides[3] = {to.strides[d], self_stride, index_stride};
    g.walk.add(to.sizes[d], strides);
  }
  return run_walk(g, out, self);
}

ngResult run_gather(const Args& args) { return run_along(args, true); }
ngResult run_index_select(const Args& args) { return run_along(args, false); }

ngResult run_index(const Args& args) {
  const Tensor &self = args.in[0], &out = args.out[0];
  const Shape from(self), to(out);
  const int num_indices = args.num_in - 1;
  Gather g;
  g.set.from_end = true;
  for (int k = 0; k < num_indices; ++k) {
    g.add_index(args.in[1 + k], args.i(k), args.i(num_indices + k), k);
  }
  int order[kMaxDims];
  order_by_stride(to.ndim, to.strides, order);
  for (int d = 0; d < to.ndim; ++d) {
    const int dim = order[d];
    int64_t strides[Walk::kMaxOperands] = {to.strides[dim], from.strides[dim]};
    for (int k = 0; k < num_indices; ++k) strides[kFirstIndex + k] = Shape(args.in[1 + k]).strides[dim];
    g.walk.add(to.sizes[dim], strides);
  }
  return run_walk(g, out, self);
}

ngResult accepts_along(const Args& args) {
  return is_index_type(args.in[1]) ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

ngResult accepts_index(const Args& args) {
  if (args.num_in - 1 > IndexSet::kMax) return NG_ERROR_NOT_SUPPORTED;
  for (int k = 1; k < args.num_in; ++k) {
    if (!is_index_type(args.in[k]) || args.in[k].ndim != args.out[0].ndim) return NG_ERROR_NOT_SUPPORTED;
  }
  return NG_SUCCESS;
}

constexpr uint32_t kMovable = kAllTypes | kComplexTypes;
NG_KERNEL("gather", kMovable, run_gather, 0, accepts_along);
NG_KERNEL("index_select", kMovable, run_index_select, 0, accepts_along);
NG_KERNEL("index", kMovable, run_index, 0, accepts_index);

}  // namespace
}  // namespace ng
