// avg_pool, adaptive_avg_pool and their backward passes. Both are means over windows that differ only in where a
// window starts and ends and what it is divided by.
#include <vector>

#include "conv_patch.h"
#include "image.h"
#include "vector_math.h"

namespace ng {
namespace {

// Per dim and output position: the window [start, end), clipped to the plane, and its share of the divisor.
struct Windows {
  std::vector<int64_t> start[3], end[3], count[3];
  double divisor;           // 0: the product of the counts
  int64_t step;             // of the last dim's windows; 0: irregular
  int64_t kernel, padding;  // of the last dim, if regular
  int64_t rows_per_step;    // of the dim before, if regular

  double scale(int64_t z, int64_t y, int64_t x) const {
    return 1.0 / (divisor != 0 ? divisor : static_cast<double>(count[0][z] * count[1][y] * count[2][x]));
  }
};

Windows regular_windows(const Args& args, const Image& in, const Image& out) {
  Windows w;
  const int spatial = static_cast<int>(args.i(0));
  const bool include_padding = args.i(1 + 3 * spatial) != 0;
  w.divisor = args.f(2 + 3 * spatial);
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    const int64_t kernel = from >= 0 ? args.i(1 + from) : 1, stride = from >= 0 ? args.i(1 + spatial + from) : 1;
    const int64_t padding = from >= 0 ? args.i(1 + 2 * spatial + from) : 0;
    for (int64_t o = 0; o < out.size[d]; ++o) {
      const int64_t start = o * stride - padding, end = std::min(start + kernel, in.size[d] + padding);
      const int64_t first = std::max<int64_t>(start, 0), last = std::min(end, in.size[d]);
      w.start[d].push_back(first);
      w.end[d].push_back(last);
      w.count[d].push_back(include_padding ? end - start : last - first);
    }
    if (d == 1) w.rows_per_step = stride;
    w.step = stride, w.kernel = kernel, w.padding = padding;
  }
  return w;
}

Windows adaptive_windows(const Image& in, const Image& out) {
  Windows w;
  w.divisor = 0, w.step = 0, w.kernel = 0, w.padding = 0, w.rows_per_step = 0;
  for (int d = 0; d < 3; ++d) {
    for (int64_t o = 0; o < out.size[d]; ++o) {
      w.start[d].push_back(o * in.size[d] / out.size[d]);
      w.end[d].push_back(((o + 1) * in.size[d] + out.size[d] - 1) / out.size[d]);
      w.count[d].push_back(w.end[d].back() - w.start[d].back());
    }
  }
  return w;
}

template <class T>
T sum_run(const T* p, int64_t n) {
  Vector<T> sum[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes<T> <= n; i += 2 * kLanes<T>) {
    sum[0] += load(p + i);
    sum[1] += load(p + i + kLanes<T>);
  }
  for (; i + kLanes<T> <= n; i += kLanes<T>) sum[0] += load(p + i);
  T total = n >= kLanes<T> ? horizontal_sum<T>(sum[0] + sum[1]) : T(0);
  for (; i < n; ++i) total += p[i];
  return total;
}

// A row of outputs with windows at equal steps: lanes are neighbouring outputs. scales: of the row, one per output.
template <class T, int kStep>
void mean_row_regular(const T* plane, const Image& in, const Windows& w, int64_t oz, int64_t oy, int64_t width,
                      const T* scales, T* out) {
  const int64_t step = kStep ? kStep : w.step;
  for (int64_t ox = 0; ox < width; ox += kLanes<T>) {
    const int64_t count = std::min<int64_t>(kLanes<T>, width - ox);
    Vector<T> sum{};
    for (int64_t k = 0; k < w.kernel; ++k) {
      const int64_t x = ox * step - w.padding + k;
      const int64_t first = x < 0 ? (-x + step - 1) / step : 0;
      const int64_t last = x >= in.size[2] ? 0 : std::min(count, (in.size[2] - x + step - 1) / step);
      if (first >= last) continue;
      const uint32_t mask = ((1u << (last - first)) - 1u) << first;
      for (int64_t z = w.start[0][oz]; z < w.end[0][oz]; ++z) {
        for (int64_t y = w.start[1][oy]; y < w.end[1][oy]; ++y) {
          sum += detail::masked_load<kStep, T>(Vector<T>{}, mask, plane + (z * in.size[1] + y) * in.size[2] + x, step);
        }
      }
    }
    store_some(out + ox, sum * load_some(scales + ox, count), count);
  }
}

// One over the divisor of every output of a plane.
template <class T>
std::vector<T> plane_scales(const Windows& w, const Image& out) {
  std::vector<T> scales;
  for (int64_t z = 0; z < out.size[0]; ++z) {
    for (int64_t y = 0; y < out.size[1]; ++y) {
      for (int64_t x = 0; x < out.size[2]; ++x) scales.push_back(static_cast<T>(w.scale(z, y, x)));
    }
  }
  return scales;
}

template <class T>
void mean_planes(const Image& in, const Image& out, const Windows& w) {
  const bool whole = out.plane() == 1 && w.step == 0;
  const double cost = whole ? 0.1 * in.plane() + 5 : 0.5 * in.plane() + 2.0 * out.plane();
  const std::vector<T> scales = whole ? std::vector<T>() : plane_scales<T>(w, out);
  parallel_for(in.batch * in.channels, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / in.channels, c = i % in.channels;
      const T* plane = in.as<T>() + n * in.batch_stride + c * in.channel_stride;
      T* to = out.as<T>() + n * out.batch_stride + c * out.channel_stride;
      if (whole) {
        *to = sum_run(plane, in.plane()) / static_cast<T>(in.plane());
        continue;
      }
      const T* scale = scales.data();
      for (int64_t z = 0; z < out.size[0]; ++z) {
        for (int64_t y = 0; y < out.size[1]; ++y, to += out.size[2], scale += out.size[2]) {
          if (w.step != 0) {
            prefetch_rows(plane + (w.start[0][z] * in.size[1] + w.end[1][y]) * in.size[2],
                          in.size[2] * w.rows_per_step);
            detail::with_step(w.step, [&](auto step) {
              mean_row_regular<T, step.value>(plane, in, w, z, y, out.size[2], scale, to);
            });
            continue;
          }
          for (int64_t x = 0; x < out.size[2]; ++x) {
            T sum = 0;
            for (int64_t iz = w.start[0][z]; iz < w.end[0][z]; ++iz) {
              for (int64_t iy = w.start[1][y]; iy < w.end[1][y]; ++iy) {
                const T* row = plane + (iz * in.size[1] + iy) * in.size[2];
                sum += sum_run(row + w.start[2][x], w.end[2][x] - w.start[2][x]);
              }
            }
            to[x] = sum * scale[x];
          }
        }
      }
    }
  });
}

