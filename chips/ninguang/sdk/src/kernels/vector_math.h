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

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace ng {

// ---- load and store ----

template <class S>
inline Vector<Compute<S>> load_as(const S* p) {
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

#if defined(__AVX512F__)
namespace detail {
// Sixteen floats as half-precision bits, rounded to even; NaN stays NaN.
template <class S>
inline __m256i narrow(__m512 v) {
  if constexpr (std::is_same_v<S, Half>) {
    return _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  } else {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i top = _mm512_maskz_srli_epi32(0xffff, rounded, 16);
    return _mm512_maskz_cvtepi32_epi16(0xffff, _mm512_mask_mov_epi32(top, nan, _mm512_set1_epi32(0x7fc0)));
  }
}
}  // namespace detail
#endif

template <class S>
inline void store_as(S* p, Vector<Compute<S>> v) {
  if constexpr (std::is_same_v<S, Compute<S>>) {
    store(p, v);
  } else {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), detail::narrow<S>((__m512)v));
#else
    alignas(64) float wide[kLanes<float>];
    store(wide, v);
    from_float(wide, p, kLanes<float>);
#endif
  }
}

#if defined(__AVX512F__)
inline uint32_t lane_mask(int64_t count) { return (1u << count) - 1u; }
#endif

template <class S>
inline Vector<Compute<S>> load_some(const S* p, int64_t count) {
  using T = Compute<S>;
  if (count >= kLanes<T>) return load_as(p);
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (std::is_same_v<S, float>) {
    return (Vector<T>)_mm512_maskz_loadu_ps(static_cast<__mmask16>(lane_mask(count)), p);
  } else if constexpr (is_half<S>) {
    alignas(32) S part[kLanes<T>];
    _mm256_store_si256(reinterpret_cast<__m256i*>(part),
                       _mm256_maskz_loadu_epi16(static_cast<__mmask16>(lane_mask(count)), p));
    return load_as(part);
  }
#endif
  alignas(64) S part[kLanes<T>];
  std::memset(static_cast<void*>(part), 0, sizeof part);
  for (int64_t i = 0; i < count; ++i) part[i] = p[i];
  return load_as(part);
}

template <class S>
inline void store_some(S* p, Vector<Compute<S>> v, int64_t count) {
  using T = Compute<S>;
  if (count >= kLanes<T>) return store_as(p, v);
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (std::is_same_v<S, float>) {
    return _mm512_mask_storeu_ps(p, static_cast<__mmask16>(lane_mask(count)), (__m512)v);
  } else if constexpr (is_half<S>) {
    return _mm256_mask_storeu_epi16(p, static_cast<__mmask16>(lane_mask(count)), detail::narrow<S>((__m512)v));
  }
#endif
  alignas(64) S part[kLanes<T>];
  store_as(part, v);
  for (int64_t i = 0; i < count; ++i) p[i] = part[i];
}

template <class T>
struct LaneNumbers {
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef Int type __attribute__((vector_size(kVectorBytes)));
  static type get() {
    type numbers;
    for (int i = 0; i < kLanes<T>; ++i) numbers[i] = i;
    return numbers;
  }
};

// Lanes from `count` on are replaced.
template <class T>
inline Vector<T> fill_rest(Vector<T> v, int64_t count, T value) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) {
    const __mmask16 mask = static_cast<__mmask16>(count >= 16 ? 0xffff : lane_mask(count));
    return (Vector<T>)_mm512_mask_mov_ps((__m512)broadcast(value), mask, (__m512)v);
  }
#endif
  const auto limit = typename LaneNumbers<T>::type{} + static_cast<typename LaneNumbers<T>::Int>(count);
  return LaneNumbers<T>::get() < limit ? v : broadcast(value);
}

// Asks for `count` dense elements: what is read with masks or in steps is not foreseen by hardware.
template <class S>
inline void prefetch_rows(const S* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(S))) __builtin_prefetch(p + i);
}

// ---- across lanes ----

