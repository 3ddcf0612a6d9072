// softmax, log_softmax and their backward passes along one dim of tensors with any strides. A dim that is dense is
// taken row by row with vectors along it; otherwise vectors run over neighbouring rows if those are dense.
#include <cmath>

#include "kernel.h"
#include "parallel.h"
#include "scratch.h"
#include "vector_math.h"

namespace ng {
namespace {

// All dims but the softmax one, as a loop over rows; operands: offsets in elements.
constexpr int kMaxDims = 64;
constexpr int kMaxOperands = 3;

struct Rows {
  int ndim = 0;
  int64_t sizes[kMaxDims], strides[kMaxOperands][kMaxDims];
  int64_t count = 1, length = 1, step[kMaxOperands] = {};
  int operands = 0;

  void offsets(int64_t row, int64_t* out) const {
    if (ndim == 1) {
      for (int k = 0; k < operands; ++k) out[k] = row * strides[k][0];
      return;
    }
    for (int k = 0; k < operands; ++k) out[k] = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      const int64_t at = row % sizes[d];
      row /= sizes[d];
      for (int k = 0; k < operands; ++k) out[k] += at * strides[k][d];
    }
  }
  // Rows next to each other are next to each other in memory, in all operands.
  bool neighbours_dense() const {
    if (ndim == 0 || sizes[ndim - 1] < 8) return false;
    for (int k = 0; k < operands; ++k) {
      if (strides[k][ndim - 1] != 1) return false;
    }
    return true;
  }
};

Rows make_rows(const Tensor* const* tensors, int operands, int64_t dim) {
  Rows rows;
  rows.operands = operands;
  const Tensor& t = *tensors[0];
  if (t.ndim == 0) return rows;
  if (dim < 0) dim += t.ndim;
  rows.length = t.sizes[dim];
  for (int k = 0; k < operands; ++k) rows.step[k] = tensors[k]->strides[dim];
  for (int d = 0; d < t.ndim; ++d) {
    if (d == dim || t.sizes[d] == 1) continue;
    rows.count *= t.sizes[d];
    // Merge with the dim before where strides allow.
    bool merges = rows.ndim > 0;
    for (int k = 0; k < operands && merges; ++k) {
      merges = rows.strides[k][rows.ndim - 1] == tensors[k]->strides[d] * t.sizes[d];
    }
    if (!merges) rows.sizes[rows.ndim++] = 1;
    rows.sizes[rows.ndim - 1] *= t.sizes[d];
    for (int k = 0; k < operands; ++k) rows.strides[k][rows.ndim - 1] = tensors[k]->strides[d];
  }
  return rows;
}

// ---- dense rows ----

template <class S>
Compute<S> row_max(const S* x, int64_t n) {
  using T = Compute<S>;
  constexpr int kLane = kLanes<T>;
  RunningMax<T> best[2];
  int64_t i = 0;
  for (; i + 2 * kLane <= n; i += 2 * kLane) {
    best[0].add(load_as(x + i));
    best[1].add(load_as(x + i + kLane));
  }
  for (; i < n; i += kLane) {
    const int64_t count = std::min<int64_t>(kLane, n - i);
    best[0].add(fill_rest<T>(load_some(x + i, count), count, -std::numeric_limits<T>::infinity()));
  }
  best[0].add(best[1]);
  return best[0].value();
}

// out: computing type, n rounded up to whole vectors, the rest is zeros. Returns the sum.
template <class S>
Compute<S> row_exp(const S* x, int64_t n, Compute<S> max, Compute<S>* out) {
  using T = Compute<S>;
  constexpr int kLane = kLanes<T>;
  Vector<T> sum[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLane <= n; i += 2 * kLane) {
#pragma GCC unroll 2
    for (int u = 0; u < 2; ++u) {
      const Vector<T> e = exp(load_as(x + i + u * kLane) - max);
      if (out) store(out + i + u * kLane, e);
      sum[u] += e;
    }
  }
  for (; i < n; i += kLane) {
    const int64_t count = std::min<int64_t>(kLane, n - i);
    const Vector<T> e = fill_rest<T>(exp(load_some(x + i, count) - max), count, T(0));
    if (out) store(out + i, e);
    sum[0] += e;
  }
  return horizontal_sum<T>(sum[0] + sum[1]);
}

template <class S, class D, bool kLog>
void softmax_row(const S* x, int64_t n, D* out, Compute<S>* buffer) {
  using T = Compute<S>;
  constexpr int kLane = kLanes<T>;
  const T max = row_max(x, n);
  const T sum = row_exp(x, n, max, kLog ? nullptr : buffer);
  if constexpr (kLog) {
    const T shift = std::log(sum);
    for (int64_t i = 0; i < n; i += kLane) {
      const int64_t count = std::min<int64_t>(kLane, n - i);
      store_some(out + i, (load_some(x + i, count) - max) - shift, count);
    }
  } else {
    const T scale = T(1) / sum;
    for (int64_t i = 0; i < n; i += kLane) {
      store_some(out + i, load(buffer + i) * scale, std::min<int64_t>(kLane, n - i));
    }
  }
}

template <class S, bool kLog>
void softmax_backward_row(const S* grad, const S* output, int64_t n, S* out) {
  using T = Compute<S>;
  constexpr int kLane = kLanes<T>;
  Vector<T> sums{};
  for (int64_t i = 0; i < n; i += kLane) {
    const int64_t count = std::min<int64_t>(kLane, n - i);
    const Vector<T> g = load_some(grad + i, count);
    sums += kLog ? g : g * load_some(output + i, count);
  }
  const T sum = horizontal_sum<T>(sums);
  for (int64_t i = 0; i < n; i += kLane) {
    const int64_t count = std::min<int64_t>(kLane, n - i);
    const Vector<T> g = load_some(grad + i, count), y = load_some(output + i, count);
    store_some(out + i, kLog ? g - exp(y) * sum : y * (g - sum), count);
  }
}

// ---- rows side by side: lane = row ----

template <class S, class D, bool kLog>
void softmax_columns(const S* x, int64_t x_step, int64_t n, int64_t count, D* out, int64_t out_step) {
  using T = Compute<S>;
  RunningMax<T> best;
  for (int64_t i = 0; i < n; ++i) best.add(load_some(x + i * x_step, count));
  const Vector<T> max = best.values();
  Vector<T> sum{};
  for (int64_t i = 0; i < n; ++i) sum += exp(load_some(x + i * x_step, count) - max);
  Vector<T> factor{};
  for (int64_t i = 0; i < count; ++i) factor[i] = kLog ? std::log(sum[i]) : T(1) / sum[i];
  for (int64_t i = 0; i < n; ++i) {
    const Vector<T> shifted = load_some(x + i * x_step, count) - max;
    store_some(out + i * out_step, kLog ? shifted - factor : exp(shifted) * factor, count);
  }
}

template <class S, bool kLog>
void softmax_backward_columns(const S* grad, int64_t grad_step, const S* output, int64_t output_step, int64_t n,
                              int64_t count, S* out, int64_t out_step) {
  using T = Compute<S>;
  Vector<T> sum{};
  for (int64_t i = 0; i < n; ++i) {
    const Vector<T> g = load_some(grad + i * grad_step, count);
    sum += kLog ? g : g * load_some(output + i * output_step, count);
  }
  for (int64_t i = 0; i < n; ++i) {
    const Vector<T> g = load_some(grad + i * grad_step, count), y = load_some(output + i * output_step, count);
    store_some(out + i * out_step, kLog ? g - exp(y) * sum : y * (g - sum), count);
  }
}

// Calls one(row offsets) or many(row offsets, count) for all rows; many takes up to kLanes rows side by side.
template <class T, class One, class Many>
void for_rows(const Rows& rows, const One& one, const Many& many) {
  const double cost = 1.0 * rows.length + 10;
  if (rows.step[0] != 1 && rows.neighbours_dense()) {
    const int64_t inner = rows.sizes[rows.ndim - 1], blocks = (inner + kLanes<T> - 1) / kLanes<T>;
    parallel_for(rows.count / inner * blocks, cost * 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i % blocks * kLanes<T>;
        int64_t offset[kMaxOperands];
        rows.offsets(i / blocks * inner + at, offset);
        many(offset, std::min<int64_t>(kLanes<T>, inner - at));
      }
    });
    return;
  }
  parallel_for(rows.count, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t offset[kMaxOperands];
      rows.offsets(i, offset);
      one(offset);
    }
  });
}

