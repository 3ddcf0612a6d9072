// What the data-movement operations share on the host: the struct behind kernels/index_walk.cl (sizes and strides of
// operands that are walked together), index operands, and how a range is cut into work-items. Knows no operation; the
// users are gather.cpp, scatter.cpp, index_mask.cpp, embedding.cpp, sort.cpp and loss.cpp.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernel.h"

namespace ocl {

// Sizes and strides of an operand; a 0-dimensional one is seen as one dimension of one element.
struct Shape {
  int ndim;
  const int64_t* sizes;
  const int64_t* strides;

  explicit Shape(const fl_tensor& t) : ndim(t.ndim), sizes(t.sizes), strides(t.strides) {
    static constexpr int64_t kOne[1] = {1};
    if (ndim == 0) ndim = 1, sizes = strides = kOne;
  }
  int dim(int64_t d) const { return static_cast<int>(d < 0 ? d + ndim : d); }
};

// A nest of loops over operands that share their sizes, the last dimension fastest. Dimensions are added from the
// outermost to the innermost and merge where all operands allow it. words() is the kernel's struct Walk.
class Walk {
 public:
  explicit Walk(int operands) : operands_(operands) {}

  void add(int64_t size, const int64_t* strides, bool may_merge = true) {
    numel_ *= size;
    if (size == 1) return;
    if (may_merge && ndim_ > 0 && mergeable(size, strides)) {
      sizes_[ndim_ - 1] *= size;
    } else {
      sizes_[ndim_++] = size;
    }
    for (int o = 0; o < operands_; ++o) strides_[ndim_ - 1][o] = strides[o];
  }

  int64_t numel() const { return numel_; }
  int ndim() const { return ndim_; }
  int64_t inner_size() const { return ndim_ > 0 ? sizes_[ndim_ - 1] : 1; }
  int64_t inner_stride(int operand) const { return ndim_ > 0 ? strides_[ndim_ - 1][operand] : 0; }

  // { ndim, numel, sizes[kMaxDims], strides[kMaxDims][operands] }; at least one dimension.
  std::vector<int64_t> words() const {
    std::vector<int64_t> all(2 + kMaxDims * (1 + static_cast<size_t>(operands_)), 0);
    all[0] = std::max(ndim_, 1);
    all[1] = numel_;
    all[2] = 1;
    for (int d = 0; d < ndim_; ++d) {
      all[2 + d] = sizes_[d];
      for (int o = 0; o < operands_; ++o) all[2 + kMaxDims + d * operands_ + o] = strides_[d][o];
    }
    return all;
  }

  static constexpr int kMaxOperands = 10;

 private:
  bool mergeable(int64_t size, const int64_t* strides) const {
    for (int o = 0; o < operands_; ++o)
      if (strides_[ndim_ - 1][o] != strides[o] * size) return false;
    return true;
  }

  int operands_, ndim_ = 0;
  int64_t numel_ = 1;
  int64_t sizes_[kMaxDims];
  int64_t strides_[kMaxDims][kMaxOperands];
};

// The order of dimensions by falling stride: a walk in it goes through memory forwards. Equal strides keep their order.
inline void order_by_stride(int ndim, const int64_t* strides, int* order) {
  for (int d = 0; d < ndim; ++d) {
    int at = d;
    for (; at > 0 && strides[order[at - 1]] < strides[d]; --at) order[at] = order[at - 1];
    order[at] = d;
  }
}

inline Bytes bytes_of(const std::vector<int64_t>& words) { return {words.data(), words.size() * sizeof(int64_t)}; }

inline bool is_index(const fl_tensor& t) { return type(t) == Type::Int64 || type(t) == Type::Int32; }

// The type that elements of this size move as.
inline Type mover(Type type) {
  switch (size_of(type)) {
    case 1: return Type::UInt8;
    case 2: return Type::Int16;
    case 4: return Type::Int32;
    default: return Type::Int64;
  }
}

// A range in pieces of `chunk`, one per work-item. CPU: several per core, none so small that its start counts; else
// one element each.
struct Pieces {
  int64_t chunk, count, local;
  Pieces(const Device& device, int64_t numel, int64_t least) {
    chunk = 1;
    if (device.cpu) chunk = std::max(least, (numel + device.compute_units * 8 - 1) / (device.compute_units * 8));
    count = (numel + chunk - 1) / chunk;
    local = device.cpu ? 1 : 64;
  }
};

// Index operands of one call and what they point into: struct IndexSet of index_walk.cl.
struct IndexSet {
  static constexpr int kMax = Walk::kMaxOperands - 2;
  int count = 0;
  bool from_end = false;  // negative indices count from the end
  const fl_tensor* tensors[kMax];
  int64_t extents[kMax], strides[kMax];

  void add(const fl_tensor& t, int64_t extent, int64_t stride) {
    tensors[count] = &t;
    extents[count] = extent;
    strides[count++] = stride;
  }
  Type type() const { return ocl::type(*tensors[0]); }
  // { from_end, extents[count], strides[count] }
  std::vector<int64_t> words() const {
    std::vector<int64_t> all{from_end ? 1 : 0};
    all.insert(all.end(), extents, extents + count);
    all.insert(all.end(), strides, strides + count);
    return all;
  }
};

// body(index tensors …): a launch with as many index operands as there are (INDEX_PARAMS of index_walk.cl).
template <class Body>
void with_indices(const IndexSet& set, const Body& body) {
  const auto& t = set.tensors;
  switch (set.count) {
    case 1: return body(*t[0]);
    case 2: return body(*t[0], *t[1]);
    case 3: return body(*t[0], *t[1], *t[2]);
    case 4: return body(*t[0], *t[1], *t[2], *t[3]);
    case 5: return body(*t[0], *t[1], *t[2], *t[3], *t[4]);
    case 6: return body(*t[0], *t[1], *t[2], *t[3], *t[4], *t[5]);
    case 7: return body(*t[0], *t[1], *t[2], *t[3], *t[4], *t[5], *t[6]);
    default: return body(*t[0], *t[1], *t[2], *t[3], *t[4], *t[5], *t[6], *t[7]);
  }
}

}  // namespace ocl
