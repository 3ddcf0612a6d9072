// Vectors of computing type read from and written to any storage type, and what kernels over dense runs share:
// horizontal sums, exp, affine maps. `Some` forms take a count for the tail of a run.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gemm_kernel.h"
#include "half.h"

namespace ng {

// ---- load and store ----

template <class S> inline Vector<Compute<S>> load_as(const S* p) {
  using T = Compute<S>;
  if constexpr (std::is_same_v<S, T>) {
    return load(p);
  } else {
#if defined(__AVX512F__)
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (std::is_same_v<S, Half>) {
      return (Vector<T>)_mm512_maskz_cvtph_ps(0xffff, bits);
    } else {
      return (Vector<T>)_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16);
    }
#else
    alignas(64) float wide[kLanes<float>];
    to_float(p, wide, kLanes<float>);
    return load(wide);
#endif
  }
}

template <class S> inline void store_as(S* p, Vector<Compute<S>> v) {
  if constexpr (std::is_same_v<S, Compute<S>>) {
    store(p, v);
  } else {
    alignas(64) float wide[kLanes<float>];
    store(wide, v);
    from_float(wide, p, kLanes<float>);
  }
}

template <class S> inline Vector<Compute<S>> load_some(const S* p, int64_t count) {
  using T = Compute<S>;
  if (count >= kLanes<T>) return load_as(p);
  alignas(64) S part[kLanes<T>];
  std::memset(static_cast<void*>(part), 0, sizeof part);
  for (int64_t i = 0; i < count; ++i) part[i] = p[i];
  return load_as(part);
}

template <class S> inline void store_some(S* p, Vector<Compute<S>> v, int64_t count) {
  using T = Compute<S>;
  if (count >= kLanes<T>) return store_as(p, v);
  alignas(64) S part[kLanes<T>];
  store_as(part, v);
  for (int64_t i = 0; i < count; ++i) p[i] = part[i];
}

#if defined(__AVX512F__)
inline __mmask16 lane_mask(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
template <> inline Vector<float> load_some<float>(const float* p, int64_t count) {
  if (count >= 16) return load(p);
  return (Vector<float>)_mm512_maskz_loadu_ps(lane_mask(count), p);
}
template <> inline void store_some<float>(float* p, Vector<float> v, int64_t count) {
  if (count >= 16) return store(p, v);
  _mm512_mask_storeu_ps(p, lane_mask(count), (__m512)v);
}
#endif

template <class T> struct LaneNumbers {
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef Int type __attribute__((vector_size(kVectorBytes)));
  static type get() {
    type numbers;
    for (int i = 0; i < kLanes<T>; ++i) numbers[i] = i;
    return numbers;
  }
};

// Lanes from `count` on are replaced.
template <class T> inline Vector<T> fill_rest(Vector<T> v, int64_t count, T value) {
  const auto limit = typename LaneNumbers<T>::type{} + static_cast<typename LaneNumbers<T>::Int>(count);
  return LaneNumbers<T>::get() < limit ? v : broadcast(value);
}

// ---- across lanes ----

template <class T> inline T horizontal_sum(Vector<T> v) {
  T parts[kLanes<T>];
  store(parts, v);
  for (int width = kLanes<T> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  }
  return parts[0];
}

// NaN in any lane gives NaN.
template <class T> inline Vector<T> max_nan(Vector<T> a, Vector<T> b) { return (a > b) | (a != a) ? a : b; }
template <class T> inline T horizontal_max(Vector<T> v) {
  T result = v[0];
  for (int i = 1; i < kLanes<T>; ++i) result = (result > v[i] || result != result) ? result : v[i];
  return result;
}

// ---- exp ----

inline Vector<double> exp(Vector<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = std::exp(x[i]);
  return x;
}

// Within 1.5 ulp; 0 and inf beyond the range of float; NaN stays NaN.
inline Vector<float> exp(Vector<float> x) {
  typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
  const Vector<float> low = broadcast(-105.0f), high = broadcast(89.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vector<float> shifted = x * 1.44269504f + kMagic;
  const Vector<float> n = shifted - kMagic;
  const IntVector exponent = (IntVector)shifted - 0x4B400000;
  Vector<float> r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vector<float> p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // Two factors, so that results in the denormal range and just below overflow come out.
  const IntVector half = exponent >> 1;
  const Vector<float> scale = (Vector<float>)((half + 127) << 23);
  const Vector<float> rest = (Vector<float>)((exponent - half + 127) << 23);
  return p * scale * rest;
}

// ---- dense runs ----

// sum += x - shift, squares += (x - shift)²
template <class S>
inline void add_moments(const S* x, int64_t n, Compute<S> shift, double& sum, double& squares) {
  using T = Compute<S>;
  constexpr int64_t kFlush = 4096;  // keeps the float partial sums exact enough
  constexpr int kLane = kLanes<T>;
  const Vector<T> origin = broadcast(shift);
  for (int64_t begin = 0; begin < n; begin += kFlush) {
    const int64_t end = std::min(n, begin + kFlush);
    Vector<T> s[4] = {}, q[4] = {};
    int64_t i = begin;
    for (; i + 4 * kLane <= end; i += 4 * kLane) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const Vector<T> d = load_as(x + i + u * kLane) - origin;
        s[u] += d;
        q[u] += d * d;
      }
    }
    for (; i < end; i += kLane) {
      const int64_t count = std::min<int64_t>(kLane, end - i);
      Vector<T> d = load_some(x + i, count) - origin;
      if (count < kLane) d = fill_rest(d, count, T(0));
      s[0] += d;
      q[0] += d * d;
    }
    sum += static_cast<double>(horizontal_sum<T>((s[0] + s[1]) + (s[2] + s[3])));
    squares += static_cast<double>(horizontal_sum<T>((q[0] + q[1]) + (q[2] + q[3])));
  }
}

