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
NG_DECLARE_1(expm1)
NG_DECLARE_1(log) NG_DECLARE_1(log2) NG_DECLARE_1(log10) NG_DECLARE_1(log1p)
NG_DECLARE_1(sin) NG_DECLARE_1(cos) NG_DECLARE_1(tan) NG_DECLARE_1(asin) NG_DECLARE_1(acos) NG_DECLARE_1(atan)
NG_DECLARE_1(sinh) NG_DECLARE_1(cosh) NG_DECLARE_1(tanh) NG_DECLARE_1(asinh) NG_DECLARE_1(acosh) NG_DECLARE_1(atanh)
NG_DECLARE_1(erf) NG_DECLARE_1(erfc)
NG_DECLARE_2(pow) NG_DECLARE_2(atan2) NG_DECLARE_2(hypot)
#undef NG_DECLARE_1
#undef NG_DECLARE_2
extern "C" {
double ng_exp_double(double) noexcept __asm__("exp") NG_SIMD;
double ng_exp2_double(double) noexcept __asm__("exp2") NG_SIMD;
}

namespace ng::math {

inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
template <class T> T abs(T x) { return std::fabs(x); }
template <class T> constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T> constexpr T nan = std::numeric_limits<T>::quiet_NaN();
template <class T> bool is_nan(T x) { return x != x; }

// ---- float exponentials of our own: inlined into a loop they take half the time of a call ----

// mantissa * 2^exponent for a mantissa near 1 and an exponent in [-151, 128], denormal results included.
inline float scale_by_power(float mantissa, float exponent) {
  const bool small = exponent < -125;
  const int32_t shift = static_cast<int32_t>(exponent) + (small ? 64 : 0);
  uint32_t bits;
  __builtin_memcpy(&bits, &mantissa, sizeof bits);
  bits += static_cast<uint32_t>(shift) << 23;
  float scaled;
  __builtin_memcpy(&scaled, &bits, sizeof scaled);
  return scaled * (small ? 0x1p-64f : 1.0f);
}

// x = n ln 2 + r, exp(x) = 2^n (1 + r + r^2 q(r)); q interpolates at the Chebyshev nodes, its error is 2^-32.
inline float exp(float x) {
  const float bounded = x < -104.0f ? -104.0f : x;
  const float n = std::nearbyint(bounded * 1.44269504f);
  const float r = (bounded - n * 0.693145751953125f) - n * 1.428606765330187e-6f;
  float q = 0.0001989099082f;
  q = q * r + 0.001393365f;
  q = q * r + 0.008333310925f;
  q = q * r + 0.04166646493f;
  q = q * r + 0.1666666668f;
  q = q * r + 0.5000000013f;
  const float result = scale_by_power(1.0f + (r + r * r * q), n);
  return x <= 88.7228394f ? result : x * infinity<float>;  // NaN stays
}
inline double exp(double x) { return ng_exp_double(x); }

// x = n + r, 2^x = 2^n (1 + r g(r))
inline float exp2(float x) {
  const float bounded = x < -151.0f ? -151.0f : x;
  const float n = std::nearbyint(bounded), r = bounded - n;
  float g = 0.0001545316295f;
  g = g * r + 0.001339086336f;
  g = g * r + 0.009618082557f;
  g = g * r + 0.05550357114f;
  g = g * r + 0.2402265076f;
  g = g * r + 0.693147188f;
  return x < 128.0f ? scale_by_power(1.0f + r * g, n) : x * infinity<float>;
}
inline double exp2(double x) { return ng_exp2_double(x); }

// 1 + erf(x / sqrt(2)), twice the normal distribution, for gelu: 1 + x P(x^2) / Q(x^2), a least-squares fit of the
// absolute error (2e-8) on [-5.5, 5.5]; in float it is right to 3e-7, and exactly 0 below.
inline float twice_normal_cdf(float x) {
  const float z = x > 5.5f ? 5.5f : (x < -5.5f ? -5.5f : x), u = z * z;
  float p = 4.54988438e-8f;
  p = p * u + 1.27041849e-5f;
  p = p * u + 0.000337648293f;
  p = p * u + 0.00935450289f;
  p = p * u + 0.0677050278f;
  p = p * u + 0.797884464f;
  float q = 1.19750359e-6f;
  q = q * u + 7.36469301e-5f;
  q = q * u + 0.00188443635f;
  q = q * u + 0.028645793f;
  q = q * u + 0.251521587f;
  q = q * u + 1.0f;
  return x < -5.5f ? 0.0f : (z * p + q) / q;
}
inline double twice_normal_cdf(double x) { return 1 + erf(x * 0.70710678118654752440); }

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

template <class T> Wrapping<T> wrapping(T x) { return static_cast<Wrapping<T>>(x); }

template <class T> T add(T x, T y) {
  if constexpr (std::is_same_v<T, bool>) return x | y;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(wrapping(x) + wrapping(y));
  else return x + y;
}
template <class T> T sub(T x, T y) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(wrapping(x) - wrapping(y));
  else return x - y;
}
template <class T> T mul(T x, T y) {
  if constexpr (std::is_same_v<T, bool>) return x & y;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(wrapping(x) * wrapping(y));
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
