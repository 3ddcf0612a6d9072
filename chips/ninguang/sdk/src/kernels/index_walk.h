// What the data-movement kernels share: a loop over several strided operands at once (Walk), index operands of either
// width and the record of an index out of range, and the map from an element size or type to a C++ type.
// Knows no operator; the users are index_*.cpp, scatter.cpp, sort.cpp, cat.cpp and loss.cpp.
#pragma once
#include <atomic>
#include <cstdint>

#include "half.h"
#include "kernel.h"
#include "parallel.h"

namespace ng {

constexpr int kMaxDims = 64;

// Sizes and strides of an operand; a 0-dimensional one is seen as one dimension of one element, so that every kernel
// has a dimension to work along. An immediate has stride 0.
struct Shape {
  int ndim;
  const int64_t* sizes;
  const int64_t* strides;

  explicit Shape(const Tensor& t) : ndim(t.ndim), sizes(t.sizes), strides(t.strides) {
    static constexpr int64_t one[1] = {1};
    if (ndim == 0) ndim = 1, sizes = strides = one;
  }
  int dim(int64_t d) const { return static_cast<int>(d < 0 ? d + ndim : d); }
  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= sizes[d];
    return n;
  }
};

inline bool is_dense(const Tensor& t) {
  int64_t expected = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.sizes[d] != 1 && t.strides[d] != expected) return false;
    expected *= t.sizes[d];
  }
  return true;
}

// A nest of loops over operands that share their sizes, the last dimension fastest. Dimensions are added from the
// outermost to the innermost and merge where all operands allow it.
struct Walk {
  static constexpr int kMaxOperands = 18;
  int operands, ndim = 0;
  int64_t numel = 1;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims][kMaxOperands];

  explicit Walk(int operands) : operands(operands) { sizes[0] = 1; }

  // dim_strides: one per operand.
  void add(int64_t size, const int64_t* dim_strides) {
    numel *= size;
    if (size == 1) return;
    if (ndim > 0 && mergeable(size, dim_strides)) {
      sizes[ndim - 1] *= size;
    } else {
      sizes[ndim++] = size;
    }
    for (int o = 0; o < operands; ++o) strides[ndim - 1][o] = dim_strides[o];
  }

  int64_t inner_size() const { return ndim ? sizes[ndim - 1] : 1; }
  int64_t inner_stride(int operand) const { return ndim ? strides[ndim - 1][operand] : 0; }

  // body(offsets, n): n elements along the innermost dimension from these element offsets, for the flat range.
  template <class Body>
  void run(int64_t begin, int64_t end, const Body& body) const {
    int64_t offsets[kMaxOperands] = {};
    int64_t position[kMaxDims];
    if (ndim == 0) {
      if (begin < end) body(static_cast<const int64_t*>(offsets), int64_t{1});
      return;
    }
    int64_t rest = begin;
    for (int d = ndim - 1; d >= 0; --d) {
      position[d] = rest % sizes[d];
      rest /= sizes[d];
      for (int o = 0; o < operands; ++o) offsets[o] += position[d] * strides[d][o];
    }
    const int last = ndim - 1;
    while (begin < end) {
      const int64_t n = std::min(sizes[last] - position[last], end - begin);
      body(static_cast<const int64_t*>(offsets), n);
      begin += n;
      if (begin >= end) return;
      // The row is complete: carry into the outer dimensions.
      for (int o = 0; o < operands; ++o) offsets[o] -= position[last] * strides[last][o];
      position[last] = 0;
      for (int d = last - 1; d >= 0; --d) {
        for (int o = 0; o < operands; ++o) offsets[o] += strides[d][o];
        if (++position[d] < sizes[d]) break;
        for (int o = 0; o < operands; ++o) offsets[o] -= sizes[d] * strides[d][o];
        position[d] = 0;
      }
    }
  }

 private:
  bool mergeable(int64_t size, const int64_t* dim_strides) const {
    for (int o = 0; o < operands; ++o) {
      if (strides[ndim - 1][o] != dim_strides[o] * size) return false;
    }
    return true;
  }
};

// The order of dimensions by falling stride: a walk in it goes through memory forwards. Equal strides keep their order.
inline void order_by_stride(int ndim, const int64_t* strides, int* order) {
  for (int d = 0; d < ndim; ++d) {
    int at = d;
    for (; at > 0 && strides[order[at - 1]] < strides[d]; --at) order[at] = order[at - 1];
    order[at] = d;
  }
}

// An index operand of int64 or int32.
struct IndexReader {
  const void* data;
  bool wide;

  IndexReader() = default;
  explicit IndexReader(const Tensor& t) : data(t.data), wide(t.type == NG_INT64) {}
  int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

inline bool is_index_type(const Tensor& t) { return t.type == NG_INT64 || t.type == NG_INT32; }

// Remembers the first index found out of range, by any thread.
class IndexCheck {
 public:
  // True if inside; else remembers.
  bool operator()(int64_t index, int64_t size, int dim) {
    if (__builtin_expect(static_cast<uint64_t>(index) < static_cast<uint64_t>(size), 1)) return true;
    report(index, size, dim);
    return false;
  }
  __attribute__((noinline, cold)) void report(int64_t index, int64_t size, int dim) {
    if (found_.exchange(true)) return;
    index_ = index, size_ = size, dim_ = dim;
  }
  // To be called by one thread when the work is done.
  ngResult result() const {
    if (!found_.load()) return NG_SUCCESS;
    return fail(NG_ERROR_INDEX_OUT_OF_RANGE, "index %ld is out of bounds for dimension %d with size %ld",
                static_cast<long>(index_), dim_, static_cast<long>(size_));
  }

