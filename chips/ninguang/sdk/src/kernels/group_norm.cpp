// group_norm and group_norm_backward over dense [N, C, HxW]; a group is a run of channels and so one dense block.
#include <cmath>
#include <vector>

#include "kernel.h"
#include "parallel.h"
#include "vector_math.h"

namespace ng {
namespace {

struct Shape {
  int64_t batch, channels, plane, groups;
  explicit Shape(const Args& args) : batch(args.i(0)), channels(args.i(1)), plane(args.i(2)), groups(args.i(3)) {}
  int64_t group_channels() const { return channels / groups; }
};

std::vector<double> read_all(const Args& args, int index, int64_t n, double missing) {
  std::vector<double> values(n);
  const bool present = index < args.num_in && args.in[index];
  const Tensor* t = present ? &args.in[index] : nullptr;
  const int64_t stride = t && t->ndim == 1 ? t->strides[0] : 1;
  read_parameter<double>(t ? t->data : nullptr, t ? t->type : NG_FLOAT64, stride, n, missing, values.data());
  return values;
}

void write_all(const Args& args, int index, const std::vector<double>& values) {
  if (index >= args.num_out || !args.out[index]) return;
  const Tensor& t = args.out[index];
  write_parameter<double>(t.data, t.type, t.ndim == 1 ? t.strides[0] : 1, static_cast<int64_t>(values.size()),
                          values.data());
}

template <class S>
ngResult forward(const Args& args) {
  using T = Compute<S>;
  const Shape s(args);
  const double eps = args.f(4);
  const int64_t size = s.group_channels() * s.plane, count = s.batch * s.groups;
  const std::vector<double> weight = read_all(args, 1, s.channels, 1.0), bias = read_all(args, 2, s.channels, 0.0);
  std::vector<double> means(count), rstds(count);
  const S* in = args.in[0].as<S>();
  S* out = args.out[0].as<S>();
  parallel_for(count, 0.4 * size + 30, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const S* x = in + i * size;
      S* y = out + i * size;
      Moments<S> plain(T(0));
      plain.add(x, size);
      const T mean = static_cast<T>(plain.sum() / size);
      Moments<S> centred(mean);
      centred.add(x, size);
      const double offset = centred.sum() / size;
      means[i] = static_cast<double>(mean) + offset;
      rstds[i] = 1.0 / std::sqrt(centred.squares() / size - offset * offset + eps);
      for (int64_t k = 0; k < s.group_channels(); ++k) {
        const int64_t c = i % s.groups * s.group_channels() + k;
        const double scale = rstds[i] * weight[c];
        scale_shift<S>(x + k * s.plane, y + k * s.plane, s.plane, static_cast<T>(scale),
                       static_cast<T>(bias[c] - means[i] * scale));
      }
    }
  });
  write_all(args, 1, means);
  write_all(args, 2, rstds);
  return NG_SUCCESS;
}

template <class S>
ngResult backward(const Args& args) {
  using T = Compute<S>;
  const Shape s(args);
  const int64_t per_group = s.group_channels(), size = per_group * s.plane, count = s.batch * s.groups;
  const std::vector<double> weight = read_all(args, 4, s.channels, 1.0);
  const std::vector<double> means = read_all(args, 2, count, 0.0), rstds = read_all(args, 3, count, 1.0);
  // Per image and channel: sum of grad, and of grad * (x - mean).
  std::vector<double> sums(s.batch * s.channels), products(s.batch * s.channels);
  const S *grad = args.in[0].as<S>(), *in = args.in[1].as<S>();
  parallel_for(count, 0.6 * size + 30, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const S *g = grad + i * size, *x = in + i * size;
      const T mean = static_cast<T>(means[i]);
      double first = 0, second = 0;
      for (int64_t k = 0; k < per_group; ++k) {
        const int64_t at = i * per_group + k;  // = image * channels + channel
        Products<S> both(mean);
        both.add(g + k * s.plane, x + k * s.plane, s.plane);
        sums[at] = both.sum(), products[at] = both.products();
        first += weight[at % s.channels] * sums[at];
        second += weight[at % s.channels] * products[at];
      }
      if (!args.out[0]) continue;
      S* out = args.out[0].as<S>() + i * size;
      const T slope = static_cast<T>(-rstds[i] * rstds[i] * rstds[i] * second / size);
      const T shift = static_cast<T>(-rstds[i] * first / size);
      for (int64_t k = 0; k < per_group; ++k) {
        const T scale = static_cast<T>(rstds[i] * weight[(i * per_group + k) % s.channels]);
        for (int64_t p = k * s.plane; p < (k + 1) * s.plane; p += kLanes<T>) {
          const int64_t lanes = std::min<int64_t>(kLanes<T>, (k + 1) * s.plane - p);
          store_some(out + p, load_some(g + p, lanes) * scale + ((load_some(x + p, lanes) - mean) * slope + shift),
                     lanes);
        }
      }
    }
  });
  std::vector<double> weight_grad(s.channels), bias_grad(s.channels);
  for (int64_t at = 0; at < s.batch * s.channels; ++at) {
    weight_grad[at % s.channels] += products[at] * rstds[at / per_group];
    bias_grad[at % s.channels] += sums[at];
  }
  write_all(args, 1, weight_grad);
  write_all(args, 2, bias_grad);
  return NG_SUCCESS;
}

template <bool kBackward>
ngResult run(const Args& args) {
  switch (args.in[0].type) {
    case NG_FLOAT16:
      return kBackward ? backward<Half>(args) : forward<Half>(args);
    case NG_BFLOAT16:
      return kBackward ? backward<BFloat16>(args) : forward<BFloat16>(args);
    case NG_FLOAT32:
      return kBackward ? backward<float>(args) : forward<float>(args);
    default:
      return kBackward ? backward<double>(args) : forward<double>(args);
  }
}

NG_KERNEL("group_norm", kFloatTypes, run<false>);
NG_KERNEL("group_norm_backward", kFloatTypes, run<true>);

}  // namespace
}  // namespace ng
