// A tensor [N, C, spatial…] seen with exactly three spatial dims, whatever its strides, and the copies between
// layouts and types that kernels fall back on.
#pragma once
#include <algorithm>
#include <cstdint>

#include "half.h"
#include "kernel.h"
#include "parallel.h"
#include "scratch.h"
#include "transpose.h"

namespace ng {

struct Image {
  void* data;
  ngDataType type;
  int64_t batch, channels, size[3];
  int64_t batch_stride, channel_stride, stride[3];  // elements

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t plane() const { return size[0] * size[1] * size[2]; }
  int64_t numel() const { return batch * channels * plane(); }

  // Each plane is one dense run; batch and channel strides may be anything.
  bool has_dense_planes() const;
  // Pixel after pixel at one distance, row_stride(), with the channels of a pixel side by side.
  bool has_dense_pixels() const;
  int64_t row_stride() const;
  bool is_row_major() const;      // dense and in order N, C, spatial
  bool is_channels_last() const;  // dense and in order N, spatial, C

  Image row_major_at(void* place, ngDataType new_type) const;
};

void set_channels_last(Image& image);                   // its strides, dense
Image make_image(const Tensor& t);                      // up to three spatial dims, kept apart
bool make_merged_image(const Tensor& t, Image* image);  // any number, merged as strides allow; false: still over three

// Elementwise copy between images of equal sizes, with conversion.
template <class Dst, class Src>
void copy_image(const Image& from, const Image& to) {
  const int64_t plane = from.plane(), channels = from.channels;
  if (from.has_dense_planes() && to.has_dense_planes()) {
    parallel_for(from.batch * channels, 0.2 * plane, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Src* source = from.as<Src>() + i / channels * from.batch_stride + i % channels * from.channel_stride;
        Dst* target = to.as<Dst>() + i / channels * to.batch_stride + i % channels * to.channel_stride;
        if constexpr (is_half<Src> && std::is_same_v<Dst, float>) {
          to_float(source, target, plane);
        } else if constexpr (is_half<Dst> && std::is_same_v<Src, float>) {
          from_float(source, target, plane);
        } else {
          for (int64_t p = 0; p < plane; ++p) target[p] = static_cast<Dst>(source[p]);
        }
      }
    });
    return;
  }
  const bool to_planes = from.has_dense_pixels() && to.has_dense_planes();
  const bool to_pixels = from.has_dense_planes() && to.has_dense_pixels();
  constexpr int64_t kBlock = 64;  // pixels
  if (to_planes || to_pixels) {
    const int64_t blocks = (plane + kBlock - 1) / kBlock;
    parallel_for(from.batch * blocks, 0.5 * kBlock * channels, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / blocks, p = i % blocks * kBlock, count = std::min(kBlock, plane - p);
        const Src* source = from.as<Src>() + n * from.batch_stride;
        Dst* target = to.as<Dst>() + n * to.batch_stride;
        if (to_planes) {
          transpose_block(source + p * from.row_stride(), from.row_stride(), target + p, to.channel_stride, count,
                          channels);
        } else {
          transpose_block(source + p, from.channel_stride, target + p * to.row_stride(), to.row_stride(), channels,
                          count);
        }
      }
    });
    return;
  }
  parallel_for(from.batch * channels, 2.0 * plane, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Src* source = from.as<Src>() + i / channels * from.batch_stride + i % channels * from.channel_stride;
      Dst* target = to.as<Dst>() + i / channels * to.batch_stride + i % channels * to.channel_stride;
      for (int64_t z = 0; z < from.size[0]; ++z) {
        for (int64_t y = 0; y < from.size[1]; ++y) {
          const Src* s = source + z * from.stride[0] + y * from.stride[1];
          Dst* t = target + z * to.stride[0] + y * to.stride[1];
          for (int64_t x = 0; x < from.size[2]; ++x) t[x * to.stride[2]] = static_cast<Dst>(s[x * from.stride[2]]);
        }
      }
    }
  });
}

// An operand as row-major T: itself if it is so already, else a copy in scratch.
template <class T, class S>
Image as_row_major(const Image& image, ScratchSlot slot) {
  if (std::is_same_v<T, S> && image.is_row_major()) return image.row_major_at(image.data, image.type);
  const Image copy = image.row_major_at(scratch<T>(slot, image.numel()), TypeOf<T>::value);
  copy_image<T, S>(image, copy);
  return copy;
}

// Where to compute a result that must be row-major T: in place if it is, else in scratch until finish().
template <class T, class S>
class ImageResult {
 public:
  explicit ImageResult(const Image& target, ScratchSlot slot = kScratchResult) : target_(target) {
    in_place_ = std::is_same_v<T, S> && target.is_row_major();
    value = target.row_major_at(in_place_ ? target.data : scratch<T>(slot, target.numel()), TypeOf<T>::value);
  }
  void finish() {
    if (!in_place_) copy_image<S, T>(value, target_);
  }
  Image value;

 private:
  Image target_;
  bool in_place_;
};

}  // namespace ng
