// batch_norm and batch_norm_backward. Images are walked plane by plane (one channel after the other, each read from
// memory once) or pixel by pixel (channels-last, vectors of channels); other layouts go through a row-major copy.
#include <cmath>
#include <optional>
#include <vector>

#include "image.h"
#include "vector_math.h"

namespace ng {
namespace {

enum class Walk { kPlanes, kPixels };

// Per channel: sums over the batch and space, in double.
struct ChannelSums {
  explicit ChannelSums(int64_t channels) : first(channels), second(channels) {}
  std::vector<double> first, second;
};

int64_t pixel_parts(int64_t rows, int64_t channels) {
  return std::max<int64_t>(1, std::min<int64_t>(cores(), rows * channels / 16384));
}

// body(row0, row1, first, second) adds to float sums of at most kRowBlock rows; they are gathered in double.
template <class T, class Body>
ChannelSums sum_pixels(int64_t rows, int64_t channels, const Body& body) {
  constexpr int64_t kRowBlock = 256;
  const int64_t parts = pixel_parts(rows, channels);
  std::vector<ChannelSums> partial(parts, ChannelSums(channels));
  parallel_for(parts, 0.2 * rows * channels / parts, [&](int64_t begin, int64_t end) {
    T* sums = scratch<T>(kScratchRow3, 2 * channels);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t last = rows * (part + 1) / parts;
      for (int64_t row = rows * part / parts; row < last; row += kRowBlock) {
        std::fill_n(sums, 2 * channels, T(0));
        body(row, std::min(last, row + kRowBlock), sums, sums + channels);
        for (int64_t c = 0; c < channels; ++c) {
          partial[part].first[c] += sums[c];
          partial[part].second[c] += sums[channels + c];
        }
      }
    }
  });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t c = 0; c < channels; ++c) {
      partial[0].first[c] += partial[part].first[c];
      partial[0].second[c] += partial[part].second[c];
    }
  }
  return std::move(partial[0]);
}

// For each vector of channels, the sums of up to eight rows are kept in registers.
template <class T, class Term>
void add_rows(int64_t row0, int64_t row1, int64_t channels, T* first, T* second, const Term& term) {
  for (int64_t row = row0; row < row1; row += 8) {
    const int64_t last = std::min(row1, row + 8);
    for (int64_t c = 0; c < channels; c += kLanes<T>) {
      const int64_t count = std::min<int64_t>(kLanes<T>, channels - c);
      Vector<T> a = load_some(first + c, count), b = load_some(second + c, count);
      for (int64_t r = row; r < last; ++r) term(r, c, count, a, b);
      store_some(first + c, a, count);
      store_some(second + c, b, count);
    }
  }
}

// Mean and biased variance of each channel. The sums are taken of x - shift with a shift near the mean: the variance
// then loses no digits however far the mean is from zero.
template <class S>
void channel_statistics(const Image& x, Walk walk, double* mean, double* variance) {
  using T = Compute<S>;
  const int64_t plane = x.plane(), n = x.batch * plane;
  const auto finish = [&](int64_t c, double shift, double sum, double squares) {
    const double offset = sum / n;
    mean[c] = shift + offset;
    variance[c] = std::max(0.0, squares / n - offset * offset);
    if (squares != squares) variance[c] = squares;
  };
  if (walk == Walk::kPlanes) {
    parallel_for(x.channels, 0.15 * n + 30, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const S* base = x.as<S>() + c * x.channel_stride;
        const int64_t sample = std::min<int64_t>(plane, 1024);
        Moments<S> first(T(0));
        first.add(base, sample);
        const T shift = static_cast<T>(first.sum() / sample);
        Moments<S> all(shift);
        for (int64_t i = 0; i < x.batch; ++i) all.add(base + i * x.batch_stride, plane);
        finish(c, shift, all.sum(), all.squares());
      }
    });
    return;
  }
  T* shift = scratch<T>(kScratchRow2, x.channels);
  const int64_t sample = std::min<int64_t>(n, 32), row_stride = x.row_stride();
  const S* data = x.as<S>();
  std::fill_n(shift, x.channels, T(0));
  for (int64_t r = 0; r < sample; ++r) {
    for (int64_t c = 0; c < x.channels; ++c) shift[c] += static_cast<T>(data[r * row_stride + c]);
  }
  for (int64_t c = 0; c < x.channels; ++c) shift[c] /= static_cast<T>(sample);
  const ChannelSums sums = sum_pixels<T>(n, x.channels, [&](int64_t row0, int64_t row1, T* first, T* second) {
    add_rows(row0, row1, x.channels, first, second,
             [&](int64_t r, int64_t c, int64_t count, Vector<T>& a, Vector<T>& b) {
               const Vector<T> d = load_some(data + r * row_stride + c, count) - load_some(shift + c, count);
               a += d;
               b += d * d;
             });
  });
  for (int64_t c = 0; c < x.channels; ++c) finish(c, shift[c], sums.first[c], sums.second[c]);
}