template <class S>
void mean_pixels(const Image& in, const Image& out, const Windows& w) {
  using T = Compute<S>;
  const int64_t row = in.row_stride(), plane = out.plane();
  parallel_for(in.batch * plane, 0.2 * in.channels * (in.plane() / plane + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / plane, p = i % plane;
      const int64_t z = p / (out.size[1] * out.size[2]), y = p / out.size[2] % out.size[1], x = p % out.size[2];
      const T scale = static_cast<T>(w.scale(z, y, x));
      const S* image = in.as<S>() + n * in.batch_stride;
      for (int64_t c = 0; c < in.channels; c += kLanes<T>) {
        const int64_t count = std::min<int64_t>(kLanes<T>, in.channels - c);
        Vector<T> sum{};
        for (int64_t iz = w.start[0][z]; iz < w.end[0][z]; ++iz) {
          for (int64_t iy = w.start[1][y]; iy < w.end[1][y]; ++iy) {
            const int64_t first = (iz * in.size[1] + iy) * in.size[2];
            for (int64_t ix = w.start[2][x]; ix < w.end[2][x]; ++ix)
              sum += load_some(image + (first + ix) * row + c, count);
          }
        }
        store_some(out.as<S>() + n * out.batch_stride + p * out.row_stride() + c, sum * scale, count);
      }
    }
  });
}

template <class S>
ngResult run_forward(const Image& in, const Image& out, const Windows& w) {
  using T = Compute<S>;
  if (!in.has_dense_planes() && in.has_dense_pixels() && out.has_dense_pixels()) {
    mean_pixels<S>(in, out, w);
    return NG_SUCCESS;
  }
  if (std::is_same_v<S, T> && in.has_dense_planes() && out.has_dense_planes()) {
    mean_planes<T>(in, out, w);
    return NG_SUCCESS;
  }
  ImageResult<T, S> result(out);
  mean_planes<T>(as_row_major<T, S>(in, kScratchOperand), result.value, w);
  result.finish();
  return NG_SUCCESS;
}

// ---- backward ----