 private:
  std::atomic<bool> found_{false};
  int64_t index_ = 0, size_ = 0;
  int dim_ = 0;
};

// The index operands of one call and what they point into.
struct IndexSet {
  static constexpr int kMax = Walk::kMaxOperands - 2;
  int count = 0;
  bool from_end = false;  // negative indices count from the end
  IndexReader readers[kMax];
  int64_t extents[kMax];  // size of the dimension an index points into
  int64_t strides[kMax];  // that dimension's stride
  int dims[kMax];         // its number, for the error

  void add(const Tensor& t, int64_t extent, int64_t stride, int dim) {
    readers[count] = IndexReader(t);
    extents[count] = extent;
    strides[count] = stride;
    dims[count++] = dim;
  }

  // The element offset that all index operands together add, each read at its own place, or -1, reported, if one is
  // out of range. `at` holds one place per index operand.
  int64_t offset(const int64_t* at, IndexCheck& check) const {
    int64_t sum = 0;
    for (int k = 0; k < count; ++k) {
      const int64_t index = readers[k][at[k]], extent = extents[k];
      const int64_t wrapped = index + (from_end && index < 0 ? extent : 0);
      if (__builtin_expect(static_cast<uint64_t>(wrapped) >= static_cast<uint64_t>(extent), 0)) {
        check.report(index, extent, dims[k]);
        return -1;
      }
      sum += wrapped * strides[k];
    }
    return sum;
  }

  // The same for n places that are `steps` apart; true if all are in range.
  bool offsets(const int64_t* at, const int64_t* steps, int64_t n, int64_t* to, IndexCheck& check) const {
    bool inside = true;
    for (int k = 0; k < count; ++k) {
      inside &= k == 0 ? add_offsets<true>(k, at[k], steps[k], n, to) : add_offsets<false>(k, at[k], steps[k], n, to);
    }
    if (__builtin_expect(inside, 1)) return true;
    int64_t place[kMax];
    for (int64_t i = 0; i < n; ++i) {
      for (int k = 0; k < count; ++k) place[k] = at[k] + i * steps[k];
      to[i] = offset(place, check);
    }
    return false;
  }

 private:
  template <bool first>
  bool add_offsets(int k, int64_t at, int64_t step, int64_t n, int64_t* to) const {
    return readers[k].wide ? add_offsets<int64_t, first>(k, at, step, n, to)
                           : add_offsets<int32_t, first>(k, at, step, n, to);
  }
  // Without branches, so that it vectorises: complaints are gathered in a sign bit. Unsigned, so that it may overflow.
  template <class I, bool first>
  bool add_offsets(int k, int64_t at, int64_t step, int64_t n, int64_t* __restrict to) const {
    const I* __restrict const index = static_cast<const I*>(readers[k].data) + at;
    const uint64_t last = static_cast<uint64_t>(extents[k]) - 1, wrap = from_end ? last + 1 : 0;
    const uint64_t stride = static_cast<uint64_t>(strides[k]);
    uint64_t outside = 0;
    const auto add = [&](int64_t dense_or_step) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t given = index[i * dense_or_step];
        const uint64_t value = static_cast<uint64_t>(given) + (static_cast<uint64_t>(given >> 63) & wrap);
        outside |= value | (last - value);
        to[i] = static_cast<int64_t>((first ? 0 : static_cast<uint64_t>(to[i])) + value * stride);
      }
    };
    if (step == 1) add(1);
    else add(step);
    return static_cast<int64_t>(outside) >= 0;
  }
};

// Elements whose offsets are looked up at a time.
constexpr int64_t kIndexBatch = 256;

struct Bytes16 {
  uint64_t low, high;
};

// body(E{}) with an unsigned type of the element size: for kernels that only move.
template <class Body>
auto for_size(int64_t bytes, const Body& body) {
  switch (bytes) {
    case 1: return body(uint8_t{});
    case 2: return body(uint16_t{});
    case 4: return body(uint32_t{});
    case 8: return body(uint64_t{});
    default: return body(Bytes16{});
  }
}

template <class T> struct Tag {
  using type = T;
};

// body(Tag<T>{}) with the storage type.
template <class Body>
ngResult for_all_types(ngDataType type, const Body& body) {
  switch (type) {
    case NG_BOOL: return body(Tag<bool>{});
    case NG_UINT8: return body(Tag<uint8_t>{});
    case NG_INT8: return body(Tag<int8_t>{});
    case NG_INT16: return body(Tag<int16_t>{});
    case NG_INT32: return body(Tag<int32_t>{});
    case NG_INT64: return body(Tag<int64_t>{});
    case NG_FLOAT16: return body(Tag<Half>{});
    case NG_BFLOAT16: return body(Tag<BFloat16>{});
    case NG_FLOAT32: return body(Tag<float>{});
    case NG_FLOAT64: return body(Tag<double>{});
    default: return fail(NG_ERROR_NOT_SUPPORTED, "no kernel for data type %d", static_cast<int>(type));
  }
}

template <class Body>
ngResult for_float_types(ngDataType type, const Body& body) {
  switch (type) {
    case NG_FLOAT16: return body(Tag<Half>{});
    case NG_BFLOAT16: return body(Tag<BFloat16>{});
    case NG_FLOAT32: return body(Tag<float>{});
    case NG_FLOAT64: return body(Tag<double>{});
    default: return fail(NG_ERROR_NOT_SUPPORTED, "no kernel for data type %d", static_cast<int>(type));
  }
}

// Copies elements of `bytes` each between two places of one shape. Strides in elements, negative ones allowed.
// Defined in cat.cpp.
void copy_strided(int64_t bytes, int ndim, const int64_t* sizes, void* dst, const int64_t* dst_strides,
                  const void* src, const int64_t* src_strides);

}  // namespace ng