// by_channel: channel after channel, as the statistics were read just before, so that planes are still in the cache;
// else in the order of memory.
template <class S>
void apply_affine(const Image& x, const Image& out, Walk walk, bool by_channel, const Compute<S>* scale,
                  const Compute<S>* shift) {
  using T = Compute<S>;
  const int64_t plane = x.plane(), channels = x.channels;
  if (walk == Walk::kPlanes) {
    parallel_for(channels * x.batch, 0.2 * plane + 5, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = by_channel ? i % x.batch : i / channels, c = by_channel ? i / x.batch : i % channels;
        scale_shift<S>(x.as<S>() + n * x.batch_stride + c * x.channel_stride,
                       out.as<S>() + n * out.batch_stride + c * out.channel_stride, plane, scale[c], shift[c]);
      }
    });
    return;
  }
  const int64_t from_stride = x.row_stride(), to_stride = out.row_stride();
  parallel_for(x.batch * plane, 0.2 * channels, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const S* from = x.as<S>() + r * from_stride;
      S* to = out.as<S>() + r * to_stride;
      for (int64_t c = 0; c < channels; c += kLanes<T>) {
        const int64_t count = std::min<int64_t>(kLanes<T>, channels - c);
        store_some(to + c, load_some(from + c, count) * load_some(scale + c, count) + load_some(shift + c, count),
                   count);
      }
    }
  });
}

// How all of these can be walked together; false: they need row-major copies.
bool find_walk(const Image* const* images, int count, Walk* walk) {
  bool planes = true, pixels = true;
  for (int i = 0; i < count; ++i) {
    planes = planes && images[i]->has_dense_planes();
    pixels = pixels && images[i]->has_dense_pixels();
  }
  *walk = planes && !(pixels && images[0]->plane() == 1) ? Walk::kPlanes : Walk::kPixels;
  return planes || pixels;
}

template <class T>
T* read_vector(const Tensor* t, int64_t channels, T missing, T* out) {
  if (t && !*t) t = nullptr;
  read_parameter<T>(t ? t->data : nullptr, t ? t->type : NG_FLOAT32, t ? t->strides[0] : 0, channels, missing, out);
  return out;
}
template <class T>
void write_vector(const Args& args, int index, int64_t channels, const T* values) {
  if (index >= args.num_out || !args.out[index]) return;
  const Tensor& t = args.out[index];
  write_parameter<T>(t.data, t.type, t.strides[0], channels, values);
}
const Tensor* input_at(const Args& args, int index) { return index < args.num_in ? &args.in[index] : nullptr; }

void update_running(const Args& args, int64_t channels, int64_t n, const double* mean, const double* variance) {
  const double momentum = args.f(1), correction = static_cast<double>(n) / static_cast<double>(n - 1);
  std::vector<double> running(channels);
  for (int which = 0; which < 2; ++which) {
    const Tensor* old = input_at(args, 3 + which);
    if (!old || !*old || 3 + which >= args.num_out || !args.out[3 + which]) continue;
    read_vector<double>(old, channels, 0.0, running.data());
    for (int64_t c = 0; c < channels; ++c) {
      const double value = which == 0 ? mean[c] : variance[c] * correction;
      running[c] = (1 - momentum) * running[c] + momentum * value;
    }
    write_vector(args, 3 + which, channels, running.data());
  }
}