// The row itself if it is dense, else a dense copy.
template <class S>
const S* dense_row(const S* p, int64_t step, int64_t n, ScratchSlot slot) {
  if (step == 1 || n == 1) return p;
  S* copy = scratch<S>(slot, n);
  for (int64_t i = 0; i < n; ++i) copy[i] = p[i * step];
  return copy;
}

template <class D, class Body>
void with_dense_result(D* p, int64_t step, int64_t n, const Body& body) {
  if (step == 1 || n == 1) return body(p);
  D* dense = scratch<D>(kScratchResult, n);
  body(dense);
  for (int64_t i = 0; i < n; ++i) p[i * step] = dense[i];
}

template <class S, class D, bool kLog>
ngResult forward(const Args& args) {
  using T = Compute<S>;
  const Tensor* tensors[] = {&args.in[0], &args.out[0]};
  const Rows rows = make_rows(tensors, 2, args.i(0));
  const S* x = args.in[0].as<S>();
  D* out = args.out[0].as<D>();
  const int64_t n = rows.length;
  for_rows<T>(
      rows,
      [&](const int64_t* offset) {
        const S* from = dense_row(x + offset[0], rows.step[0], n, kScratchOperand);
        T* buffer = kLog ? nullptr : scratch<T>(kScratchRow, n + kLanes<T>);
        with_dense_result(out + offset[1], rows.step[1], n,
                          [&](D* to) { softmax_row<S, D, kLog>(from, n, to, buffer); });
      },
      [&](const int64_t* offset, int64_t count) {
        softmax_columns<S, D, kLog>(x + offset[0], rows.step[0], n, count, out + offset[1], rows.step[1]);
      });
  return NG_SUCCESS;
}

