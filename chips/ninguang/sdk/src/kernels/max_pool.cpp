// max_pool and max_pool_backward. Planes: vectors of neighbouring outputs of a row; channels-last: vectors of channels.
// As in PyTorch the first of equal values wins and a NaN always does.
#include <limits>

#include "conv_patch.h"
#include "image.h"
#include "vector_math.h"

namespace ng {
namespace {

struct MaxPool {
  int64_t kernel[3], stride[3], padding[3], dilation[3];
};

MaxPool read_attributes(const Args& args) {
  MaxPool pool;
  const int spatial = static_cast<int>(args.i(0));
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    pool.kernel[d] = from >= 0 ? args.i(1 + from) : 1;
    pool.stride[d] = from >= 0 ? args.i(1 + spatial + from) : 1;
    pool.padding[d] = from >= 0 ? args.i(1 + 2 * spatial + from) : 0;
    pool.dilation[d] = from >= 0 ? args.i(1 + 3 * spatial + from) : 1;
  }
  return pool;
}

template <class T>
using IndexVector = typename LaneNumbers<T>::type;
template <class T>
using IndexLane = typename LaneNumbers<T>::Int;

template <class T>
constexpr T lowest() {
  return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}

// The running maximum of a vector of outputs and its place.
template <class T>
class Best {
 public:
  // Lanes [first, last) are candidates.
  void offer(Vector<T> v, IndexVector<T> position, int64_t first, int64_t last) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
      const __mmask16 valid = static_cast<__mmask16>((1u << last) - (1u << first));
      const __m512 candidate = (__m512)v;
      const __mmask16 greater = _mm512_cmp_ps_mask(candidate, (__m512)value_, _CMP_GT_OQ);
      const __mmask16 nan = _mm512_cmp_ps_mask(candidate, candidate, _CMP_UNORD_Q);
      const __mmask16 better = valid & (greater | nan | static_cast<__mmask16>(~seen_));
      value_ = (Vector<T>)_mm512_mask_mov_ps((__m512)value_, better, candidate);
      index_ = (IndexVector<T>)_mm512_mask_mov_epi32((__m512i)index_, better, (__m512i)position);
      seen_ |= valid;
      return;
    }
#endif
    const IndexVector<T> lane = LaneNumbers<T>::get();
    const IndexVector<T> valid = (lane >= static_cast<IndexLane<T>>(first)) & (lane < static_cast<IndexLane<T>>(last));
    const IndexVector<T> better = valid & ((v > value_) | (v != v) | (index_ < 0));
    value_ = better ? v : value_;
    index_ = better ? position : index_;
  }
  Vector<T> value() const { return value_; }
  IndexVector<T> index() const { return index_; }

 private:
  Vector<T> value_ = broadcast(lowest<T>());
  IndexVector<T> index_ = IndexVector<T>{} - 1;  // -1: nothing seen
  uint16_t seen_ = 0;
};

template <class T>
void write_indices(int64_t* out, int64_t stride, IndexVector<T> index, int64_t count) {
  IndexLane<T> lanes[kLanes<T>];
  std::memcpy(lanes, &index, sizeof index);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = lanes[i];
  } else {
    for (int64_t i = 0; i < count; ++i) out[i * stride] = lanes[i];
  }
}

// One output row: lanes are neighbouring outputs. kStep: the stride along it, or 0.
template <class T, int kStep>
void pool_row(const T* plane, const Image& in, const MaxPool& pool, int64_t oz, int64_t oy, int64_t width, T* out,
              int64_t* indices, int64_t index_stride) {
  const int64_t row_width = in.size[2], step = kStep ? kStep : pool.stride[2];
  const IndexVector<T> lane = LaneNumbers<T>::get() * static_cast<IndexLane<T>>(step);
  for (int64_t ox = 0; ox < width; ox += kLanes<T>) {
    const int64_t count = std::min<int64_t>(kLanes<T>, width - ox);
    Best<T> best;
    for (int64_t kz = 0; kz < pool.kernel[0]; ++kz) {
      const int64_t z = oz * pool.stride[0] - pool.padding[0] + kz * pool.dilation[0];
      if (z < 0 || z >= in.size[0]) continue;
      for (int64_t ky = 0; ky < pool.kernel[1]; ++ky) {
        const int64_t y = oy * pool.stride[1] - pool.padding[1] + ky * pool.dilation[1];
        if (y < 0 || y >= in.size[1]) continue;
        const int64_t row = (z * in.size[1] + y) * row_width;
        for (int64_t kx = 0; kx < pool.kernel[2]; ++kx) {
          const int64_t x = ox * step - pool.padding[2] + kx * pool.dilation[2];
          const int64_t first = x < 0 ? (-x + step - 1) / step : 0;
          const int64_t last = x >= row_width ? 0 : std::min(count, (row_width - x + step - 1) / step);
          if (first >= last) continue;
          const uint32_t mask = ((1u << (last - first)) - 1u) << first;
          const Vector<T> v = detail::masked_load<kStep, T>(Vector<T>{}, mask, plane + row + x, step);
          best.offer(v, lane + static_cast<IndexLane<T>>(row + x), first, last);
        }
      }
    }
    store_some(out + ox, best.value(), count);
    if (indices) write_indices<T>(indices + ox * index_stride, index_stride, best.index(), count);
  }
}

