// Transposition of small blocks, the hot part of packing and of changing between row-major and channels-last.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "half.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace ng {
namespace detail {

#if defined(__AVX512F__)
typedef int32_t Lane16 __attribute__((vector_size(64)));
typedef float Float16Lanes __attribute__((vector_size(64)));

// Columns of the sixteen rows become rows: four rounds of interleaving.
inline void transpose_registers(Float16Lanes (&rows)[16]) {
  Float16Lanes next[16];
  constexpr Lane16 low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  constexpr Lane16 high = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
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
}

// dst[c * ld_dst + r] = src[r * ld_src + c] for up to 16 x 16 four-byte elements; touches no others.
inline void transpose_tile(const float* src, int64_t ld_src, float* dst, int64_t ld_dst, int64_t rows,
                           int64_t columns) {
  Float16Lanes lanes[16];
  if (rows == 16 && columns == 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) lanes[i] = (Float16Lanes)_mm512_loadu_ps(src + i * ld_src);
    transpose_registers(lanes);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_ps(dst + i * ld_dst, (__m512)lanes[i]);
    return;
  }
  const __mmask16 row_mask = static_cast<__mmask16>((1u << rows) - 1),
                  column_mask = static_cast<__mmask16>((1u << columns) - 1);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    lanes[i] = (Float16Lanes)_mm512_maskz_loadu_ps(i < rows ? column_mask : __mmask16{0},
                                                   src + std::min<int64_t>(i, rows - 1) * ld_src);
  }
  transpose_registers(lanes);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i < columns) _mm512_mask_storeu_ps(dst + i * ld_dst, row_mask, (__m512)lanes[i]);
  }
}
#endif

}  // namespace detail

// dst[c * ld_dst + r] = src[r * ld_src + c], converted.
template <class Dst, class Src>
void transpose_block(const Src* src, int64_t ld_src, Dst* dst, int64_t ld_dst, int64_t rows, int64_t columns) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Src) == 4 && std::is_same_v<Dst, Src>) {
    const float* from = reinterpret_cast<const float*>(src);
    float* to = reinterpret_cast<float*>(dst);
    for (int64_t r = 0; r < rows; r += 16) {
      for (int64_t c = 0; c < columns; c += 16) {
        detail::transpose_tile(from + r * ld_src + c, ld_src, to + c * ld_dst + r, ld_dst,
                               std::min<int64_t>(16, rows - r), std::min<int64_t>(16, columns - c));
      }
    }
    return;
  }
#endif
  if constexpr (is_half<Src> && std::is_same_v<Dst, float>) {
    // Converting whole rows first lets the bulk instructions work.
    constexpr int64_t kChunk = 64;
    alignas(64) float rows_as_float[16 * kChunk];
    for (int64_t r = 0; r < rows; r += 16) {
      const int64_t count = std::min<int64_t>(16, rows - r);
      for (int64_t c = 0; c < columns; c += kChunk) {
        const int64_t width = std::min(kChunk, columns - c);
        for (int64_t i = 0; i < count; ++i) to_float(src + (r + i) * ld_src + c, rows_as_float + i * kChunk, width);
        transpose_block(rows_as_float, kChunk, dst + c * ld_dst + r, ld_dst, count, width);
      }
    }
    return;
  }
  constexpr int64_t kBlock = 16;  // keeps both sides in the first-level cache
  for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
    const int64_t c1 = std::min(columns, c0 + kBlock);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = c0; c < c1; ++c) dst[c * ld_dst + i] = static_cast<Dst>(src[i * ld_src + c]);
    }
  }
}

}  // namespace ng
