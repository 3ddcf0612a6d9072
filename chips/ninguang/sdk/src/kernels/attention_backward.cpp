// attention_backward. The weights are computed again from the saved logsumexp, a block of queries at a time; one task
// takes one head, so that nothing is summed between tasks.
#include "attention.h"

namespace ng {
namespace {

constexpr int64_t kQueryRows = 112;
constexpr int64_t kKeyColumns = 256;

template <class S>
class Backward {
 public:
  using T = Compute<S>;
  Backward(const Args& args, const AttentionShape& shape)
      : s_(shape),
        grad_(args.in[0]),
        query_(args.in[1]),
        key_(args.in[2]),
        value_(args.in[3]),
        out_(args.in[5]),
        grad_query_(args.out[0]),
        grad_key_(args.out[1]),
        grad_value_(args.out[2]),
        mask_(args.in[4]),
        logsumexp_(args.in[6]) {}

  void run() {
    const int64_t heads = s_.batch * s_.heads;
    const bool split = heads >= cores();  // else the products themselves are split
    const auto body = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run_head(i / s_.heads, i % s_.heads, !split);
    };
    if (!split) return body(0, heads);
    parallel_for(heads, 0.1 * s_.queries * s_.keys * s_.depth, body);
  }

 private:
  void run_head(int64_t b, int64_t h, bool parallel) {
    T* grad_key = scratch<T>(kScratchResult, s_.keys * (s_.depth + s_.value_depth));
    T* grad_value = grad_key + s_.keys * s_.depth;
    std::fill_n(grad_key, s_.keys * (s_.depth + s_.value_depth), T(0));
    for (int64_t q = 0; q < s_.queries; q += kQueryRows) {
      run_queries(b, h, q, std::min(kQueryRows, s_.queries - q), grad_key, grad_value, parallel);
    }
    write(grad_key_, b, h, 0, s_.keys, s_.depth, grad_key, static_cast<T>(s_.scale));
    write(grad_value_, b, h, 0, s_.keys, s_.value_depth, grad_value, T(1));
  }

  void run_queries(int64_t b, int64_t h, int64_t query, int64_t rows, T* grad_key, T* grad_value, bool parallel) {
    T* grad_query = scratch<T>(kScratchResult2, rows * s_.depth);
    T* weights = scratch<T>(kScratchOperand, 2 * rows * kKeyColumns);
    T* slopes = weights + rows * kKeyColumns;
    T deltas[kQueryRows], logsumexp[kQueryRows];
    std::fill_n(grad_query, rows * s_.depth, T(0));
    for (int64_t r = 0; r < rows; ++r)
      deltas[r] = delta(b, h, query + r), logsumexp[r] = read_logsumexp(b, h, query + r);
    const MatrixView<const S> q{query_.head(b, h) + query * query_.stride[2], query_.stride[2], query_.stride[3]};
    const MatrixView<const S> g{grad_.head(b, h) + query * grad_.stride[2], grad_.stride[2], grad_.stride[3]};
    const MaskView<S> mask = mask_of<S>(mask_, b, h);
    const int64_t visible = s_.causal ? std::min(s_.keys, query + rows) : s_.keys;
    for (int64_t k = 0; k < visible; k += kKeyColumns) {
      const int64_t count = std::min(kKeyColumns, visible - k);
      const S* keys = key_.head(b, h) + k * key_.stride[2];
      const S* values = value_.head(b, h) + k * value_.stride[2];
      multiply(q, MatrixView<const S>{keys, key_.stride[3], key_.stride[2]}, {rows, count, s_.depth}, weights, false,
               parallel);
      multiply(g, MatrixView<const S>{values, value_.stride[3], value_.stride[2]}, {rows, count, s_.value_depth},
               slopes, false, parallel);
      for (int64_t r = 0; r < rows; ++r) {
        T *w = weights + r * count, *d = slopes + r * count;
        for (int64_t i = 0; i < count; ++i) w[i] *= static_cast<T>(s_.scale);
        mask_row(mask, s_.causal, query + r, k, count, w);
        differentiate_row(w, d, count, logsumexp[r], deltas[r]);
      }
      const MatrixView<T> d{slopes, count, 1}, d_transposed{slopes, 1, count}, w_transposed{weights, 1, count};
      multiply(w_transposed, g, {count, s_.value_depth, rows}, grad_value + k * s_.value_depth, true, parallel);
      multiply(d_transposed, q, {count, s_.depth, rows}, grad_key + k * s_.depth, true, parallel);
      multiply(d, MatrixView<const S>{keys, key_.stride[2], key_.stride[3]}, {rows, s_.depth, count}, grad_query, true,
               parallel);
    }
    write(grad_query_, b, h, query, rows, s_.depth, grad_query, static_cast<T>(s_.scale));
  }