template <class S, bool kLog>
ngResult backward(const Args& args) {
  using T = Compute<S>;
  const Tensor* tensors[] = {&args.in[0], &args.in[1], &args.out[0]};
  const Rows rows = make_rows(tensors, 3, args.i(0));
  const S *grad = args.in[0].as<S>(), *output = args.in[1].as<S>();
  S* out = args.out[0].as<S>();
  const int64_t n = rows.length;
  for_rows<T>(
      rows,
      [&](const int64_t* offset) {
        const S* g = dense_row(grad + offset[0], rows.step[0], n, kScratchOperand);
        const S* y = dense_row(output + offset[1], rows.step[1], n, kScratchOperand2);
        with_dense_result(out + offset[2], rows.step[2], n, [&](S* to) { softmax_backward_row<S, kLog>(g, y, n, to); });
      },
      [&](const int64_t* offset, int64_t count) {
        softmax_backward_columns<S, kLog>(grad + offset[0], rows.step[0], output + offset[1], rows.step[1], n, count,
                                          out + offset[2], rows.step[2]);
      });
  return NG_SUCCESS;
}

template <bool kLog>
ngResult run_forward(const Args& args) {
  const bool widens = args.out[0].type == NG_FLOAT32;
  switch (args.in[0].type) {
    case NG_FLOAT16:
      return widens ? forward<Half, float, kLog>(args) : forward<Half, Half, kLog>(args);
    case NG_BFLOAT16:
      return widens ? forward<BFloat16, float, kLog>(args) : forward<BFloat16, BFloat16, kLog>(args);
    case NG_FLOAT32:
      return forward<float, float, kLog>(args);
    default:
      return forward<double, double, kLog>(args);
  }
}

// A half gradient of a float output (half in, float out) comes as float operands with a half result.
template <class G, class D, bool kLog>
ngResult backward_narrowing(const Args& args) {
  const Tensor& out = args.out[0];
  Tensor wide = out;
  wide.type = TypeOf<G>::value;
  // A dense float result of the same logical order as out, narrowed at the end.
  int64_t strides[kMaxDims], numel = 1;
  for (int d = out.ndim - 1; d >= 0; --d) strides[d] = numel, numel *= out.sizes[d];
  G* buffer = scratch<G>(kScratchResult2, numel);
  wide.data = buffer;
  wide.strides = strides;
  Args inner = args;
  inner.out = &wide;
  const ngResult status = backward<G, kLog>(inner);
  for (int64_t i = 0; i < numel; ++i) {
    int64_t offset = 0, rest = i;
    for (int d = out.ndim - 1; d >= 0; --d) offset += rest % out.sizes[d] * out.strides[d], rest /= out.sizes[d];
    out.as<D>()[offset] = D(buffer[i]);
  }
  return status;
}

template <bool kLog>
ngResult run_backward(const Args& args) {
  const ngDataType out = args.out[0].type;
  switch (args.in[0].type) {
    case NG_FLOAT16:
      return backward<Half, kLog>(args);
    case NG_BFLOAT16:
      return backward<BFloat16, kLog>(args);
    case NG_FLOAT32:
      if (out == NG_FLOAT16) return backward_narrowing<float, Half, kLog>(args);
      if (out == NG_BFLOAT16) return backward_narrowing<float, BFloat16, kLog>(args);
      return backward<float, kLog>(args);
    default:
      return backward<double, kLog>(args);
  }
}

NG_KERNEL("softmax", kFloatTypes, run_forward<false>);
NG_KERNEL("softmax", kHalfTypes, run_forward<false>, bit(NG_FLOAT32));
NG_KERNEL("log_softmax", kFloatTypes, run_forward<true>);
NG_KERNEL("log_softmax", kHalfTypes, run_forward<true>, bit(NG_FLOAT32));
NG_KERNEL("softmax_backward", kFloatTypes, run_backward<false>);
NG_KERNEL("softmax_backward", bit(NG_FLOAT32), run_backward<false>, kHalfTypes);
NG_KERNEL("log_softmax_backward", kFloatTypes, run_backward<true>);
NG_KERNEL("log_softmax_backward", bit(NG_FLOAT32), run_backward<true>, kHalfTypes);

}  // namespace
}  // namespace ng