template <class S>
ngResult run_forward(const Args& args, Image input, const Image& output) {
  using T = Compute<S>;
  const bool training = args.i(0) != 0;
  const double eps = args.f(2);
  const int64_t channels = input.channels, n = input.batch * input.plane();
  Walk walk;
  const Image* images[] = {&input, &output};
  const bool direct = find_walk(images, 2, &walk);
  std::optional<ImageResult<S, S>> result;
  if (!direct) {
    input = as_row_major<S, S>(input, kScratchOperand);
    result.emplace(output);
    walk = Walk::kPlanes;
  }
  const Image& out = direct ? output : result->value;
  std::vector<double> mean(channels), variance(channels), invstd(channels);
  if (training) {
    channel_statistics<S>(input, walk, mean.data(), variance.data());
    update_running(args, channels, n, mean.data(), variance.data());
  } else {
    read_vector<double>(input_at(args, 3), channels, 0.0, mean.data());
    read_vector<double>(input_at(args, 4), channels, 1.0, variance.data());
  }
  for (int64_t c = 0; c < channels; ++c) invstd[c] = 1.0 / std::sqrt(variance[c] + eps);
  if (training) {
    write_vector(args, 1, channels, mean.data());
    write_vector(args, 2, channels, invstd.data());
  }
  std::vector<double> weight(channels), bias(channels);
  read_vector<double>(input_at(args, 1), channels, 1.0, weight.data());
  read_vector<double>(input_at(args, 2), channels, 0.0, bias.data());
  T* scale = scratch<T>(kScratchRow, 2 * channels);
  T* shift = scale + channels;
  for (int64_t c = 0; c < channels; ++c) {
    scale[c] = static_cast<T>(invstd[c] * weight[c]);
    shift[c] = static_cast<T>(bias[c] - mean[c] * (invstd[c] * weight[c]));
  }
  apply_affine<S>(input, out, walk, training, scale, shift);
  if (!direct) result->finish();
  return NG_SUCCESS;
}

// grad_input = (grad - c - (x - mean) * b) * a, per channel: the difference first, as it cancels for a good part
template <class T>
struct BackwardFactors {
  T *a, *b, *c, *mean;
};

template <class S>
void apply_backward(const Image& grad, const Image& x, const Image& out, Walk walk,
                    const BackwardFactors<Compute<S>>& f) {
  using T = Compute<S>;
  const int64_t plane = x.plane(), channels = x.channels;
  if (walk == Walk::kPlanes) {
    parallel_for(channels, 0.3 * plane * x.batch + 10, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        for (int64_t n = 0; n < x.batch; ++n) {
          const S* g = grad.as<S>() + n * grad.batch_stride + k * grad.channel_stride;
          const S* v = x.as<S>() + n * x.batch_stride + k * x.channel_stride;
          S* to = out.as<S>() + n * out.batch_stride + k * out.channel_stride;
          for (int64_t i = 0; i < plane; i += kLanes<T>) {
            const int64_t count = std::min<int64_t>(kLanes<T>, plane - i);
            const Vector<T> centred = load_some(v + i, count) - f.mean[k];
            store_some(to + i, (load_some(g + i, count) - f.c[k] - centred * f.b[k]) * f.a[k], count);
          }
        }
      }
    });
    return;
  }
  const int64_t grad_stride = grad.row_stride(), x_stride = x.row_stride(), out_stride = out.row_stride();
  parallel_for(x.batch * plane, 0.3 * channels, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const S *g = grad.as<S>() + r * grad_stride, *v = x.as<S>() + r * x_stride;
      S* to = out.as<S>() + r * out_stride;
      for (int64_t k = 0; k < channels; k += kLanes<T>) {
        const int64_t count = std::min<int64_t>(kLanes<T>, channels - k);
        const Vector<T> centred = load_some(v + k, count) - load_some(f.mean + k, count);
        const Vector<T> rest =
            load_some(g + k, count) - load_some(f.c + k, count) - centred * load_some(f.b + k, count);
        store_some(to + k, rest * load_some(f.a + k, count), count);
      }
    }
  });
}

// first: sum of grad; second: sum of grad * (x - mean)
template <class S>
ChannelSums backward_sums(const Image& grad, const Image& x, Walk walk, const Compute<S>* mean) {
  using T = Compute<S>;
  const int64_t plane = x.plane(), channels = x.channels;
  if (walk == Walk::kPixels) {
    const int64_t grad_stride = grad.row_stride(), x_stride = x.row_stride();
    return sum_pixels<T>(x.batch * plane, channels, [&](int64_t row0, int64_t row1, T* first, T* second) {
      add_rows(row0, row1, channels, first, second,
               [&](int64_t r, int64_t c, int64_t count, Vector<T>& a, Vector<T>& b) {
                 const Vector<T> g = load_some(grad.as<S>() + r * grad_stride + c, count);
                 a += g;
                 b += g * (load_some(x.as<S>() + r * x_stride + c, count) - load_some(mean + c, count));
               });
    });
  }
  ChannelSums sums(channels);
  parallel_for(channels, 0.2 * plane * x.batch + 20, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Products<S> products(mean[c]);
      for (int64_t n = 0; n < x.batch; ++n) {
        products.add(grad.as<S>() + n * grad.batch_stride + c * grad.channel_stride,
                     x.as<S>() + n * x.batch_stride + c * x.channel_stride, plane);
      }
      sums.first[c] = products.sum(), sums.second[c] = products.products();
    }
  });
  return sums;
}