  // Scores to weights, and the gradient of the weights to that of the scores. A hidden row has no gradient.
  static void differentiate_row(T* w, T* d, int64_t count, T logsumexp, T delta) {
    if (logsumexp == -std::numeric_limits<T>::infinity()) {
      std::fill_n(w, count, T(0));
      std::fill_n(d, count, T(0));
      return;
    }
    for (int64_t i = 0; i < count; i += kLanes<T>) {
      const int64_t lanes = std::min<int64_t>(kLanes<T>, count - i);
      const Vector<T> weight = exp(load_some(w + i, lanes) - logsumexp);
      store_some(d + i, weight * (load_some(d + i, lanes) - delta), lanes);
      store_some(w + i, weight, lanes);
    }
  }

  // out [rows][columns] (+)= a x b
  template <class A, class B>
  static void multiply(const MatrixView<A>& a, const MatrixView<B>& b, const GemmShape& shape, T* out, bool add,
                       bool parallel) {
    const auto finish = [&](int64_t row, int64_t rows, int64_t column, int64_t columns, const T* tile, int64_t ld) {
      for (int64_t r = 0; r < rows; ++r) {
        T* to = out + (row + r) * shape.columns + column;
        for (int64_t c = 0; c < columns; c += kLanes<T>) {
          const int64_t lanes = std::min<int64_t>(kLanes<T>, columns - c);
          const Vector<T> sums = load(tile + r * ld + c);
          store_some(to + c, add ? load_some(to + c, lanes) + sums : sums, lanes);
        }
      }
    };
    gemm<T>(shape, make_pack_a<T>(a), make_pack_b<T>(b), finish, parallel);
  }

  static void write(const Heads<S>& to, int64_t b, int64_t h, int64_t row0, int64_t rows, int64_t columns,
                    const T* values, T scale) {
    if (!to.data) return;
    for (int64_t r = 0; r < rows; ++r) {
      S* out = to.head(b, h) + (row0 + r) * to.stride[2];
      for (int64_t c = 0; c < columns; ++c) out[c * to.stride[3]] = static_cast<S>(values[r * columns + c] * scale);
    }
  }

  // grad . out of one row
  T delta(int64_t b, int64_t h, int64_t query) const {
    const S *g = grad_.head(b, h) + query * grad_.stride[2], *o = out_.head(b, h) + query * out_.stride[2];
    T sum = 0;
    for (int64_t e = 0; e < s_.value_depth; ++e)
      sum += static_cast<T>(g[e * grad_.stride[3]]) * static_cast<T>(o[e * out_.stride[3]]);
    return sum;
  }
  T read_logsumexp(int64_t b, int64_t h, int64_t query) const {
    const int64_t at = b * logsumexp_.strides[0] + h * logsumexp_.strides[1] + query * logsumexp_.strides[2];
    T value;
    read_parameter<T>(static_cast<char*>(logsumexp_.data) + at * size_of(logsumexp_.type), logsumexp_.type, 1, 1, T(0),
                      &value);
    return value;
  }

  const AttentionShape s_;
  const Heads<const S> grad_, query_, key_, value_, out_;
  const Heads<S> grad_query_, grad_key_, grad_value_;
  const Tensor mask_, logsumexp_;
};

ngResult run_attention_backward(const Args& args) {
  const Tensor &q = args.in[1], &k = args.in[2], &v = args.in[3];
  const AttentionShape shape{q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2],
                             q.sizes[3], v.sizes[3], args.f(0),  args.i(1) != 0};
  switch (q.type) {
    case NG_FLOAT16:
      Backward<Half>(args, shape).run();
      break;
    case NG_BFLOAT16:
      Backward<BFloat16>(args, shape).run();
      break;
    case NG_FLOAT32:
      Backward<float>(args, shape).run();
      break;
    default:
      Backward<double>(args, shape).run();
  }
  return NG_SUCCESS;
}

NG_KERNEL("attention_backward", kFloatTypes, run_attention_backward);

}  // namespace
}  // namespace ng
