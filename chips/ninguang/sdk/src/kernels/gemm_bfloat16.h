// Packing for products of bfloat16 pairs (BFloat16Pair): the counterparts of make_pack_a and make_pack_b of gemm.h, and
// wrappers that make pairs of what any float packer delivers. k and depth count pairs; numbers is the true depth, which
// may be odd.
#pragma once
#include "gemm.h"

namespace ng {

inline uint32_t bfloat16_pair(float low, float high) {
  return float_to_bits(low) >> 16 | (float_to_bits(high) & 0xffff0000u);
}

// pack_float(dst, row, rows, k, depth) of numbers that are exact in bfloat16.
template <class Pack>
auto pair_up_a(const Pack& pack_float, int64_t numbers) {
  return [pack_float, numbers](BFloat16Pair* dst, int64_t row, int64_t rows, int64_t k, int64_t depth) {
    constexpr int64_t kChunk = 64;  // pairs
    alignas(64) float wide[2 * kChunk * kGemmRows];
    for (int64_t i = 0; i < depth; i += kChunk) {
      const int64_t count = std::min(kChunk, depth - i), first = 2 * (k + i),
                    given = std::min(2 * count, numbers - first);
      pack_float(wide, row, rows, first, given);
      if (given < 2 * count) std::fill_n(wide + given * rows, rows, 0.0f);
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t r = 0; r < rows; ++r) {
          dst[(i + j) * rows + r].bits = bfloat16_pair(wide[2 * j * rows + r], wide[(2 * j + 1) * rows + r]);
        }
      }
    }
  };
}

template <class Pack>
auto pair_up_b(const Pack& pack_float, int64_t numbers) {
  return [pack_float, numbers](BFloat16Pair* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    constexpr int64_t kChunk = 64, kColumns = kGemmColumns<float>;
    alignas(64) float wide[2 * kChunk * kColumns];
    for (int64_t c = 0; c < columns; c += kColumns, dst += depth * kColumns) {
      for (int64_t i = 0; i < depth; i += kChunk) {
        const int64_t count = std::min(kChunk, depth - i), first = 2 * (k + i),
                      given = std::min(2 * count, numbers - first);
        pack_float(wide, column + c, std::min(kColumns, columns - c), first, given);
        if (given < 2 * count) std::fill_n(wide + given * kColumns, kColumns, 0.0f);
        for (int64_t j = 0; j < count; ++j) {
          const float *low = wide + 2 * j * kColumns, *high = low + kColumns;
          for (int64_t n = 0; n < kColumns; ++n) dst[(i + j) * kColumns + n].bits = bfloat16_pair(low[n], high[n]);
        }
      }
    }
  };
}

namespace detail {

// Runs along k are pairs already: rows of 32-bit words, transposed. The last number of an odd depth stands alone.
inline void pack_pairs(const BFloat16* src, int64_t ld, int64_t lines, int64_t k, int64_t depth, int64_t numbers,
                       BFloat16Pair* dst, int64_t ld_dst) {
  const int64_t whole = std::min(depth, numbers / 2 - k);
  transpose_block(reinterpret_cast<const uint32_t*>(src + 2 * k), ld / 2, reinterpret_cast<uint32_t*>(dst), ld_dst,
                  lines, whole);
  for (int64_t i = whole; i < depth; ++i) {
    for (int64_t r = 0; r < lines; ++r) dst[i * ld_dst + r].bits = src[r * ld + 2 * (k + i)].bits;
  }
}

// Two rows of b, interleaved; high may be nullptr.
inline void pack_row_pair(const BFloat16* low, const BFloat16* high, int64_t count, BFloat16Pair* dst) {
  for (int64_t c = 0; c < count; ++c) {
    dst[c].bits = low[c].bits | (high ? static_cast<uint32_t>(high[c].bits) << 16 : 0u);
  }
}

}  // namespace detail

template <class S>
auto make_pack_a_pairs(MatrixView<S> a, int64_t numbers) {
  const auto general = pair_up_a(make_pack_a<float>(a), numbers);
  return [=](BFloat16Pair* dst, int64_t row, int64_t rows, int64_t k, int64_t depth) {
    if (a.column_stride == 1 && a.row_stride % 2 == 0) {
      return detail::pack_pairs(a.at(row, 0), a.row_stride, rows, k, depth, numbers, dst, rows);
    }
    general(dst, row, rows, k, depth);
  };
}

template <class S>
auto make_pack_b_pairs(MatrixView<S> b, int64_t numbers) {
  const auto general = pair_up_b(make_pack_b<float>(b), numbers);
  return [=](BFloat16Pair* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    constexpr int64_t kColumns = kGemmColumns<float>;
    const int64_t rest = columns % kColumns, panel_size = depth * kColumns;
    const bool along_k = b.row_stride == 1 && b.column_stride % 2 == 0 && b.column_stride != 1;
    if (!along_k && b.column_stride != 1) return general(dst, column, columns, k, depth);
    if (rest != 0)
      std::memset(static_cast<void*>(dst + columns / kColumns * panel_size), 0, panel_size * sizeof(BFloat16Pair));
    if (along_k) {
      for (int64_t c = 0; c < columns; c += kColumns, dst += panel_size) {
        detail::pack_pairs(b.at(0, column + c), b.column_stride, std::min(kColumns, columns - c), k, depth, numbers,
                           dst, kColumns);
      }
      return;
    }
    for (int64_t i = 0; i < depth; ++i, dst += kColumns) {
      const BFloat16* low = b.at(2 * (k + i), column);
      const BFloat16* high = 2 * (k + i) + 1 < numbers ? low + b.row_stride : nullptr;
      for (int64_t c = 0; c < columns; c += kColumns) {
        detail::pack_row_pair(low + c, high ? high + c : nullptr, std::min(kColumns, columns - c), dst + c * depth);
      }
    }
  };
}

// The packers of a storage type for its element.
template <class S>
auto pack_a_for(MatrixView<S> a, int64_t numbers) {
  if constexpr (std::is_same_v<GemmElement<std::remove_const_t<S>>, BFloat16Pair>) {
    return make_pack_a_pairs(a, numbers);
  } else {
    return make_pack_a<GemmElement<std::remove_const_t<S>>>(a);
  }
}
template <class S>
auto pack_b_for(MatrixView<S> b, int64_t numbers) {
  if constexpr (std::is_same_v<GemmElement<std::remove_const_t<S>>, BFloat16Pair>) {
    return make_pack_b_pairs(b, numbers);
  } else {
    return make_pack_b<GemmElement<std::remove_const_t<S>>>(b);
  }
}

}  // namespace ng