template <class T>
void spread_planes(const Image& grad, const Image& out, const Windows& w) {
  const int64_t plane = out.plane(), width = out.size[2];
  const std::vector<T> scales = plane_scales<T>(w, grad);
  const bool whole = grad.plane() == 1 && w.step == 0;
  parallel_for(out.batch * out.channels, 0.5 * plane + 3.0 * grad.plane(), [&](int64_t begin, int64_t end) {
    T* line = scratch<T>(kScratchRow, width);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / out.channels, c = i % out.channels;
      T* to = out.as<T>() + n * out.batch_stride + c * out.channel_stride;
      const T* from = grad.as<T>() + n * grad.batch_stride + c * grad.channel_stride;
      if (whole) {
        std::fill_n(to, plane, *from * scales[0]);
        continue;
      }
      std::fill_n(to, plane, T(0));
      const T* scale = scales.data();
      for (int64_t z = 0; z < grad.size[0]; ++z) {
        for (int64_t y = 0; y < grad.size[1]; ++y, from += grad.size[2], scale += grad.size[2]) {
          // What a row of gradients gives to one row of the plane, then to each row of the windows.
          std::fill_n(line, width, T(0));
          for (int64_t x = 0; x < grad.size[2]; ++x) {
            const T value = from[x] * scale[x];
            for (int64_t ix = w.start[2][x]; ix < w.end[2][x]; ++ix) line[ix] += value;
          }
          for (int64_t iz = w.start[0][z]; iz < w.end[0][z]; ++iz) {
            for (int64_t iy = w.start[1][y]; iy < w.end[1][y]; ++iy) {
              T* row = to + (iz * out.size[1] + iy) * width;
              for (int64_t ix = 0; ix < width; ++ix) row[ix] += line[ix];
            }
          }
        }
      }
    }
  });
}

// Channels-last float32 or float64: a block of channels of an image per task.
template <class T>
void spread_pixels(const Image& grad, const Image& out, const Windows& w) {
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (out.channels + kBlock - 1) / kBlock, row = out.row_stride();
  parallel_for(out.batch * blocks, 0.3 * kBlock * (out.plane() + grad.plane()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / blocks, c0 = i % blocks * kBlock, count = std::min(kBlock, out.channels - c0);
      T* to = out.as<T>() + n * out.batch_stride + c0;
      const T* from = grad.as<T>() + n * grad.batch_stride + c0;
      for (int64_t p = 0; p < out.plane(); ++p) std::fill_n(to + p * row, count, T(0));
      for (int64_t z = 0; z < grad.size[0]; ++z) {
        for (int64_t y = 0; y < grad.size[1]; ++y) {
          for (int64_t x = 0; x < grad.size[2]; ++x, from += grad.row_stride()) {
            const T scale = static_cast<T>(w.scale(z, y, x));
            for (int64_t iz = w.start[0][z]; iz < w.end[0][z]; ++iz) {
              for (int64_t iy = w.start[1][y]; iy < w.end[1][y]; ++iy) {
                for (int64_t ix = w.start[2][x]; ix < w.end[2][x]; ++ix) {
                  T* pixel = to + ((iz * out.size[1] + iy) * out.size[2] + ix) * row;
                  for (int64_t c = 0; c < count; ++c) pixel[c] += from[c] * scale;
                }
              }
            }
          }
        }
      }
    }
  });
}

template <class S>
ngResult run_backward(const Image& grad, const Image& out, const Windows& w) {
  using T = Compute<S>;
  if (std::is_same_v<S, T> && !out.has_dense_planes() && out.has_dense_pixels() && grad.has_dense_pixels()) {
    spread_pixels<T>(grad, out, w);
    return NG_SUCCESS;
  }
  ImageResult<T, S> result(out);
  spread_planes<T>(as_row_major<T, S>(grad, kScratchOperand), result.value, w);
  result.finish();
  return NG_SUCCESS;
}

template <class Body>
ngResult for_type(ngDataType type, const Body& body) {
  switch (type) {
    case NG_FLOAT16:
      return body(Half());
    case NG_BFLOAT16:
      return body(BFloat16());
    case NG_FLOAT32:
      return body(float());
    default:
      return body(double());
  }
}

template <bool kAdaptive, bool kBackward>
ngResult run(const Args& args) {
  const Image from = make_image(args.in[0]), to = make_image(args.out[0]);
  const Image &in = kBackward ? to : from, &out = kBackward ? from : to;
  const Windows w = kAdaptive ? adaptive_windows(in, out) : regular_windows(args, in, out);
  return for_type(from.type, [&](auto tag) {
    using S = decltype(tag);
    return kBackward ? run_backward<S>(from, to, w) : run_forward<S>(from, to, w);
  });
}

NG_KERNEL("avg_pool", kFloatTypes, (run<false, false>));
NG_KERNEL("avg_pool_backward", kFloatTypes, (run<false, true>));
NG_KERNEL("adaptive_avg_pool", kFloatTypes, (run<true, false>));
NG_KERNEL("adaptive_avg_pool_backward", kFloatTypes, (run<true, true>));

}  // namespace
}  // namespace ng
