// Reads the source values that a run of output positions meets at one kernel tap: the implicit im2col.
// Positions are numbered over batch and the output grid; a vector of kLanes positions is made of a few segments, each
// a run along the last dim of one image row, loaded with a lane mask (zeros outside the image).
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "gemm_kernel.h"
#include "half.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace ng {

// One tap of the kernel: where it sits relative to grid position * step.
struct ConvTap {
  int64_t offset[3];
};

// Grid positions [batch, grid] over source planes of `extent`, source position = grid * step + tap.offset.
struct ConvGrid {
  int64_t batch, grid[3], extent[3], step[3];
  int64_t batch_stride;  // of the source, in elements
  std::vector<ConvTap> taps;

  int64_t plane() const { return grid[0] * grid[1] * grid[2]; }
  int64_t positions() const { return batch * plane(); }
};

namespace detail {

struct ConvSegment {
  uint32_t mask;   // lanes it fills
  int64_t offset;  // of lane 0, in elements from the channel's first
};

// What is loaded of a storage type: itself, or the bits of a half type, one per 32-bit lane.
template <class S>
struct RawOf {
  using type = S;
};
template <>
struct RawOf<Half> {
  using type = uint32_t;
};
template <>
struct RawOf<BFloat16> {
  using type = uint32_t;
};
template <class S>
using Raw = typename RawOf<S>::type;

template <class S>
inline Raw<S> raw_value(S value) {
  if constexpr (is_half<S>) {
    return value.bits;
  } else {
    return value;
  }
}

inline Vector<float> raw_to_float(Vector<float> raw, const float*) { return raw; }
inline Vector<double> raw_to_float(Vector<double> raw, const double*) { return raw; }
inline Vector<float> raw_to_float(Vector<uint32_t> raw, const BFloat16*) { return (Vector<float>)(raw << 16); }
inline Vector<float> raw_to_float(Vector<uint32_t> raw, const Half*) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)raw));
#else
  Vector<float> result;
  for (int i = 0; i < kLanes<float>; ++i) result[i] = float16_to_float(static_cast<uint16_t>(raw[i]));
  return result;
#endif
}

// Lanes in mask: result[lane] = p[lane * step]; the others keep their value. kStep 0: any step.
template <int kStep, class S>
inline Vector<Raw<S>> masked_load(Vector<Raw<S>> keep, uint32_t mask, const S* p, int64_t step) {
  using T = Raw<S>;
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  const auto lanes = static_cast<__mmask16>(mask);
  if constexpr (std::is_same_v<S, float> && kStep == 1) {
    return (Vector<T>)_mm512_mask_loadu_ps((__m512)keep, lanes, p);
  } else if constexpr (std::is_same_v<S, float> && kStep == 2) {
    const uint32_t spread = _pdep_u32(mask, 0x55555555u);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(spread), p);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(spread >> 16), p + 16);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return (Vector<T>)_mm512_mask_mov_ps((__m512)keep, lanes, _mm512_permutex2var_ps(low, even, high));
  } else if constexpr (std::is_same_v<S, double> && kStep == 1) {
    return (Vector<T>)_mm512_mask_loadu_pd((__m512d)keep, static_cast<__mmask8>(mask), p);
  } else if constexpr (is_half<S> && kStep == 1) {
    return (Vector<T>)_mm512_mask_cvtepu16_epi32((__m512i)keep, lanes, _mm256_maskz_loadu_epi16(lanes, p));
  } else if constexpr (is_half<S> && kStep == 2) {
    // The odd elements are masked out, so that every loaded lane holds an even one in its lower half.
    return (Vector<T>)_mm512_mask_mov_epi32((__m512i)keep, lanes,
                                            _mm512_maskz_loadu_epi16(_pdep_u32(mask, 0x55555555u), p));
  }
#endif
  for (int i = 0; i < kLanes<T>; ++i) {
    if (mask >> i & 1) keep[i] = raw_value(p[i * (kStep ? kStep : step)]);
  }
  return keep;
}

template <class S>
inline Vector<Raw<S>> load_raw(const S* p) {
  if constexpr (is_half<S>) {
    return masked_load<1, S>(Vector<uint32_t>{}, (1u << kLanes<uint32_t>)-1u, p, 1);
  } else {
    return load(p);
  }
}

template <class S>
inline Vector<Raw<S>> masked_load(Vector<Raw<S>> keep, uint32_t mask, const S* p, int64_t step) {
  if (step == 1) return masked_load<1>(keep, mask, p, step);
  if (step == 2) return masked_load<2>(keep, mask, p, step);
  return masked_load<0>(keep, mask, p, step);
}

// Calls body with the step as a constant, 1, 2 or 0 = any.
template <class Body>
inline void with_step(int64_t step, const Body& body) {
  if (step == 1) return body(std::integral_constant<int, 1>());
  if (step == 2) return body(std::integral_constant<int, 2>());
  body(std::integral_constant<int, 0>());
}

}  // namespace detail

// The segments of a run of positions, cut into vectors, for every tap.
template <class S>
class ConvPatch {
  using T = detail::Raw<S>;

