// Layout questions about images.
#include "image.h"

namespace ng {
namespace {

// The dims in this order, slowest first, are dense; dims of size 1 have no say.
bool is_dense(const Image& image, const int (&order)[5]) {
  const int64_t sizes[5] = {image.batch, image.channels, image.size[0], image.size[1], image.size[2]};
  const int64_t strides[5] = {image.batch_stride, image.channel_stride, image.stride[0], image.stride[1],
                              image.stride[2]};
  int64_t expected = 1;
  for (int i = 4; i >= 0; --i) {
    const int d = order[i];
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

}  // namespace

bool Image::is_row_major() const { return is_dense(*this, {0, 1, 2, 3, 4}); }
bool Image::is_channels_last() const { return is_dense(*this, {0, 2, 3, 4, 1}); }

bool Image::has_dense_planes() const {
  int64_t expected = 1;
  for (int d = 2; d >= 0; --d) {
    if (size[d] != 1 && stride[d] != expected) return false;
    expected *= size[d];
  }
  return true;
}

int64_t Image::row_stride() const {
  for (int d = 2; d >= 0; --d) {
    if (size[d] != 1) return stride[d];
  }
  return batch != 1 ? batch_stride : channels;
}

bool Image::has_dense_pixels() const {
  if (channels != 1 && channel_stride != 1) return false;
  int64_t expected = row_stride();
  if (expected < channels) return false;
  for (int d = 2; d >= 0; --d) {
    if (size[d] != 1 && stride[d] != expected) return false;
    expected *= size[d];
  }
  return batch == 1 || batch_stride == expected;
}

Image Image::row_major_at(void* place, ngDataType new_type) const {
  Image result = *this;
  result.data = place;
  result.type = new_type;
  result.stride[2] = 1;
  result.stride[1] = size[2];
  result.stride[0] = size[1] * size[2];
  result.channel_stride = plane();
  result.batch_stride = channels * plane();
  return result;
}

void set_channels_last(Image& image) {
  image.channel_stride = 1;
  image.stride[2] = image.channels;
  image.stride[1] = image.size[2] * image.stride[2];
  image.stride[0] = image.size[1] * image.stride[1];
  image.batch_stride = image.size[0] * image.stride[0];
}

Image make_image(const Tensor& t) {
  Image image{t.data, t.type, t.sizes[0], t.sizes[1], {1, 1, 1}, t.strides[0], t.strides[1], {0, 0, 0}};
  for (int d = t.ndim - 1, at = 2; d >= 2 && at >= 0; --d, --at)
    image.size[at] = t.sizes[d], image.stride[at] = t.strides[d];
  return image;
}

bool make_merged_image(const Tensor& t, Image* image) {
  *image = {t.data, t.type, t.sizes[0], t.sizes[1], {1, 1, 1}, t.strides[0], t.strides[1], {0, 0, 0}};
  int at = 3;
  for (int d = t.ndim - 1; d >= 2; --d) {
    if (t.sizes[d] == 1) continue;
    if (at < 3 && t.strides[d] == image->stride[at] * image->size[at]) {
      image->size[at] *= t.sizes[d];
      continue;
    }
    if (--at < 0) return false;
    image->size[at] = t.sizes[d];
    image->stride[at] = t.strides[d];
  }
  return true;
}

}  // namespace ng
