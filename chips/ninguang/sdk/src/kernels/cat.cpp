// cat, flip and triangle: kernels that move elements to places known without looking at any value; and copy_strided,
// which they stand on.
#include <cstring>

#include "index_walk.h"

namespace ng {
namespace {

// One row of a copy. Dense rows go through memcpy.
template <class E>
void copy_row(E* dst, int64_t dst_stride, const E* src, int64_t src_stride, int64_t n) {
  if (dst_stride == 1 && src_stride == 1) {
    std::memcpy(dst, src, n * sizeof(E));
  } else if (dst_stride == 1 && src_stride == -1) {
    for (int64_t i = 0; i < n; ++i) dst[i] = src[-i];
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i * dst_stride] = src[i * src_stride];
  }
}

}  // namespace

void copy_strided(int64_t bytes, int ndim, const int64_t* sizes, void* dst, const int64_t* dst_strides,
                  const void* src, const int64_t* src_strides) {
  int order[kMaxDims];
  order_by_stride(ndim, dst_strides, order);
  Walk walk(2);
  for (int k = 0; k < ndim; ++k) {
    const int64_t strides[2] = {dst_strides[order[k]], src_strides[order[k]]};
    walk.add(sizes[order[k]], strides);
  }
  const int64_t dst_stride = walk.inner_stride(0), src_stride = walk.inner_stride(1);
  const bool dense = dst_stride == 1 && (src_stride == 1 || src_stride == -1);
  const double cost = dense ? 0.1 * static_cast<double>(bytes) + 4.0 / static_cast<double>(walk.inner_size()) : 1.5;
  for_size(bytes, [&](auto tag) {
    using E = decltype(tag);
    parallel_for(walk.numel, cost, [&](int64_t begin, int64_t end) {
      walk.run(begin, end, [&](const int64_t* at, int64_t n) {
        copy_row(static_cast<E*>(dst) + at[0], dst_stride, static_cast<const E*>(src) + at[1], src_stride, n);
      });
    });
  });
}

namespace {

ngResult run_cat(const Args& args) {
  const Tensor& out = args.out[0];
  const Shape shape(out);
  const int dim = shape.dim(args.i(0));
  const int64_t bytes = size_of(out.type);
  int64_t start = 0;
  for (int k = 0; k < args.num_in; ++k) {
    const Tensor& part = args.in[k];
    if (!part || part.numel() == 0) continue;  // also the 1-d empty ones that PyTorch lets pass
    if (part.type != out.type) return fail(NG_ERROR_NOT_SUPPORTED, "cat: operand %d has another type", k);
    const Shape part_shape(part);
    char* to = out.as<char>() + start * shape.strides[dim] * bytes;
    copy_strided(bytes, part_shape.ndim, part_shape.sizes, to, shape.strides, part.data, part_shape.strides);
    start += part_shape.sizes[dim];
  }
  return NG_SUCCESS;
}

ngResult accepts_cat(const Args& args) {
  for (int k = 0; k < args.num_in; ++k) {
    if (args.in[k].type != args.out[0].type) return NG_ERROR_NOT_SUPPORTED;
  }
  return NG_SUCCESS;
}

ngResult run_flip(const Args& args) {
  const Tensor& self = args.in[0];
  const Shape from(self), to(args.out[0]);
  int64_t strides[kMaxDims];
  std::copy_n(from.strides, from.ndim, strides);
  int64_t start = 0;
  for (int k = 0; k < args.num_attrs; ++k) {
    const int dim = from.dim(args.i(k));
    start += (from.sizes[dim] - 1) * from.strides[dim];
    strides[dim] = -from.strides[dim];
  }
  const int64_t bytes = size_of(self.type);
  copy_strided(bytes, to.ndim, to.sizes, args.out[0].data, to.strides, self.as<char>() + start * bytes, strides);
  return NG_SUCCESS;
}

// Row i keeps columns [first, last) and gets zeros elsewhere.
template <class E>
void triangle_rows(const Args& args, Walk& rows, int64_t columns, int64_t out_stride, int64_t self_stride) {
  const int64_t diagonal = args.i(0);
  const bool upper = args.i(1) != 0;
  E* out = args.out[0].as<E>();
  const E* self = args.in[0].as<E>();
  const int64_t row_stride = rows.inner_stride(2);
  const double cost = 2.0 + 0.4 * static_cast<double>(columns);
  parallel_for(rows.numel, cost, [&](int64_t begin, int64_t end) {
    rows.run(begin, end, [&](const int64_t* at, int64_t n) {
      for (int64_t r = 0; r < n; ++r) {
        E* to = out + at[0] + r * rows.inner_stride(0);
        const E* from = self + at[1] + r * rows.inner_stride(1);
        const int64_t cut = at[2] + r * row_stride + diagonal + (upper ? 0 : 1);  // first column after the cut
        const int64_t split = std::min(std::max<int64_t>(cut, 0), columns);
        const int64_t first = upper ? split : 0, last = upper ? columns : split;
        for (int64_t c = 0; c < first; ++c) to[c * out_stride] = E{};
        copy_row(to + first * out_stride, out_stride, from + first * self_stride, self_stride, last - first);
        for (int64_t c = last; c < columns; ++c) to[c * out_stride] = E{};
      }
    });
  });
}

ngResult run_triangle(const Args& args) {
  const Shape to(args.out[0]), from(args.in[0]);
  if (to.ndim < 2) return fail(NG_ERROR_INVALID_VALUE, "triangle needs two dimensions");
  const int column = to.ndim - 1;
  Walk rows(3);  // out, self, the row's number
  for (int d = 0; d < column; ++d) {
    const int64_t strides[3] = {to.strides[d], from.strides[d], d == column - 1 ? 1 : 0};
    rows.add(to.sizes[d], strides);
  }
  for_size(size_of(args.in[0].type), [&](auto tag) {
    triangle_rows<decltype(tag)>(args, rows, to.sizes[column], to.strides[column], from.strides[column]);
  });
  return NG_SUCCESS;
}

constexpr uint32_t kMovable = kAllTypes | kComplexTypes;
NG_KERNEL("cat", kMovable, run_cat, 0, accepts_cat);
NG_KERNEL("flip", kMovable, run_flip);
NG_KERNEL("triangle", kMovable, run_triangle);

}  // namespace
}  // namespace ng