template <class S>
ngResult run_backward(const Args& args, Image grad, Image x, const Image* grad_input) {
  using T = Compute<S>;
  const bool training = args.i(0) != 0;
  const int64_t channels = x.channels, n = x.batch * x.plane();
  std::vector<double> weight(channels), mean(channels), invstd(channels);
  read_vector<double>(&args.in[2], channels, 1.0, weight.data());
  read_vector<double>(&args.in[3], channels, 0.0, mean.data());
  read_vector<double>(&args.in[4], channels, 1.0, invstd.data());
  if (!training) {
    for (double& v : invstd) v = 1.0 / std::sqrt(v + args.f(1));
  }
  Walk walk;
  const Image* images[] = {&grad, &x, grad_input};
  const bool direct = find_walk(images, grad_input ? 3 : 2, &walk);
  if (!direct) {
    grad = as_row_major<S, S>(grad, kScratchOperand);
    x = as_row_major<S, S>(x, kScratchOperand2);
    walk = Walk::kPlanes;
  }
  T* factors = scratch<T>(kScratchRow, 4 * channels);
  const BackwardFactors<T> f{factors, factors + channels, factors + 2 * channels, factors + 3 * channels};
  for (int64_t c = 0; c < channels; ++c) f.mean[c] = static_cast<T>(mean[c]);
  const bool wants_sums = training || (args.num_out > 1 && args.out[1]) || (args.num_out > 2 && args.out[2]);
  ChannelSums sums(channels);
  if (wants_sums) sums = backward_sums<S>(grad, x, walk, f.mean);
  for (int64_t c = 0; c < channels; ++c) {
    const double a = invstd[c] * weight[c];
    f.a[c] = static_cast<T>(a);
    f.b[c] = static_cast<T>(training ? invstd[c] * invstd[c] * sums.second[c] / n : 0.0);
    f.c[c] = static_cast<T>(training ? sums.first[c] / n : 0.0);
    // In evaluation x has no part, not even an infinite one.
    sums.second[c] *= invstd[c];
  }
  write_vector(args, 1, channels, sums.second.data());
  write_vector(args, 2, channels, sums.first.data());
  if (!grad_input) return NG_SUCCESS;
  std::optional<ImageResult<S, S>> result;
  if (!direct) result.emplace(*grad_input);
  const Image& out = direct ? *grad_input : result->value;
  if (training) {
    apply_backward<S>(grad, x, out, walk, f);
  } else {
    apply_affine<S>(grad, out, walk, wants_sums, f.a, f.c);
  }
  if (!direct) result->finish();
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

// Tensors with more than three spatial dims that cannot be merged are refused.
ngResult accepts_images(const Tensor* const* tensors, int count) {
  for (int i = 0; i < count; ++i) {
    Image image;
    if (*tensors[i] && !make_merged_image(*tensors[i], &image)) {
      return fail(NG_ERROR_NOT_SUPPORTED, "more than three spatial dims that cannot be merged");
    }
  }
  return NG_SUCCESS;
}
ngResult accepts_batch_norm(const Args& args) {
  const Tensor* const tensors[] = {&args.in[0], &args.out[0]};
  return accepts_images(tensors, 2);
}
ngResult accepts_batch_norm_backward(const Args& args) {
  const Tensor* const tensors[] = {&args.in[0], &args.in[1], &args.out[0]};
  return accepts_images(tensors, 3);
}

ngResult run_batch_norm(const Args& args) {
  Image input, output;
  make_merged_image(args.in[0], &input);
  make_merged_image(args.out[0], &output);
  return for_type(input.type, [&](auto tag) { return run_forward<decltype(tag)>(args, input, output); });
}

ngResult run_batch_norm_backward(const Args& args) {
  Image grad, input, grad_input;
  const bool wants_input = static_cast<bool>(args.out[0]);
  make_merged_image(args.in[0], &grad);
  make_merged_image(args.in[1], &input);
  if (wants_input) make_merged_image(args.out[0], &grad_input);
  return for_type(input.type, [&](auto tag) {
    return run_backward<decltype(tag)>(args, grad, input, wants_input ? &grad_input : nullptr);
  });
}

NG_KERNEL("batch_norm", kFloatTypes, run_batch_norm, 0, accepts_batch_norm);
NG_KERNEL("batch_norm_backward", kFloatTypes, run_batch_norm_backward, 0, accepts_batch_norm_backward);

}  // namespace
}  // namespace ng
