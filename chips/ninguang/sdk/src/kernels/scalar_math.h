// Scalar functions that the compiler can vectorise, and integer arithmetic that wraps as PyTorch's does. The
// transcendental ones are the C library's, declared a second time so that a loop over them calls glibc's vector
// library (libmvec, at most 4 units in the last place; special values are right) without any fast-math option.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>

// glibc has the vector forms of all the functions below since 2.35, for x86-64 only. Elsewhere the loops stay scalar.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define NG_SIMD __attribute__((simd("notinbranch"), const))
#endif
#endif
#ifndef NG_SIMD
#define NG_SIMD __attribute__((const))
#endif

#define NG_DECLARE_1(name)                                                  \
  extern "C" {                                                              \
  float ng_##name##_float(float) noexcept __asm__(#name "f") NG_SIMD;       \
  double ng_##name##_double(double) noexcept __asm__(#name) NG_SIMD;        \
  }                                                                         \
  namespace ng::math {                                                      \
  inline float name(float x) { return ng_##name##_float(x); }               \
  inline double name(double x) { return ng_##name##_double(x); }            \
  }
#define NG_DECLARE_2(name)                                                             \
  extern "C" {                                                                         \
  float ng_##name##_float(float, float) noexcept __asm__(#name "f") NG_SIMD;           \
  double ng_##name##_double(double, double) noexcept __asm__(#name) NG_SIMD;           \
  }                                                                                    \
  namespace ng::math {                                                                 \
  inline float name(float x, float y) { return ng_##name##_float(x, y); }              \
  inline double name(double x, double y) { return ng_##name##_double(x, y); }          \
  }
NG_DECLARE_1(exp) NG_DECLARE_1(exp2) NG_DECLARE_1(expm1)
NG_DECLARE_1(log) NG_DECLARE_1(log2) NG_DECLARE_1(log10) NG_DECLARE_1(log1p)
NG_DECLARE_1(sin) NG_DECLARE_1(cos) NG_DECLARE_1(tan) NG_DECLARE_1(asin) NG_DECLARE_1(acos) NG_DECLARE_1(atan)
NG_DECLARE_1(sinh) NG_DECLARE_1(cosh) NG_DECLARE_1(tanh) NG_DECLARE_1(asinh) NG_DECLARE_1(acosh) NG_DECLARE_1(atanh)
NG_DECLARE_1(erf) NG_DECLARE_1(erfc)
NG_DECLARE_2(pow) NG_DECLARE_2(atan2) NG_DECLARE_2(hypot)
#undef NG_DECLARE_1
#undef NG_DECLARE_2

namespace ng::math {

inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
template <class T> T abs(T x) { return std::fabs(x); }
template <class T> constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T> constexpr T nan = std::numeric_limits<T>::quiet_NaN();
template <class T> bool is_nan(T x) { return x != x; }

template <class T> T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }

// A negative zero and a NaN keep their sign bit, which x < 0 does not see.
inline bool sign_bit(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits < 0;
}
inline bool sign_bit(double x) {
  int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits < 0;
}

// ---- arithmetic on any type: integers wrap ----

// Unsigned and at least as wide as int, so that nothing is promoted to a signed type on the way.
template <class T> using Wrapping = std::common_type_t<unsigned, std::make_unsigned_t<T>>;

template <class T> T add(T x, T y) {
  if constexpr (std::is_same_v<T, bool>) return x | y;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<Wrapping<T>>(x) + static_cast<Wrapping<T>>(y));
  else return x + y;
}
template <class T> T sub(T x, T y) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<Wrapping<T>>(x) - static_cast<Wrapping<T>>(y));
  else return x - y;
}
template <class T> T mul(T x, T y) {
  if constexpr (std::is_same_v<T, bool>) return x & y;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<Wrapping<T>>(x) * static_cast<Wrapping<T>>(y));
  else return x * y;
}
template <class T> T neg(T x) {
  if constexpr (std::is_integral_v<T>) return sub(T(0), x);
  else return -x;
}

// NaN wins.
template <class T> T maximum(T x, T y) { return (x >= y) | (x != x) ? x : y; }
template <class T> T minimum(T x, T y) { return (x <= y) | (x != x) ? x : y; }

// Wraps; a negative exponent gives the integer part of the fraction.
template <class T> T integer_power(T base, T exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (base == static_cast<T>(-1)) return exponent % 2 ? static_cast<T>(-1) : T(1);
    return 0;
  }
  T result = 1;
  for (uint64_t left = static_cast<uint64_t>(exponent); left; left >>= 1) {
    if (left & 1) result = mul(result, base);
    base = mul(base, base);
  }
  return result;
}

}  // namespace ng::math