// sum += x, products += x * (y - shift)
template <class S>
inline void add_products(const S* x, const S* y, int64_t n, Compute<S> shift, double& sum, double& products) {
  using T = Compute<S>;
  constexpr int64_t kFlush = 4096;
  constexpr int kLane = kLanes<T>;
  const Vector<T> origin = broadcast(shift);
  for (int64_t begin = 0; begin < n; begin += kFlush) {
    const int64_t end = std::min(n, begin + kFlush);
    Vector<T> s[2] = {}, q[2] = {};
    int64_t i = begin;
    for (; i + 2 * kLane <= end; i += 2 * kLane) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        const Vector<T> v = load_as(x + i + u * kLane);
        s[u] += v;
        q[u] += v * (load_as(y + i + u * kLane) - origin);
      }
    }
    for (; i < end; i += kLane) {
      const int64_t count = std::min<int64_t>(kLane, end - i);
      const Vector<T> v = load_some(x + i, count);
      s[0] += v;
      q[0] += fill_rest<T>(v * (load_some(y + i, count) - origin), count, T(0));
    }
    sum += static_cast<double>(horizontal_sum<T>(s[0] + s[1]));
    products += static_cast<double>(horizontal_sum<T>(q[0] + q[1]));
  }
}

// out = x * scale + shift
template <class S> inline void scale_shift(const S* x, S* out, int64_t n, Compute<S> scale, Compute<S> shift) {
  using T = Compute<S>;
  constexpr int kLane = kLanes<T>;
  for (int64_t i = 0; i < n; i += kLane) {
    const int64_t count = std::min<int64_t>(kLane, n - i);
    store_some(out + i, load_some(x + i, count) * scale + shift, count);
  }
}

// A vector of any float type, read as T; nullptr `data` gives `missing` everywhere.
template <class T>
void read_parameter(const void* data, ngDataType type, int64_t stride, int64_t n, T missing, T* out) {
  if (!data) return static_cast<void>(std::fill_n(out, n, missing));
  const auto copy = [&](const auto* p) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(p[i * stride]);
  };
  switch (type) {
    case NG_FLOAT16: return copy(static_cast<const Half*>(data));
    case NG_BFLOAT16: return copy(static_cast<const BFloat16*>(data));
    case NG_FLOAT64: return copy(static_cast<const double*>(data));
    default: return copy(static_cast<const float*>(data));
  }
}
template <class T> void write_parameter(void* data, ngDataType type, int64_t stride, int64_t n, const T* values) {
  if (!data) return;
  switch (type) {
    case NG_FLOAT16:
      for (int64_t i = 0; i < n; ++i) static_cast<Half*>(data)[i * stride] = Half(static_cast<float>(values[i]));
      return;
    case NG_BFLOAT16:
      for (int64_t i = 0; i < n; ++i) static_cast<BFloat16*>(data)[i * stride] = BFloat16(static_cast<float>(values[i]));
      return;
    case NG_FLOAT64:
      for (int64_t i = 0; i < n; ++i) static_cast<double*>(data)[i * stride] = static_cast<double>(values[i]);
      return;
    default:
      for (int64_t i = 0; i < n; ++i) static_cast<float*>(data)[i * stride] = static_cast<float>(values[i]);
  }
}

}  // namespace ng
