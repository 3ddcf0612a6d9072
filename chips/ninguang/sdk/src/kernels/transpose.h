// Transposition of small blocks, the hot part of packing and of changing between row-major and channels-last.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "half.h"

namespace ng {
namespace detail {

typedef int32_t Lane16 __attribute__((vector_size(64)));
typedef float Float16Lanes __attribute__((vector_size(64)));
typedef float Float16LanesU __attribute__((vector_size(64), aligned(4), may_alias));

// dst[c * ld_dst + r] = src[r * ld_src + c] for 16 x 16 four-byte elements: four rounds of interleaving.
// With fewer rows the rest is written as zeros.
template <int kRows = 16>
inline void transpose_16x16(const float* src, int64_t ld_src, float* dst, int64_t ld_dst) {
  Float16Lanes rows[16], next[16];
  constexpr Lane16 low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  constexpr Lane16 high = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    rows[i] = i < kRows ? *reinterpret_cast<const Float16LanesU*>(src + i * ld_src) : Float16Lanes{};
  }
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + 8], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + 8], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) *reinterpret_cast<Float16LanesU*>(dst + i * ld_dst) = rows[i];
}
}  // namespace detail

// dst[c * ld_dst + r] = src[r * ld_src + c], converted. ld_dst >= rows.
template <class Dst, class Src>
void transpose_block(const Src* src, int64_t ld_src, Dst* dst, int64_t ld_dst, int64_t rows, int64_t columns) {
  int64_t r = 0;
  if constexpr (sizeof(Src) == 4 && std::is_same_v<Dst, Src>) {
    const float* from = reinterpret_cast<const float*>(src);
    float* to = reinterpret_cast<float*>(dst);
    for (; r + 16 <= rows; r += 16) {
      int64_t c = 0;
      for (; c + 16 <= columns; c += 16) detail::transpose_16x16(from + r * ld_src + c, ld_src, to + c * ld_dst + r, ld_dst);
      for (; c < columns; ++c) {
        for (int64_t i = 0; i < 16; ++i) dst[c * ld_dst + r + i] = src[(r + i) * ld_src + c];
      }
    }
    if (rows == 14 && ld_dst == 14) {
      // Each column's two surplus zeros are overwritten by the next column; so the last columns go one by one.
      int64_t c = 0;
      for (; c + 16 < columns; c += 16) detail::transpose_16x16<14>(from + c, ld_src, to + c * ld_dst, ld_dst);
      for (; c < columns; ++c) {
        for (int64_t i = 0; i < 14; ++i) dst[c * ld_dst + i] = src[i * ld_src + c];
      }
      return;
    }
  }
  if constexpr (is_half<Src> && std::is_same_v<Dst, float>) {
    // Converting whole rows first lets the bulk instructions work.
    constexpr int64_t kChunk = 64;
    alignas(64) float rows_as_float[16 * kChunk];
    for (; r < rows; r += 16) {
      const int64_t count = std::min<int64_t>(16, rows - r);
      for (int64_t c = 0; c < columns; c += kChunk) {
        const int64_t width = std::min(kChunk, columns - c);
        for (int64_t i = 0; i < count; ++i) to_float(src + (r + i) * ld_src + c, rows_as_float + i * kChunk, width);
        transpose_block(rows_as_float, kChunk, dst + c * ld_dst + r, ld_dst, count, width);
      }
    }
    return;
  }
  if (r == rows) return;
  constexpr int64_t kBlock = 16;  // keeps both sides in the first-level cache
  for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
    const int64_t c1 = std::min(columns, c0 + kBlock);
    for (int64_t i = r; i < rows; ++i) {
      for (int64_t c = c0; c < c1; ++c) dst[c * ld_dst + i] = static_cast<Dst>(src[i * ld_src + c]);
    }
  }
}

}  // namespace ng
