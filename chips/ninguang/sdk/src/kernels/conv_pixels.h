// Channels-last patches: what each output position of a run meets at each tap is a run of channels in memory, or
// nothing (zeros). The counterpart for row-major images is conv_patch.h, which also declares the grid.
#pragma once
#include <vector>

#include "conv_patch.h"
#include "gemm_bfloat16.h"
#include "vector_math.h"

namespace ng {

// Where positions [first, first + count) of the grid lie.
class PixelRun {
 public:
  PixelRun(const ConvGrid& g, int64_t pixel_stride, int64_t first, int64_t count) : g_(g), pixel_stride_(pixel_stride) {
    places_.resize(static_cast<size_t>(count));
    int64_t image = first / g.plane(), rest = first % g.plane();
    int64_t at[3] = {rest / (g.grid[2] * g.grid[1]), rest / g.grid[2] % g.grid[1], rest % g.grid[2]};
    for (Place& place : places_) {
      place.image = image;
      for (int d = 0; d < 3; ++d) place.grid[d] = at[d];
      ++at[2];
      for (int d = 2; d > 0 && at[d] == g.grid[d]; --d) at[d] = 0, ++at[d - 1];
      if (at[0] == g.grid[0]) at[0] = 0, ++image;
    }
  }

  // Offset in elements of the channels that position i meets at a tap; -1: outside the image.
  int64_t offset(int64_t i, const ConvTap& tap) const {
    const Place& place = places_[i];
    int64_t at[3];
    for (int d = 0; d < 3; ++d) {
      at[d] = place.grid[d] * g_.step[d] + tap.offset[d];
      if (at[d] < 0 || at[d] >= g_.extent[d]) return -1;
    }
    return place.image * g_.batch_stride + ((at[0] * g_.extent[1] + at[1]) * g_.extent[2] + at[2]) * pixel_stride_;
  }
  // The same for `count` taps side by side from `tap` on: of the whole run, of which taps [*first, *last) are inside.
  int64_t offset_of_run(int64_t i, const ConvTap& tap, int64_t count, int64_t* first, int64_t* last) const {
    const Place& place = places_[i];
    int64_t at[3];
    for (int d = 0; d < 3; ++d) at[d] = place.grid[d] * g_.step[d] + tap.offset[d];
    const bool inside = at[0] >= 0 && at[0] < g_.extent[0] && at[1] >= 0 && at[1] < g_.extent[1];
    *first = std::max<int64_t>(0, -at[2]);
    *last = inside ? std::min(count, g_.extent[2] - at[2]) : 0;
    return place.image * g_.batch_stride + ((at[0] * g_.extent[1] + at[1]) * g_.extent[2] + at[2]) * pixel_stride_;
  }
  // Offset of position i in a tensor with these strides over batch and grid.
  int64_t target(int64_t i, int64_t batch_stride, const int64_t* stride) const {
    const Place& place = places_[i];
    return place.image * batch_stride + place.grid[0] * stride[0] + place.grid[1] * stride[1] +
           place.grid[2] * stride[2];
  }

 private:
  struct Place {
    int64_t image, grid[3];
  };
  const ConvGrid& g_;
  const int64_t pixel_stride_;
  std::vector<Place> places_;
};

// b of a product whose row k is the run of numbers at line(k): panels as make_pack_b of gemm.h.
// numbers: the depth in numbers. line(k) may be nullptr: zeros.
template <class S, class Line>
auto make_pack_lines(const Line& line, int64_t numbers) {
  using T = GemmElement<S>;
  return [line, numbers](T* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    constexpr int64_t kColumns = kGemmColumns<T>, kUnit = std::is_same_v<T, BFloat16Pair> ? 2 : 1;
    const int64_t panel_size = depth * kColumns;
    if (columns % kColumns != 0) {
      std::memset(static_cast<void*>(dst + columns / kColumns * panel_size), 0, panel_size * sizeof(T));
    }
    for (int64_t i = 0; i < depth; ++i, dst += kColumns) {
      const S* low = line((k + i) * kUnit);
      if (low) low += column;
      if constexpr (kUnit == 2) {
        const S* high = (k + i) * kUnit + 1 < numbers ? line((k + i) * kUnit + 1) : nullptr;
        if (high) high += column;
        for (int64_t c = 0; c < columns; c += kColumns) {
          const int64_t count = std::min(kColumns, columns - c);
          for (int64_t j = 0; j < count; ++j) {
            dst[c * depth + j].bits =
                (low ? low[c + j].bits : 0u) | (high ? static_cast<uint32_t>(high[c + j].bits) << 16 : 0u);
          }
        }
      } else {
        for (int64_t c = 0; c < columns; c += kColumns) {
          const int64_t count = std::min(kColumns, columns - c);
          for (int64_t j = 0; j < count; j += kLanes<T>) {
            const int64_t lanes = std::min<int64_t>(kLanes<T>, count - j);
            store_some(dst + c * depth + j, low ? load_some(low + c + j, lanes) : Vector<T>{}, lanes);
          }
        }
      }
    }
  };
}

// b of the weight's gradient: rows are positions, columns tap * channels + channel, as the images hold them.
template <class S>
void pack_pixel_columns(const ConvGrid& g, int64_t pixel_stride, const S* src, int64_t channels, int64_t numbers,
                        GemmElement<S>* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
  using T = GemmElement<S>;
  constexpr int64_t kUnit = std::is_same_v<T, BFloat16Pair> ? 2 : 1, kColumns = kGemmColumns<T>;
  const int64_t count = std::min(depth * kUnit, numbers - k * kUnit);
  const PixelRun pixels(g, pixel_stride, k * kUnit, count);
  std::memset(static_cast<void*>(dst), 0, round_up(columns, kColumns) * depth * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < columns;) {
      // To the end of the panel or of the tap, whichever comes first.
      const int64_t tap = (column + c) / channels, channel = (column + c) % channels, place = c % kColumns;
      const int64_t length = std::min({channels - channel, kColumns - place, columns - c});
      const int64_t offset = pixels.offset(i, g.taps[tap]);
      T* to = dst + c / kColumns * kColumns * depth + i / kUnit * kColumns + place;
      if (offset >= 0) {
        const S* from = src + offset + channel;
        if constexpr (kUnit == 2) {
          const int shift = i % 2 * 16;
          for (int64_t j = 0; j < length; ++j) to[j].bits |= static_cast<uint32_t>(from[j].bits) << shift;
        } else {
          for (int64_t j = 0; j < length; j += kLanes<T>)
            store_some(to + j, load_some(from + j, length - j), length - j);
        }
      }
      c += length;
    }
  }
}

}  // namespace ng
