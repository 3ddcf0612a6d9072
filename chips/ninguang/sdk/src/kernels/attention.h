// What the forward and backward passes of attention share: operands, the mask, and the scores of a block.
#pragma once
#include <cmath>
#include <limits>

#include "gemm.h"
#include "kernel.h"
#include "vector_math.h"

namespace ng {

// [B, H, L, E] with any strides.
template <class S>
struct Heads {
  S* data;
  int64_t stride[4];

  explicit Heads(const Tensor& t) : data(t.as<S>()), stride{} {
    if (t) std::copy_n(t.strides, 4, stride);
  }
  S* head(int64_t b, int64_t h) const { return data + b * stride[0] + h * stride[1]; }
};

struct AttentionShape {
  int64_t batch, heads, queries, keys, depth, value_depth;
  double scale;
  bool causal;
};

// The additive mask of one head; data nullptr: none.
template <class S>
struct MaskView {
  const S* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
};

template <class S>
MaskView<S> mask_of(const Tensor& mask, int64_t b, int64_t h) {
  if (!mask) return {};
  const int first = 4 - mask.ndim;  // missing leading dims broadcast
  const auto stride = [&](int d) { return d >= first && mask.sizes[d - first] != 1 ? mask.strides[d - first] : 0; };
  return {mask.as<S>() + b * stride(0) + h * stride(1), stride(2), stride(3)};
}

// Adds the mask to a row of scores for keys [key0, key0 + count), and hides the keys after `query` if causal.
template <class S>
void mask_row(const MaskView<S>& mask, bool causal, int64_t query, int64_t key0, int64_t count, Compute<S>* scores) {
  using T = Compute<S>;
  if (mask.data) {
    const S* p = mask.data + query * mask.row_stride + key0 * mask.column_stride;
    if (mask.column_stride == 1) {
      for (int64_t i = 0; i < count; i += kLanes<T>) {
        const int64_t lanes = std::min<int64_t>(kLanes<T>, count - i);
        store_some(scores + i, load_some(scores + i, lanes) + load_some(p + i, lanes), lanes);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) scores[i] += static_cast<T>(p[i * mask.column_stride]);
    }
  }
  if (causal) {
    for (int64_t i = std::max<int64_t>(0, query + 1 - key0); i < count; ++i)
      scores[i] = -std::numeric_limits<T>::infinity();
  }
}

}  // namespace ng
