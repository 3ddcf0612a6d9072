// attention: softmax(scale * Q K^T + mask) V, block by block over the keys with a running maximum, so that the scores
// are never stored whole. A row whose keys are all hidden gives zeros. The backward pass is attention_backward.cpp.
#include "attention.h"

#include "matmul_small.h"

namespace ng {
namespace {

constexpr int64_t kQueryBlock = 2 * kGemmRows;
constexpr int64_t kKeyBlock = 512;

// The running softmax of a block of query rows.
template <class T>
struct RunningRows {
  T max[kQueryBlock], sum[kQueryBlock];
  T* out;  // [kQueryBlock][ld], weighted values so far
  int64_t ld;

  // Turns the scores of one row into weights relative to the new maximum.
  void absorb(int64_t row, T* scores, int64_t count) {
    RunningMax<T> best;
    for (int64_t i = 0; i < count; i += kLanes<T>) {
      const int64_t lanes = std::min<int64_t>(kLanes<T>, count - i);
      best.add(fill_rest<T>(load_some(scores + i, lanes), lanes, -std::numeric_limits<T>::infinity()));
    }
    const T block_max = best.value(), old_max = max[row];
    const T new_max = block_max > old_max || block_max != block_max ? block_max : old_max;
    if (new_max == -std::numeric_limits<T>::infinity()) {
      std::fill_n(scores, count, T(0));
      return;
    }
    Vector<T> total{};
    for (int64_t i = 0; i < count; i += kLanes<T>) {
      const int64_t lanes = std::min<int64_t>(kLanes<T>, count - i);
      const Vector<T> weight = fill_rest<T>(exp(load_some(scores + i, lanes) - new_max), lanes, T(0));
      store_some(scores + i, weight, lanes);
      total += weight;
    }
    const T correction = std::exp(old_max - new_max);
    sum[row] = sum[row] * correction + horizontal_sum<T>(total);
    max[row] = new_max;
    if (correction == T(1)) return;
    for (int64_t i = 0; i < ld; i += kLanes<T>) store(out + row * ld + i, load(out + row * ld + i) * correction);
  }
};

template <class S>
void write_row(const Heads<S>& out, int64_t b, int64_t h, int64_t query, const Compute<S>* values, int64_t depth,
               Compute<S> sum) {
  using T = Compute<S>;
  const T scale = sum == T(0) ? T(0) : T(1) / sum;
  S* to = out.head(b, h) + query * out.stride[2];
  if (out.stride[3] == 1) return scale_to(values, to, depth, scale);
  for (int64_t e = 0; e < depth; ++e) to[e * out.stride[3]] = static_cast<S>(values[e] * scale);
}

template <class S>
class Forward {
 public:
  using T = Compute<S>;
  Forward(const Args& args, const AttentionShape& shape)
      : s_(shape),
        query_(args.in[0]),
        key_(args.in[1]),
        value_(args.in[2]),
        out_(args.out[0]),
        mask_(args.num_in > 3 ? args.in[3] : Tensor{}),
        logsumexp_(args.out[1]) {}

