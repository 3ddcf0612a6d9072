// embedding_backward: sums the gradient's rows into the rows of the weight that they came from. Positions are sorted by
// weight row first (counting sort, so in their own order within a row); then every row is written exactly once, zeros
// or a sum, by one core. The forward is index_select.
#include "index_walk.h"
#include "scratch.h"

namespace ng {
namespace {

// Places starts[v] to starts[v + 1] of `sources` hold the gradient rows (element offsets) that belong to weight row v.
struct Grouping {
  int64_t rows;
  int64_t* starts;
  int64_t* sources;
};

struct Grad {
  Walk walk{2};  // gradient rows, indices
  IndexReader indices;
  int64_t width, stride;  // of a row

  explicit Grad(const Args& args) : indices(args.in[1]) {
    const Shape grad(args.in[0]), index(args.in[1]);
    const int last = grad.ndim - 1;
    width = grad.sizes[last];
    stride = grad.strides[last];
    for (int d = 0; d < last; ++d) {
      const int64_t strides[2] = {grad.strides[d], index.strides[d]};
      walk.add(grad.sizes[d], strides);
    }
  }

  // body(gradient offset, weight row) in row-major order.
  template <class Body>
  void each(const Body& body) const {
    walk.run(0, walk.numel, [&](const int64_t* at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        body(at[0] + i * walk.inner_stride(0), indices[at[1] + i * walk.inner_stride(1)]);
      }
    });
  }
};

Grouping group(const Grad& grad, int64_t rows, int64_t padding, IndexCheck& check) {
  Grouping g{rows, scratch<int64_t>(kScratchOperand, rows + 2), scratch<int64_t>(kScratchOperand2, grad.walk.numel)};
  std::fill_n(g.starts, rows + 2, int64_t{0});
  grad.each([&](int64_t, int64_t row) {
    if (row != padding && check(row, rows, 0)) ++g.starts[row + 2];
  });
  for (int64_t v = 2; v < rows + 2; ++v) g.starts[v] += g.starts[v - 1];
  // Filling moves starts[v + 1] to the end of row v, which is where row v + 1 starts.
  grad.each([&](int64_t source, int64_t row) {
    const bool used = row != padding && static_cast<uint64_t>(row) < static_cast<uint64_t>(rows);
    if (used) g.sources[g.starts[row + 1]++] = source;
  });
  return g;
}

template <class T>
void sum_row(const T* grad, const Grad& what, const int64_t* sources, int64_t count, bool scaled, T* to,
             int64_t to_stride) {
  using C = Compute<T>;
  const int64_t n = what.width, stride = what.stride;
  if (count == 0) {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = T(C(0));
    return;
  }
  C* sum;
  if constexpr (std::is_same_v<C, T>) {
    sum = to_stride == 1 ? to : scratch<C>(kScratchRow, n);
  } else {
    sum = scratch<C>(kScratchRow, n);
  }
  for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<C>(grad[sources[0] + i * stride]);
  for (int64_t k = 1; k < count; ++k) {
    const T* from = grad + sources[k];
    if (stride == 1) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<C>(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<C>(from[i * stride]);
    }
  }
  const C scale = scaled ? C(1) / static_cast<C>(count) : C(1);
  if (scaled) {
    for (int64_t i = 0; i < n; ++i) sum[i] *= scale;
  }
  if (static_cast<void*>(sum) == static_cast<void*>(to)) return;
  for (int64_t i = 0; i < n; ++i) to[i * to_stride] = T(sum[i]);
}

template <class T>
ngResult backward(const Args& args) {
  const Tensor& out = args.out[0];
  const Grad grad(args);
  IndexCheck check;
  const int64_t rows = out.sizes[0];
  const Grouping g = group(grad, rows, args.i(0), check);
  const bool scaled = args.has(1) && args.i(1) != 0;
  // Parts of equal work: a row costs one write and one read per gradient row in it.
  const int64_t used = g.starts[rows], parts = std::min<int64_t>(cores() * 4, rows);
  auto boundary = [&](int64_t part) {
    if (part == parts) return rows;
    const int64_t wanted = (used + rows) / parts * part;
    int64_t low = 0, high = rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (g.starts[middle] + middle < wanted) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const double cost = 0.3 * static_cast<double>((used + rows) * grad.width) / static_cast<double>(parts);
  parallel_for(parts, cost, [&](int64_t begin, int64_t end) {
    for (int64_t v = boundary(begin), last = boundary(end); v < last; ++v) {
      sum_row(args.in[0].as<const T>(), grad, g.sources + g.starts[v], g.starts[v + 1] - g.starts[v], scaled,
              out.as<T>() + v * out.strides[0], out.strides[1]);
    }
  });
  return check.result();
}

ngResult run_embedding_backward(const Args& args) {
  return for_float_types(args.out[0].type, [&](auto tag) { return backward<typename decltype(tag)::type>(args); });
}

ngResult accepts_embedding_backward(const Args& args) {
  const bool shapes = args.out[0].ndim == 2 && args.in[0].ndim == args.in[1].ndim + 1;
  const bool types = is_index_type(args.in[1]) && args.in[0].type == args.out[0].type;
  return shapes && types ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

NG_KERNEL("embedding_backward", kFloatTypes, run_embedding_backward, 0, accepts_embedding_backward);

}  // namespace
}  // namespace ng
