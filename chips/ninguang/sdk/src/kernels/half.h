// The two 16-bit float types: storage structs `Half` and `BFloat16`, conversion from and to float one at a time and
// in bulk, and the maps from ngDataType to a C++ storage type and from a storage type to the type it is computed in.
// Rounds half to even; every NaN survives (as a quiet one). Knows nothing of kernels.
#pragma once
#include <complex>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "ng.h"

namespace ng {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bfloat16_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }
// Not vcvtneps2bf16: that instruction flushes denormals.
inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

#if defined(__F16C__)
inline float float16_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
inline uint16_t float_to_float16(float value) {
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#else
inline float float16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = static_cast<uint32_t>(half & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) return bits_to_float(sign | rest | 0x7f800000u);  // inf, NaN
  // The multiplication moves the exponent's bias from 15 to 127 and normalises denormals.
  return bits_to_float(sign | float_to_bits(bits_to_float(rest) * 0x1p112f));
}
inline uint16_t float_to_float16(float value) {
  const uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // denormal half: adding 0.5 lets the adder round at the right bit
    return static_cast<uint16_t>(sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
}
#endif

struct Half {
  uint16_t bits;
  Half() = default;
  explicit Half(float value) : bits(float_to_float16(value)) {}
  operator float() const { return float16_to_float(bits); }
};

struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  explicit BFloat16(float value) : bits(float_to_bfloat16(value)) {}
  operator float() const { return bfloat16_to_float(bits); }
};

template <class T> constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// The type that values of a storage type are computed in.
template <class T> using Compute = std::conditional_t<is_half<T>, float, T>;

// ngDataType -> storage type and back.
template <int type> struct StorageOf;
template <class T> struct TypeOf;
#define NG_STORAGE(tag, T)                                    \
  template <> struct StorageOf<tag> { using type = T; };      \
  template <> struct TypeOf<T> { static constexpr ngDataType value = tag; }
NG_STORAGE(NG_BOOL, bool);
NG_STORAGE(NG_UINT8, uint8_t);
NG_STORAGE(NG_INT8, int8_t);
NG_STORAGE(NG_INT16, int16_t);
NG_STORAGE(NG_INT32, int32_t);
NG_STORAGE(NG_INT64, int64_t);
NG_STORAGE(NG_FLOAT16, Half);
NG_STORAGE(NG_BFLOAT16, BFloat16);
NG_STORAGE(NG_FLOAT32, float);
NG_STORAGE(NG_FLOAT64, double);
NG_STORAGE(NG_COMPLEX64, std::complex<float>);
NG_STORAGE(NG_COMPLEX128, std::complex<double>);
#undef NG_STORAGE

constexpr int64_t size_of(ngDataType type) {
  constexpr int8_t sizes[NG_DATA_TYPE_COUNT] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return sizes[type];
}

// The neighbour of x in the direction of `towards`, as std::nextafter.
template <class S> S next_after(S x, S towards) {
  const float from = x, to = towards;
  if (from != from) return x;
  if (to != to || from == to) return towards;
  S result;
  if (from == 0) result.bits = static_cast<uint16_t>(to < 0 ? 0x8001u : 1u);
  else result.bits = static_cast<uint16_t>(x.bits + ((to > from) == (from > 0) ? 1 : -1));
  return result;
}

// ---- bulk conversion: n dense elements ----
// The maskz forms avoid a false warning of gcc 12 about an uninitialised value in the unmasked ones.

inline void to_float(const Half* src, float* dst, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    _mm512_storeu_ps(dst + i, _mm512_maskz_cvtph_ps(0xffff, half));
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i));
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(half));
  }
#endif
  for (; i < n; ++i) dst[i] = src[i];
}

inline void from_float(const float* src, Half* dst, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m512 value = _mm512_loadu_ps(src + i);
    const __m256i half = _mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), half);
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), half);
  }
#endif
  for (; i < n; ++i) dst[i] = Half(src[i]);
}

// Plain loops: the compiler vectorises them.
inline void to_float(const BFloat16* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = bfloat16_to_float(src[i].bits);
}
inline void from_float(const float* src, BFloat16* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i].bits = float_to_bfloat16(src[i]);
}

// The same names for every storage type, for code that is generic over it.
inline void to_float(const float* src, float* dst, int64_t n) { std::memcpy(dst, src, sizeof(float) * n); }
inline void from_float(const float* src, float* dst, int64_t n) { std::memcpy(dst, src, sizeof(float) * n); }

// Strided: `stride` in elements. dst / src on the float side is dense.
template <class T> void to_float(const T* src, int64_t stride, float* dst, int64_t n) {
  if (stride == 1) return to_float(src, dst, n);
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i * stride]);
}
template <class T> void from_float(const float* src, T* dst, int64_t stride, int64_t n) {
  if (stride == 1) return from_float(src, dst, n);
  for (int64_t i = 0; i < n; ++i) dst[i * stride] = T(src[i]);
}

}  // namespace ng