  void run() {
    const double cost = 0.02 * s_.keys * (s_.depth + s_.value_depth + 40);
    const int64_t heads = s_.batch * s_.heads;
    if (s_.queries <= kSkinnyRows && key_.stride[3] == 1 && value_.stride[3] == 1) {
      parallel_for(heads, 4 * cost * s_.queries, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) run_skinny(i / s_.heads, i % s_.heads);
      });
      return;
    }
    // Each task packs its head's keys and values; few heads are shared out by blocks of queries.
    const int64_t blocks = divide_up(s_.queries, kQueryBlock);
    const int64_t wanted = std::max<int64_t>(1, divide_up(4 * cores(), heads));
    const int64_t per_task = round_up(divide_up(blocks, std::min(blocks, wanted)), 4),
                  tasks = divide_up(blocks, per_task);
    parallel_for(heads * tasks, cost * per_task * kQueryBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / tasks, first = i % tasks * per_task * kQueryBlock;
        run_queries(head / s_.heads, head % s_.heads, first, std::min(s_.queries, first + per_task * kQueryBlock));
      }
    });
  }

 private:
  static constexpr int64_t kColumns = kGemmColumns<T>;

  // The keys that queries before `end` can see.
  int64_t visible_keys(int64_t end) const { return s_.causal ? std::min(s_.keys, end) : s_.keys; }

  void run_queries(int64_t b, int64_t h, int64_t first, int64_t last) {
    const int64_t keys = visible_keys(last), value_width = round_up(s_.value_depth, kColumns);
    T* packed_keys = scratch<T>(kScratchOperand, round_up(keys, kColumns) * s_.depth);
    T* packed_values = scratch<T>(kScratchOperand2, keys * value_width);
    const auto pack_keys = make_pack_b<T>(MatrixView<const S>{key_.head(b, h), key_.stride[3], key_.stride[2]});
    const auto pack_values = make_pack_b<T>(MatrixView<const S>{value_.head(b, h), value_.stride[2], value_.stride[3]});
    pack_keys(packed_keys, 0, keys, 0, s_.depth);
    pack_values(packed_values, 0, s_.value_depth, 0, keys);
    for (int64_t q = first; q < last; q += kQueryBlock) {
      run_block(b, h, q, std::min(kQueryBlock, last - q), keys, packed_keys, packed_values);
    }
  }

  void run_block(int64_t b, int64_t h, int64_t query, int64_t rows, int64_t packed_count, const T* keys,
                 const T* values) {
    const int64_t value_width = round_up(s_.value_depth, kColumns);
    T* queries = scratch<T>(kScratchPackA, kQueryBlock * s_.depth);
    T* scores = scratch<T>(kScratchSum, kQueryBlock * kKeyBlock);
    RunningRows<T> running;
    running.ld = value_width;
    running.out = scratch<T>(kScratchResult, kQueryBlock * value_width);
    std::fill_n(running.out, rows * value_width, T(0));
    std::fill_n(running.max, rows, -std::numeric_limits<T>::infinity());
    std::fill_n(running.sum, rows, T(0));
    pack_queries(b, h, query, rows, queries);
    const MaskView<S> mask = mask_of<S>(mask_, b, h);
    const int64_t visible = visible_keys(query + rows);
    for (int64_t k = 0; k < visible; k += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, visible - k);
      for (int64_t c = 0; c < count; c += kColumns) {
        for (int64_t r = 0; r < rows; r += kGemmRows) {
          const int tall = static_cast<int>(std::min<int64_t>(kGemmRows, rows - r));
          gemm_kernel<T>(tall, 2, true)(s_.depth, queries + r * s_.depth, 1, tall, keys + (k + c) * s_.depth, kColumns,
                                        scores + r * kKeyBlock + c, kKeyBlock);
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        T* row = scores + r * kKeyBlock;
        mask_row(mask, s_.causal, query + r, k, count, row);
        running.absorb(r, row, count);
      }
      add_values(rows, count, scores, values + k * kColumns, packed_count * kColumns, running);
    }
    for (int64_t r = 0; r < rows; ++r) {
      write_row(out_, b, h, query + r, running.out + r * value_width, s_.value_depth, running.sum[r]);
      write_logsumexp(b, h, query + r, running.max[r], running.sum[r]);
    }
  }

  void pack_queries(int64_t b, int64_t h, int64_t query, int64_t rows, T* packed) const {
    const auto pack = make_pack_a<T>(MatrixView<const S>{query_.head(b, h), query_.stride[2], query_.stride[3]});
    for (int64_t r = 0; r < rows; r += kGemmRows) {
      pack(packed + r * s_.depth, query + r, std::min<int64_t>(kGemmRows, rows - r), 0, s_.depth);
    }
    for (int64_t i = 0; i < rows * s_.depth; ++i) packed[i] *= static_cast<T>(s_.scale);
  }

  // running.out += weights x values
  void add_values(int64_t rows, int64_t count, const T* weights, const T* values, int64_t panel_step,
                  RunningRows<T>& running) const {
    alignas(64) T tile[kGemmRows * kColumns];
    for (int64_t c = 0; c < running.ld; c += kColumns, values += panel_step) {
      for (int64_t r = 0; r < rows; r += kGemmRows) {
        const int64_t tall = std::min<int64_t>(kGemmRows, rows - r);
        gemm_kernel<T>(static_cast<int>(tall), 2, false)(count, weights + r * kKeyBlock, kKeyBlock, 1, values, kColumns,
                                                         tile, kColumns);
        for (int64_t i = 0; i < tall; ++i) {
          T* to = running.out + (r + i) * running.ld + c;
          for (int64_t v = 0; v < kColumns; v += kLanes<T>) store(to + v, load(to + v) + load(tile + i * kColumns + v));
        }
      }
    }
  }

  // A few queries: keys and values are read once, in place.
  void run_skinny(int64_t b, int64_t h) {
    T* queries = scratch<T>(kScratchPackA, s_.queries * s_.depth);
    T* scores = scratch<T>(kScratchSum, s_.queries * (s_.keys + 1));
    T* sums = scratch<T>(kScratchResult, s_.queries * s_.value_depth);
    for (int64_t q = 0; q < s_.queries; ++q) {
      const S* from = query_.head(b, h) + q * query_.stride[2];
      for (int64_t e = 0; e < s_.depth; ++e)
        queries[q * s_.depth + e] = static_cast<T>(from[e * query_.stride[3]]) * static_cast<T>(s_.scale);
    }
    for (int64_t k = 0; k < s_.keys; k += 2) {
      const S* first = key_.head(b, h) + k * key_.stride[2];
      const S* columns[2] = {first, k + 1 < s_.keys ? first + key_.stride[2] : first};
      T pair[2 * kSkinnyRows];
      detail::dot_columns(s_.queries, queries, s_.depth, columns, s_.depth, pair, 2);
      for (int64_t q = 0; q < s_.queries; ++q) {
        scores[q * s_.keys + k] = pair[2 * q];
        if (k + 1 < s_.keys) scores[q * s_.keys + k + 1] = pair[2 * q + 1];
      }
    }
    RunningRows<T> running;
    running.ld = 0;
    running.out = nullptr;
    const MaskView<S> mask = mask_of<S>(mask_, b, h);
    for (int64_t q = 0; q < s_.queries; ++q) {
      running.max[q] = -std::numeric_limits<T>::infinity(), running.sum[q] = 0;
      mask_row(mask, s_.causal, q, 0, s_.keys, scores + q * s_.keys);
      running.absorb(q, scores + q * s_.keys, s_.keys);
    }
    detail::add_rows(s_.queries, scores, s_.keys, value_.head(b, h), value_.stride[2], s_.keys, s_.value_depth, sums);
    for (int64_t q = 0; q < s_.queries; ++q) {
      write_row(out_, b, h, q, sums + q * s_.value_depth, s_.value_depth, running.sum[q]);
      write_logsumexp(b, h, q, running.max[q], running.sum[q]);
    }
  }

  void write_logsumexp(int64_t b, int64_t h, int64_t query, T max, T sum) const {
    if (!logsumexp_) return;
    const double value = static_cast<double>(max) + std::log(static_cast<double>(sum));
    const int64_t at = b * logsumexp_.strides[0] + h * logsumexp_.strides[1] + query * logsumexp_.strides[2];
    write_parameter<double>(static_cast<char*>(logsumexp_.data) + at * size_of(logsumexp_.type), logsumexp_.type, 1, 1,
                            &value);
  }

  const AttentionShape s_;
  const Heads<const S> query_, key_, value_;
  const Heads<S> out_;
  const Tensor mask_, logsumexp_;
};

ngResult run_attention(const Args& args) {
  const Tensor &q = args.in[0], &k = args.in[1], &v = args.in[2];
  const AttentionShape shape{q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2],
                             q.sizes[3], v.sizes[3], args.f(0),  args.i(1) != 0};
  switch (q.type) {
    case NG_FLOAT16:
      Forward<Half>(args, shape).run();
      break;
    case NG_BFLOAT16:
      Forward<BFloat16>(args, shape).run();
      break;
    case NG_FLOAT32:
      Forward<float>(args, shape).run();
      break;
    default:
      Forward<double>(args, shape).run();
  }
  return NG_SUCCESS;
}

NG_KERNEL("attention", kFloatTypes, run_attention);

}  // namespace
}  // namespace ng
