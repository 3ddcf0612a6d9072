// The innermost part of every matrix product: a register tile of `rows` x `vectors` vectors, summed over k.
// Written with GCC's generic vectors, so that one source serves AVX-512, AVX2 and others.
#pragma once
#include <cstdint>
#include <cstring>

namespace ng {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kGemmRows = 14;  // 14 x 2 sums + 2 of b + 1 of a: 31 of 32 registers
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kGemmRows = 6;
#else
constexpr int kVectorBytes = 16;
constexpr int kGemmRows = 6;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T unaligned __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};
// Two bfloat16 of neighbouring k in one lane, the lower k in the lower half: what the processor's bfloat16 product
// takes.
struct BFloat16Pair {
  uint32_t bits;
};
template <>
struct VectorOf<BFloat16Pair> : VectorOf<uint32_t> {};

// What products of T are summed in.
template <class T>
struct SumOf {
  using type = T;
};
template <>
struct SumOf<BFloat16Pair> {
  using type = float;
};
template <class T>
using Sum = typename SumOf<T>::type;

#if defined(__AVX512BF16__)
constexpr bool kHasBFloat16 = true;
#else
constexpr bool kHasBFloat16 = false;
#endif

template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
constexpr int kGemmVectors = 2;
template <class T>
constexpr int kGemmColumns = kGemmVectors * kLanes<T>;

template <class T>
inline Vector<T> load(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(p);
}
template <class T>
inline void store(T* p, Vector<T> v) {
  *reinterpret_cast<typename VectorOf<T>::unaligned*>(p) = v;
}
template <class T>
inline Vector<T> broadcast(T value) {
  return Vector<T>{} + value;
}

// tile[r * ld_tile + c] = sum over k of a[r * a_row + k * a_k] * b[k * ld_b + c]
template <class T>
using GemmKernel = void (*)(int64_t k, const T* a, int64_t a_row, int64_t a_k, const T* b, int64_t ld_b, Sum<T>* tile,
                            int64_t ld_tile);

// rows: 1 … kGemmRows; vectors: 1 … kGemmVectors; packed: a_row == 1 and a_k == rows.
template <class T>
GemmKernel<T> gemm_kernel(int rows, int vectors, bool packed);

// BFloat16Pair: only if kHasBFloat16.
extern template GemmKernel<BFloat16Pair> gemm_kernel<BFloat16Pair>(int, int, bool);
extern template GemmKernel<float> gemm_kernel<float>(int, int, bool);
extern template GemmKernel<double> gemm_kernel<double>(int, int, bool);
extern template GemmKernel<uint32_t> gemm_kernel<uint32_t>(int, int, bool);
extern template GemmKernel<uint64_t> gemm_kernel<uint64_t>(int, int, bool);

}  // namespace ng