template <class T>
void pool_planes(const Image& in, const Image& out, const Image& indices, const MaxPool& pool) {
  const double cost = 1.0 * out.plane() * pool.kernel[0] * pool.kernel[1] * pool.kernel[2];
  parallel_for(in.batch * in.channels, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / in.channels, c = i % in.channels;
      const T* plane = in.as<T>() + n * in.batch_stride + c * in.channel_stride;
      for (int64_t z = 0; z < out.size[0]; ++z) {
        for (int64_t y = 0; y < out.size[1]; ++y) {
          T* row = out.as<T>() + n * out.batch_stride + c * out.channel_stride + z * out.stride[0] + y * out.stride[1];
          int64_t* places = indices.data
                                ? indices.as<int64_t>() + n * indices.batch_stride + c * indices.channel_stride +
                                      z * indices.stride[0] + y * indices.stride[1]
                                : nullptr;
          const int64_t next = (y + 1) * pool.stride[1] - pool.padding[1] + (pool.kernel[1] - 1) * pool.dilation[1];
          prefetch_rows(plane + (z * pool.stride[0] * in.size[1] + next) * in.size[2], in.size[2] * pool.stride[1]);
          detail::with_step(pool.stride[2], [&](auto step) {
            pool_row<T, step.value>(plane, in, pool, z, y, out.size[2], row, places, indices.stride[2]);
          });
        }
      }
    }
  });
}

// Lanes are channels of one output pixel.
template <class S>
void pool_pixels(const Image& in, const Image& out, const Image& indices, const MaxPool& pool) {
  using T = Compute<S>;
  const int64_t row = in.row_stride(), plane = out.plane();
  const double cost = 0.2 * in.channels * pool.kernel[0] * pool.kernel[1] * pool.kernel[2];
  parallel_for(in.batch * plane, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / plane, p = i % plane;
      const int64_t at[3] = {p / (out.size[1] * out.size[2]), p / out.size[2] % out.size[1], p % out.size[2]};
      const S* image = in.as<S>() + n * in.batch_stride;
      for (int64_t c = 0; c < in.channels; c += kLanes<T>) {
        const int64_t count = std::min<int64_t>(kLanes<T>, in.channels - c);
        Best<T> best;
        for (int64_t kz = 0; kz < pool.kernel[0]; ++kz) {
          const int64_t z = at[0] * pool.stride[0] - pool.padding[0] + kz * pool.dilation[0];
          if (z < 0 || z >= in.size[0]) continue;
          for (int64_t ky = 0; ky < pool.kernel[1]; ++ky) {
            const int64_t y = at[1] * pool.stride[1] - pool.padding[1] + ky * pool.dilation[1];
            if (y < 0 || y >= in.size[1]) continue;
            for (int64_t kx = 0; kx < pool.kernel[2]; ++kx) {
              const int64_t x = at[2] * pool.stride[2] - pool.padding[2] + kx * pool.dilation[2];
              if (x < 0 || x >= in.size[2]) continue;
              const int64_t position = (z * in.size[1] + y) * in.size[2] + x;
              const IndexVector<T> positions = IndexVector<T>{} + static_cast<IndexLane<T>>(position);
              best.offer(load_some(image + position * row + c, count), positions, 0, kLanes<T>);
            }
          }
        }
        store_some(out.as<S>() + n * out.batch_stride + p * out.row_stride() + c, best.value(), count);
        if (!indices.data) continue;
        int64_t* places = indices.as<int64_t>() + n * indices.batch_stride + at[0] * indices.stride[0] +
                          at[1] * indices.stride[1] + at[2] * indices.stride[2] + c * indices.channel_stride;
        write_indices<T>(places, indices.channel_stride, best.index(), count);
      }
    }
  });
}

template <class S>
ngResult run_forward(const Args& args) {
  using T = std::conditional_t<std::is_integral_v<S>, int64_t, Compute<S>>;
  const MaxPool pool = read_attributes(args);
  const Image in = make_image(args.in[0]), out = make_image(args.out[0]);
  Image indices{};
  if (args.num_out > 1 && args.out[1]) indices = make_image(args.out[1]);
  if constexpr (!std::is_integral_v<S>) {
    if (in.has_dense_pixels() && out.has_dense_pixels() && !in.has_dense_planes()) {
      pool_pixels<S>(in, out, indices, pool);
      return NG_SUCCESS;
    }
  }
  const bool direct = std::is_same_v<S, T> && in.has_dense_planes() && out.has_dense_planes();
  if (direct) {
    pool_planes<T>(in, out, indices, pool);
    return NG_SUCCESS;
  }
  ImageResult<T, S> result(out);
  pool_planes<T>(as_row_major<T, S>(in, kScratchOperand), result.value, indices, pool);
  result.finish();
  return NG_SUCCESS;
}

// ---- backward ----

