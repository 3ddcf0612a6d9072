// Instances of the register-tile kernel for each tile height and width.
#include "gemm_kernel.h"

#include <array>
#include <utility>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace ng {
namespace {

template <class T>
inline Vector<T> multiply_add(Vector<T> sum, T left, Vector<T> right) {
  return sum + left * right;
}
#if defined(__AVX512BF16__)
inline Vector<float> multiply_add(Vector<float> sum, BFloat16Pair left, Vector<BFloat16Pair> right) {
  const Vector<uint32_t> both = broadcast(left.bits);
  return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)both, (__m512bh)right);
}
#endif

template <class T, int kRows, int kWidth, bool kPacked>
void multiply_tile(int64_t k, const T* a, int64_t a_row, int64_t a_k, const T* b, int64_t ld_b, Sum<T>* tile,
                   int64_t ld_tile) {
  constexpr int lanes = kLanes<T>;
  Vector<Sum<T>> sum[kRows][kWidth] = {};
  const int64_t row_step = kPacked ? 1 : a_row, k_step = kPacked ? kRows : a_k;
  for (int64_t i = 0; i < k; ++i, a += k_step, b += ld_b) {
    Vector<T> right[kWidth];
#pragma GCC unroll 4
    for (int w = 0; w < kWidth; ++w) right[w] = load(b + w * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const T left = a[r * row_step];
#pragma GCC unroll 4
      for (int w = 0; w < kWidth; ++w) sum[r][w] = multiply_add(sum[r][w], left, right[w]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int w = 0; w < kWidth; ++w) store(tile + r * ld_tile + w * lanes, sum[r][w]);
  }
}

template <class T, int kWidth, bool kPacked, int... kRows>
constexpr std::array<GemmKernel<T>, sizeof...(kRows)> make_row_table(std::integer_sequence<int, kRows...>) {
  return {multiply_tile<T, kRows + 1, kWidth, kPacked>...};
}

template <class T, int kWidth, bool kPacked>
constexpr auto kKernels = make_row_table<T, kWidth, kPacked>(std::make_integer_sequence<int, kGemmRows>{});

}  // namespace

template <class T>
GemmKernel<T> gemm_kernel(int rows, int vectors, bool packed) {
  if (packed) return vectors == 1 ? kKernels<T, 1, true>[rows - 1] : kKernels<T, 2, true>[rows - 1];
  return vectors == 1 ? kKernels<T, 1, false>[rows - 1] : kKernels<T, 2, false>[rows - 1];
}

template GemmKernel<float> gemm_kernel<float>(int, int, bool);
template GemmKernel<double> gemm_kernel<double>(int, int, bool);
template GemmKernel<uint32_t> gemm_kernel<uint32_t>(int, int, bool);
template GemmKernel<uint64_t> gemm_kernel<uint64_t>(int, int, bool);
#if defined(__AVX512BF16__)
template GemmKernel<BFloat16Pair> gemm_kernel<BFloat16Pair>(int, int, bool);
#endif

}  // namespace ng