 public:
  ConvPatch(const ConvGrid& g, int64_t position, int64_t count)
      : step_(g.step[2]), vectors_((count + kLanes<T> - 1) / kLanes<T>) {
    // Shared by all patches of a thread, which has one alive at a time: no allocation per patch.
    static thread_local Storage storage;
    storage.segments.clear();
    storage.starts.clear();
    find_runs(g, position, count, storage);
    for (const ConvTap& tap : g.taps) {
      size_t next = 0;
      for (int64_t v = 0; v < vectors_; ++v) {
        storage.starts.push_back(static_cast<int>(storage.segments.size()));
        for (; next < storage.runs.size() && storage.runs[next].vector == v; ++next) {
          add_segment(g, tap, storage.runs[next], storage.segments);
        }
        // At least one, so that the first load needs no question.
        if (static_cast<size_t>(storage.starts.back()) == storage.segments.size()) storage.segments.push_back({0, 0});
      }
    }
    storage.starts.push_back(static_cast<int>(storage.segments.size()));
    segments_ = storage.segments.data();
    starts_ = storage.starts.data();
    // One tap, and all positions side by side in memory.
    straight_ = g.taps.size() == 1 && storage.runs.size() == static_cast<size_t>(vectors_) &&
                storage.segments.size() == static_cast<size_t>(vectors_);
    for (int64_t v = 1; v < vectors_ && straight_; ++v) {
      straight_ =
          segments_[v].offset == segments_[0].offset + v * kLanes<T> * step_ && segments_[v - 1].mask == kAllLanes;
    }
  }

  int64_t step() const { return step_; }
  int64_t vectors() const { return vectors_; }

  // store_vector(v, values) for the values at `tap` in the channel that begins at src. kStep: step(), or 0.
  // ahead: asks for the same values that many elements further on, if not 0. Channels lie far apart, which hardware
  // does not foresee.
  template <int kStep, class Store>
  void for_vectors(const S* src, int64_t tap, int64_t ahead, const Store& store_vector) const {
    if (straight_ && kStep == 1) {
      const S* p = src + segments_[0].offset;
      for (int64_t v = 0; v + 1 < vectors_; ++v, p += kLanes<T>) {
        __builtin_prefetch(p + ahead);
        store_vector(v, detail::load_raw(p));
      }
      const uint32_t mask = segments_[vectors_ - 1].mask;
      return store_vector(vectors_ - 1, detail::masked_load<kStep, S>(Vector<T>{}, mask, p, step_));
    }
    const int* start = starts_ + tap * vectors_;
    const detail::ConvSegment* segment = segments_ + start[0];
    for (int64_t v = 0; v < vectors_; ++v) {
      if (ahead != 0) {
        __builtin_prefetch(src + segment->offset + ahead);
        if (kStep != 1) __builtin_prefetch(src + segment->offset + kLanes<T> + ahead);
      }
      const detail::ConvSegment* const end = segments_ + start[v + 1];
      Vector<T> result = detail::masked_load<kStep, S>(Vector<T>{}, segment->mask, src + segment->offset, step_);
      while (++segment < end)
        result = detail::masked_load<kStep, S>(result, segment->mask, src + segment->offset, step_);
      store_vector(v, result);
    }
  }

 private:
  // Positions of one image row in one vector.
  struct Run {
    int64_t vector, image, position[3];
    int lane, count;
  };
  struct Storage {
    std::vector<detail::ConvSegment> segments;
    std::vector<int> starts;
    std::vector<Run> runs;
  };

  void find_runs(const ConvGrid& g, int64_t position, int64_t count, Storage& storage) {
    storage.runs.clear();
    int64_t image = position / g.plane(), rest = position % g.plane();
    int64_t at[3] = {rest / (g.grid[2] * g.grid[1]), rest / g.grid[2] % g.grid[1], rest % g.grid[2]};
    for (int64_t done = 0; done < count;) {
      Run run;
      run.vector = done / kLanes<T>;
      run.lane = static_cast<int>(done % kLanes<T>);
      run.image = image;
      std::copy_n(at, 3, run.position);
      const int64_t length = std::min(std::min<int64_t>(kLanes<T> - run.lane, count - done), g.grid[2] - at[2]);
      run.count = static_cast<int>(length);
      storage.runs.push_back(run);
      done += length;
      at[2] += length;
      for (int d = 2; d > 0 && at[d] == g.grid[d]; --d) at[d] = 0, ++at[d - 1];
      if (at[0] == g.grid[0]) at[0] = 0, ++image;
    }
  }

  static void add_segment(const ConvGrid& g, const ConvTap& tap, const Run& run,
                          std::vector<detail::ConvSegment>& segments) {
    int64_t at[3];
    for (int d = 0; d < 3; ++d) at[d] = run.position[d] * g.step[d] + tap.offset[d];
    if (at[0] < 0 || at[0] >= g.extent[0] || at[1] < 0 || at[1] >= g.extent[1]) return;
    const int64_t step = g.step[2];
    const int64_t first = at[2] < 0 ? (-at[2] + step - 1) / step : 0;
    const int64_t last =
        at[2] >= g.extent[2] ? 0 : std::min<int64_t>(run.count, (g.extent[2] - at[2] + step - 1) / step);
    if (first >= last) return;
    const uint32_t mask = ((1u << (last - first)) - 1u) << (run.lane + first);
    const int64_t row = (at[0] * g.extent[1] + at[1]) * g.extent[2];
    segments.push_back({mask, run.image * g.batch_stride + row + at[2] - run.lane * step});
  }

  const int64_t step_, vectors_;
  static constexpr uint32_t kAllLanes = (1u << kLanes<T>)-1u;
  const detail::ConvSegment* segments_;
  const int* starts_;
  bool straight_;
};

}  // namespace ng
