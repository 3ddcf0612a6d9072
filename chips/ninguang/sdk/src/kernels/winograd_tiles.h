// Moves of Winograd's F(2x2, 3x3) between images and tiles: vectors whose lanes are sixteen neighbouring 2 x 2 output
// tiles. A vector is filled from a few segments, one per image row of tiles, with lane masks at the borders.
#pragma once
#if defined(__AVX512F__)
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gemm_kernel.h"

namespace ng {

constexpr int64_t kTileLanes = 16;

// Planes [batch, channels, height, width], dense rows.
struct TilePlane {
  int64_t height, width, batch_stride;
};

// The tile grid of an output [batch, height, width] and the padding of its 3 x 3 input windows.
struct TileGrid {
  int64_t batch, rows, columns;  // tiles per image
  int64_t padding[2];

  int64_t tiles() const { return batch * rows * columns; }
};

// Where the `kWindowRows` rows of 2 * kTileLanes consecutive elements of each vector lie, or go: element 2 * lane + i
// of a window belongs to the tile in that lane.
class TileWindows {
 public:
  // Window row i of tile (y, x) starts at plane position (2 y + first_row + i, 2 x + first_column).
  TileWindows(const TileGrid& grid, const TilePlane& plane, int64_t first_tile, int64_t count, int64_t window_rows,
              int64_t first_row, int64_t first_column)
      : window_rows_(window_rows) {
    int64_t image = first_tile / (grid.rows * grid.columns), rest = first_tile % (grid.rows * grid.columns);
    int64_t y = rest / grid.columns, x = rest % grid.columns;
    for (int64_t done = 0; done < count; done += kTileLanes) {
      runs_.clear();
      const int64_t lanes = std::min(kTileLanes, count - done);
      for (int64_t lane = 0; lane < lanes;) {
        const int64_t length = std::min(lanes - lane, grid.columns - x);
        runs_.push_back({lane, length, image, y, x});
        lane += length;
        x += length;
        if (x == grid.columns) x = 0, ++y;
        if (y == grid.rows) y = 0, ++image;
      }
      for (int64_t i = 0; i < window_rows; ++i) {
        starts_.push_back(static_cast<int>(segments_.size()));
        for (const Run& run : runs_) add(plane, run, 2 * run.y + first_row + i, 2 * run.x + first_column);
      }
    }
    starts_.push_back(static_cast<int>(segments_.size()));
  }

  // The 32 elements of row i of vector v, as two vectors, zeros outside the plane.
  // ahead: asks for the same elements that many further on, if not 0.
  void load_row(const float* channel, int64_t v, int64_t i, int64_t ahead, __m512* low, __m512* high) const {
    const int* start = starts_.data() + v * window_rows_ + i;
    *low = _mm512_setzero_ps(), *high = _mm512_setzero_ps();
    for (int s = start[0]; s < start[1]; ++s) {
      const float* p = channel + segments_[s].offset;
      if (ahead != 0) {
        __builtin_prefetch(p + ahead);
        __builtin_prefetch(p + ahead + 16);
      }
      *low = _mm512_mask_loadu_ps(*low, static_cast<__mmask16>(segments_[s].mask), p);
      *high = _mm512_mask_loadu_ps(*high, static_cast<__mmask16>(segments_[s].mask >> 16), p + 16);
    }
  }
  void store_row(float* channel, int64_t v, int64_t i, __m512 low, __m512 high) const {
    const int* start = starts_.data() + v * window_rows_ + i;
    for (int s = start[0]; s < start[1]; ++s) {
      float* p = channel + segments_[s].offset;
      _mm512_mask_storeu_ps(p, static_cast<__mmask16>(segments_[s].mask), low);
      _mm512_mask_storeu_ps(p + 16, static_cast<__mmask16>(segments_[s].mask >> 16), high);
    }
  }

 private:
  struct Run {
    int64_t lane, count, image, y, x;
  };
  struct Segment {
    uint32_t mask;
    int64_t offset;  // of element 0 of the window
  };

  void add(const TilePlane& plane, const Run& run, int64_t y, int64_t x) {
    if (y < 0 || y >= plane.height) return;
    const int64_t first = std::max<int64_t>(0, -x), last = std::min(2 * run.count, plane.width - x);
    if (first >= last) return;
    const uint64_t bits = ((uint64_t{1} << (last - first)) - 1) << (2 * run.lane + first);
    segments_.push_back(
        {static_cast<uint32_t>(bits), run.image * plane.batch_stride + y * plane.width + x - 2 * run.lane});
  }

  const int64_t window_rows_;
  std::vector<Segment> segments_;
  std::vector<int> starts_;
  std::vector<Run> runs_;
};

inline __m512 even_elements(__m512 low, __m512 high) {
  return _mm512_permutex2var_ps(low, _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), high);
}
inline __m512 odd_elements(__m512 low, __m512 high) {
  return _mm512_permutex2var_ps(low, _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1), high);
}
inline __m512 interleave_low(__m512 even, __m512 odd) {
  return _mm512_permutex2var_ps(even, _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0), odd);
}
inline __m512 interleave_high(__m512 even, __m512 odd) {
  return _mm512_permutex2var_ps(even, _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8),
                                odd);
}

}  // namespace ng
#endif  // __AVX512F__