// Folds the lanes into lane 0 with op, half onto half.
template <class T, class Op>
inline T fold_lanes(Vector<T> v, const Op& op) {
  T parts[kLanes<T>];
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) {
    const auto eight = op(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                          __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
    auto four =
        op(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
    four = op(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
    four = op(four, __builtin_shufflevector(four, four, 1, 0, 3, 2));
    return four[0];
  }
#endif
  store(parts, v);
  for (int width = kLanes<T> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) parts[i] = op(parts[i], parts[i + width]);
  }
  return parts[0];
}

template <class T>
inline T horizontal_sum(Vector<T> v) {
  return fold_lanes<T>(v, [](const auto& a, const auto& b) { return a + b; });
}

// The largest value seen; NaN if one was seen.
template <class T>
class RunningMax {
 public:
  void add(Vector<T> v) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
      nan_ |= _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
      best_ = (Vector<T>)_mm512_maskz_max_ps(0xffff, (__m512)v, (__m512)best_);
      return;
    }
#endif
    best_ = (best_ > v) | (best_ != best_) ? best_ : v;
  }
  void add(const RunningMax& other) {
    nan_ |= other.nan_;
    add(other.best_);
  }
  // Lane by lane.
  Vector<T> values() const {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
      return (Vector<T>)_mm512_mask_mov_ps((__m512)best_, nan_,
                                           _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN()));
    }
#endif
    return best_;
  }
  T value() const {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
      return nan_ ? std::numeric_limits<float>::quiet_NaN()
                  : fold_lanes<T>(best_, [](const auto& a, const auto& b) { return a > b ? a : b; });
    }
#endif
    T result = best_[0];
    for (int i = 1; i < kLanes<T>; ++i) result = (result > best_[i] || result != result) ? result : best_[i];
    return result;
  }

 private:
  Vector<T> best_ = broadcast(-std::numeric_limits<T>::infinity());
  uint16_t nan_ = 0;
};

// ---- exp ----

inline Vector<double> exp(Vector<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = std::exp(x[i]);
  return x;
}

// Within 1.5 ulp; 0 and inf beyond the range of float; NaN stays NaN.
inline Vector<float> exp(Vector<float> x) {
  const auto polynomial = [](Vector<float> r) {
    Vector<float> p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r + 1.0f;
  };
  const auto reduce = [](Vector<float> v, Vector<float> n) { return (v - n * 0.693359375f) - n * -2.12194440e-4f; };
#if defined(__AVX512F__)
  // scalef takes care of every exponent; the bounds only keep inf * 0 out of the reduction.
  x = (Vector<float>)_mm512_maskz_min_ps(0xffff, _mm512_set1_ps(200.0f), (__m512)x);
  x = (Vector<float>)_mm512_maskz_max_ps(0xffff, _mm512_set1_ps(-200.0f), (__m512)x);
  const Vector<float> n = (Vector<float>)_mm512_maskz_roundscale_ps(0xffff, (__m512)(x * 1.44269504f), 0);
  return (Vector<float>)_mm512_maskz_scalef_ps(0xffff, (__m512)polynomial(reduce(x, n)), (__m512)n);
#else
  typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
  const Vector<float> low = broadcast(-105.0f), high = broadcast(89.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vector<float> shifted = x * 1.44269504f + kMagic;
  const IntVector exponent = (IntVector)shifted - 0x4B400000;
  const Vector<float> p = polynomial(reduce(x, shifted - kMagic));
  // Two factors, so that results in the denormal range and just below overflow come out.
  const IntVector half = exponent >> 1;
  const Vector<float> scale = (Vector<float>)((half + 127) << 23);
  const Vector<float> rest = (Vector<float>)((exponent - half + 127) << 23);
  return p * scale * rest;
#endif
}

// ---- dense runs ----

// Sums over many runs of x - shift and its square. The partial sums are computing type, a few thousand terms each.
template <class S>
class Moments {
  using T = Compute<S>;

 public:
  explicit Moments(T shift) : shift_(shift) {}

  void add(const S* x, int64_t n) {
    constexpr int kLane = kLanes<T>;
    const Vector<T> origin = broadcast(shift_);
    for (int64_t i = 0; i < n;) {
      if (terms_ >= kMostTerms) flush();
      const int64_t begin = i, end = std::min(n, i + kMostTerms);
      for (; i + 4 * kLane <= end; i += 4 * kLane) {
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) {
          const Vector<T> d = load_as(x + i + u * kLane) - origin;
          sum_[u] += d;
          squares_[u] += d * d;
        }
      }
      for (; i < end; i += kLane) {
        const int64_t count = std::min<int64_t>(kLane, end - i);
        Vector<T> d = load_some(x + i, count) - origin;
        if (count < kLane) d = fill_rest(d, count, T(0));
        sum_[0] += d;
        squares_[0] += d * d;
      }
      i = end;
      terms_ += end - begin;
    }
  }
  double sum() {
    flush();
    return total_;
  }
  double squares() {
    flush();
    return total_squares_;
  }

 private:
  static constexpr int64_t kMostTerms = 4096;
  void flush() {
    total_ += static_cast<double>(horizontal_sum<T>((sum_[0] + sum_[1]) + (sum_[2] + sum_[3])));
    total_squares_ += static_cast<double>(horizontal_sum<T>((squares_[0] + squares_[1]) + (squares_[2] + squares_[3])));
    for (int u = 0; u < 4; ++u) sum_[u] = squares_[u] = Vector<T>{};
    terms_ = 0;
  }
  const T shift_;
  Vector<T> sum_[4] = {}, squares_[4] = {};
  int64_t terms_ = 0;
  double total_ = 0, total_squares_ = 0;
};

