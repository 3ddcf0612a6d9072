// nonzero and masked_select: kernels whose result's length depends on values. Both count per part of the input first,
// then fill each part from where the earlier parts end; the count goes to device memory.
#include "index_walk.h"

namespace ng {
namespace {

constexpr int kMaxParts = 64;

// Runs count(begin, end) over parts of [0, n), then fill(begin, end, first, last) with the hits before the part and
// before the next one. Fill writes every element to where the next hit belongs and moves on only after a hit: no
// branch that depends on values. So it must stop at `last`, or it would touch the next part's place; with one part
// `last` is n, which nothing can go beyond.
template <class Count, class Fill>
int64_t count_then_fill(int64_t n, double cost, const Count& count, const Fill& fill) {
  const int64_t wanted = static_cast<int64_t>(static_cast<double>(n) * cost / 10000.0);
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>({cores(), kMaxParts, wanted}));
  int64_t starts[kMaxParts + 1] = {};
  const double part_cost = cost * static_cast<double>(n) / static_cast<double>(parts);
  if (parts > 1) {
    parallel_for(parts, part_cost, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) starts[p + 1] = count(n * p / parts, n * (p + 1) / parts);
    });
    for (int64_t p = 0; p < parts; ++p) starts[p + 1] += starts[p];
  }
  if (parts == 1) return fill(int64_t{0}, n, int64_t{0}, n);
  parallel_for(parts, part_cost, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) fill(n * p / parts, n * (p + 1) / parts, starts[p], starts[p + 1]);
  });
  return starts[parts];
}

// The bits that make a value non-zero: all, but for the sign of a float.
uint64_t value_bits(ngDataType type) {
  switch (type) {
    case NG_FLOAT16:
    case NG_BFLOAT16: return 0x7fff;
    case NG_FLOAT32: return 0x7fffffff;
    case NG_COMPLEX64: return 0x7fffffff7fffffff;
    case NG_FLOAT64:
    case NG_COMPLEX128: return 0x7fffffffffffffff;
    default: return ~uint64_t{0};
  }
}

template <class E>
bool is_set(const E& element, uint64_t mask) {
  if constexpr (std::is_same_v<E, Bytes16>) {
    return ((element.low | element.high) & mask) != 0;
  } else {
    return (element & static_cast<E>(mask)) != 0;
  }
}

// Row-major over the tensor's own dimensions: coordinates are wanted, so none are merged.
template <class E>
class Nonzero {
 public:
  Nonzero(const Tensor& self, const Tensor& out)
      : shape_(self), data_(self.as<E>()), mask_(value_bits(self.type)), out_(out.as<int64_t>()), columns_(self.ndim) {
    row_stride_ = out.ndim > 0 ? out.strides[0] : 0;
    column_stride_ = out.ndim > 1 ? out.strides[1] : 1;
  }

  int64_t count(int64_t begin, int64_t end) const {
    int64_t found = 0;
    rows(begin, end, [&](const int64_t*, const E* row, int64_t first, int64_t last) {
      const int64_t stride = shape_.strides[shape_.ndim - 1];
      for (int64_t i = first; i < last; ++i) found += is_set(row[i * stride], mask_);
    });
    return found;
  }

  int64_t fill(int64_t begin, int64_t end, int64_t at, int64_t last_hit) const {
    const int64_t stride = shape_.strides[shape_.ndim - 1];
    rows(begin, end, [&](const int64_t* position, const E* row, int64_t first, int64_t last) {
      for (int64_t i = first; i < last && at < last_hit; ++i) {
        int64_t* const to = out_ + at * row_stride_;
        for (int d = 0; d < columns_ - 1; ++d) to[d * column_stride_] = position[d];
        if (columns_ > 0) to[(columns_ - 1) * column_stride_] = i;
        at += is_set(row[i * stride], mask_);
      }
    });
    return at;
  }

 private:
  // body(position, row, first, last): columns [first, last) of one row.
  template <class Body>
  void rows(int64_t begin, int64_t end, const Body& body) const {
    const int last = shape_.ndim - 1;
    int64_t position[kMaxDims];
    int64_t rest = begin, offset = 0;
    for (int d = last; d >= 0; --d) {
      position[d] = rest % shape_.sizes[d];
      rest /= shape_.sizes[d];
      if (d != last) offset += position[d] * shape_.strides[d];
    }
    while (begin < end) {
      const int64_t n = std::min(shape_.sizes[last] - position[last], end - begin);
      body(position, data_ + offset, position[last], position[last] + n);
      begin += n;
      position[last] = 0;
      for (int d = last - 1; d >= 0; --d) {
        offset += shape_.strides[d];
        if (++position[d] < shape_.sizes[d]) break;
        offset -= shape_.sizes[d] * shape_.strides[d];
        position[d] = 0;
      }
    }
  }

  Shape shape_;
  const E* data_;
  uint64_t mask_;
  int64_t* out_;
  int columns_;
  int64_t row_stride_, column_stride_;
};

ngResult run_nonzero(const Args& args) {
  const Tensor& self = args.in[0];
  for_size(size_of(self.type), [&](auto tag) {
    const Nonzero<decltype(tag)> work(self, args.out[0]);
    *args.out[1].as<int64_t>() = count_then_fill(
        self.numel(), 1.5, [&](int64_t begin, int64_t end) { return work.count(begin, end); },
        [&](int64_t begin, int64_t end, int64_t at, int64_t last) { return work.fill(begin, end, at, last); });
  });
  return NG_SUCCESS;
}

template <class E>
int64_t select(const Args& args, const Walk& walk) {
  const E* self = args.in[0].as<E>();
  const uint8_t* mask = args.in[1].as<uint8_t>();
  E* out = args.out[0].as<E>();
  const int64_t self_stride = walk.inner_stride(0), mask_stride = walk.inner_stride(1);
  const int64_t out_stride = Shape(args.out[0]).strides[0];
  return count_then_fill(
      walk.numel, 1.0,
      [&](int64_t begin, int64_t end) {
        int64_t found = 0;
        walk.run(begin, end, [&](const int64_t* at, int64_t n) {
          for (int64_t i = 0; i < n; ++i) found += mask[at[1] + i * mask_stride] != 0;
        });
        return found;
      },
      [&](int64_t begin, int64_t end, int64_t to, int64_t last_hit) {
        walk.run(begin, end, [&](const int64_t* at, int64_t n) {
          for (int64_t i = 0; i < n && to < last_hit; ++i) {
            out[to * out_stride] = self[at[0] + i * self_stride];
            to += mask[at[1] + i * mask_stride] != 0;
          }
        });
        return to;
      });
}

ngResult run_masked_select(const Args& args) {
  const Shape self(args.in[0]), mask(args.in[1]);
  Walk walk(2);
  for (int d = 0; d < self.ndim; ++d) {
    const int64_t strides[2] = {self.strides[d], mask.strides[d]};
    walk.add(self.sizes[d], strides);
  }
  for_size(size_of(args.in[0].type), [&](auto tag) {
    *args.out[1].as<int64_t>() = select<decltype(tag)>(args, walk);
  });
  return NG_SUCCESS;
}

ngResult accepts_masked_select(const Args& args) {
  const bool mask = args.in[1].type == NG_BOOL || args.in[1].type == NG_UINT8;
  return mask && args.in[0].ndim == args.in[1].ndim ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

constexpr uint32_t kMovable = kAllTypes | kComplexTypes;
NG_KERNEL("nonzero", kMovable, run_nonzero, bit(NG_INT64));
NG_KERNEL("masked_select", kMovable, run_masked_select, 0, accepts_masked_select);

}  // namespace
}  // namespace ng