template <class T>
ngResult scatter_planes(const Image& grad, const Image& indices, const Image& out) {
  const int64_t plane = out.plane();
  bool outside = false;
  parallel_for(out.batch * out.channels, 0.3 * plane + 2.0 * grad.plane(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / out.channels, c = i % out.channels;
      T* to = out.as<T>() + n * out.batch_stride + c * out.channel_stride;
      const T* from = grad.as<T>() + n * grad.batch_stride + c * grad.channel_stride;
      std::fill_n(to, plane, T(0));
      for (int64_t z = 0; z < grad.size[0]; ++z) {
        for (int64_t y = 0; y < grad.size[1]; ++y) {
          const T* row = from + z * grad.stride[0] + y * grad.stride[1];
          const int64_t* places = indices.as<int64_t>() + n * indices.batch_stride + c * indices.channel_stride +
                                  z * indices.stride[0] + y * indices.stride[1];
          for (int64_t x = 0; x < grad.size[2]; ++x) {
            const int64_t place = places[x * indices.stride[2]];
            if (static_cast<uint64_t>(place) >= static_cast<uint64_t>(plane)) {
              outside = true;
              continue;
            }
            to[place] += row[x * grad.stride[2]];
          }
        }
      }
    }
  });
  if (outside) return fail(NG_ERROR_INDEX_OUT_OF_RANGE, "max_pool_backward: an index is outside the plane");
  return NG_SUCCESS;
}

// Channels-last float32 or float64: a block of channels of an image per task, so that no two tasks write one place.
template <class T>
ngResult scatter_pixels(const Image& grad, const Image& indices, const Image& out) {
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (out.channels + kBlock - 1) / kBlock, plane = out.plane(), row = out.row_stride();
  bool outside = false;
  parallel_for(out.batch * blocks, 1.0 * kBlock * (plane + grad.plane()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / blocks, c0 = i % blocks * kBlock, count = std::min(kBlock, out.channels - c0);
      T* to = out.as<T>() + n * out.batch_stride + c0;
      for (int64_t p = 0; p < plane; ++p) std::fill_n(to + p * row, count, T(0));
      for (int64_t p = 0; p < grad.plane(); ++p) {
        const T* from = grad.as<T>() + n * grad.batch_stride + p * grad.row_stride() + c0;
        const int64_t* places = indices.as<int64_t>() + n * indices.batch_stride + p * indices.row_stride() + c0;
        for (int64_t c = 0; c < count; ++c) {
          if (static_cast<uint64_t>(places[c]) >= static_cast<uint64_t>(plane)) {
            outside = true;
            continue;
          }
          to[places[c] * row + c] += from[c];
        }
      }
    }
  });
  if (outside) return fail(NG_ERROR_INDEX_OUT_OF_RANGE, "max_pool_backward: an index is outside the plane");
  return NG_SUCCESS;
}

template <class S>
ngResult run_backward(const Args& args) {
  using T = Compute<S>;
  const Image grad = make_image(args.in[0]), indices = make_image(args.in[1]), out = make_image(args.out[0]);
  if (std::is_same_v<S, T> && out.has_dense_planes()) return scatter_planes<T>(grad, indices, out);
  if (std::is_same_v<S, T> && out.has_dense_pixels() && grad.has_dense_pixels() && indices.has_dense_pixels()) {
    return scatter_pixels<T>(grad, indices, out);
  }
  ImageResult<T, S> result(out);
  const ngResult status = scatter_planes<T>(as_row_major<T, S>(grad, kScratchOperand), indices, result.value);
  if (status == NG_SUCCESS) result.finish();
  return status;
}

ngResult run_max_pool(const Args& args) {
  switch (args.in[0].type) {
    case NG_UINT8:
      return run_forward<uint8_t>(args);
    case NG_INT8:
      return run_forward<int8_t>(args);
    case NG_INT16:
      return run_forward<int16_t>(args);
    case NG_INT32:
      return run_forward<int32_t>(args);
    case NG_INT64:
      return run_forward<int64_t>(args);
    case NG_FLOAT16:
      return run_forward<Half>(args);
    case NG_BFLOAT16:
      return run_forward<BFloat16>(args);
    case NG_FLOAT32:
      return run_forward<float>(args);
    default:
      return run_forward<double>(args);
  }
}

ngResult run_max_pool_backward(const Args& args) {
  switch (args.in[0].type) {
    case NG_FLOAT16:
      return run_backward<Half>(args);
    case NG_BFLOAT16:
      return run_backward<BFloat16>(args);
    case NG_FLOAT32:
      return run_backward<float>(args);
    default:
      return run_backward<double>(args);
  }
}

// Places are counted in 32 bits.
ngResult accepts_max_pool(const Args& args) {
  if (make_image(args.in[0]).plane() <= INT32_MAX) return NG_SUCCESS;
  return fail(NG_ERROR_NOT_SUPPORTED, "planes of over 2^31 elements");
}

NG_KERNEL("max_pool", kRealTypes, run_max_pool, 0, accepts_max_pool);
NG_KERNEL("max_pool_backward", kFloatTypes, run_max_pool_backward);

}  // namespace
}  // namespace ng