// The same for x and x * (y - shift).
template <class S>
class Products {
  using T = Compute<S>;

 public:
  explicit Products(T shift) : shift_(shift) {}

  void add(const S* x, const S* y, int64_t n) {
    constexpr int kLane = kLanes<T>;
    const Vector<T> origin = broadcast(shift_);
    for (int64_t i = 0; i < n;) {
      if (terms_ >= kMostTerms) flush();
      const int64_t begin = i, end = std::min(n, i + kMostTerms);
      for (; i + 2 * kLane <= end; i += 2 * kLane) {
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
          const Vector<T> v = load_as(x + i + u * kLane);
          sum_[u] += v;
          products_[u] += v * (load_as(y + i + u * kLane) - origin);
        }
      }
      for (; i < end; i += kLane) {
        const int64_t count = std::min<int64_t>(kLane, end - i);
        const Vector<T> v = load_some(x + i, count);
        sum_[0] += v;
        products_[0] += fill_rest<T>(v * (load_some(y + i, count) - origin), count, T(0));
      }
      i = end;
      terms_ += end - begin;
    }
  }
  double sum() {
    flush();
    return total_;
  }
  double products() {
    flush();
    return total_products_;
  }

 private:
  static constexpr int64_t kMostTerms = 4096;
  void flush() {
    total_ += static_cast<double>(horizontal_sum<T>(sum_[0] + sum_[1]));
    total_products_ += static_cast<double>(horizontal_sum<T>(products_[0] + products_[1]));
    for (int u = 0; u < 2; ++u) sum_[u] = products_[u] = Vector<T>{};
    terms_ = 0;
  }
  const T shift_;
  Vector<T> sum_[2] = {}, products_[2] = {};
  int64_t terms_ = 0;
  double total_ = 0, total_products_ = 0;
};

// out = x * scale + shift
template <class S>
inline void scale_shift(const S* x, S* out, int64_t n, Compute<S> scale, Compute<S> shift) {
  using T = Compute<S>;
  constexpr int kLane = kLanes<T>;
  for (int64_t i = 0; i < n; i += kLane) {
    const int64_t count = std::min<int64_t>(kLane, n - i);
    store_some(out + i, load_some(x + i, count) * scale + shift, count);
  }
}

// out = x * scale, from computing type to any storage type
template <class T, class S>
inline void scale_to(const T* x, S* out, int64_t n, T scale) {
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    const int64_t count = std::min<int64_t>(kLanes<T>, n - i);
    store_some(out + i, load_some(x + i, count) * scale, count);
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
    case NG_FLOAT16:
      return copy(static_cast<const Half*>(data));
    case NG_BFLOAT16:
      return copy(static_cast<const BFloat16*>(data));
    case NG_FLOAT64:
      return copy(static_cast<const double*>(data));
    default:
      return copy(static_cast<const float*>(data));
  }
}
template <class T>
void write_parameter(void* data, ngDataType type, int64_t stride, int64_t n, const T* values) {
  if (!data) return;
  switch (type) {
    case NG_FLOAT16:
      for (int64_t i = 0; i < n; ++i) static_cast<Half*>(data)[i * stride] = Half(static_cast<float>(values[i]));
      return;
    case NG_BFLOAT16:
      for (int64_t i = 0; i < n; ++i)
        static_cast<BFloat16*>(data)[i * stride] = BFloat16(static_cast<float>(values[i]));
      return;
    case NG_FLOAT64:
      for (int64_t i = 0; i < n; ++i) static_cast<double*>(data)[i * stride] = static_cast<double>(values[i]);
      return;
    default:
      for (int64_t i = 0; i < n; ++i) static_cast<float*>(data)[i * stride] = static_cast<float>(values[i]);
  }
}

}  // namespace ng
