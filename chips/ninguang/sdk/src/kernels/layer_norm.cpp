// layer_norm, rms_norm and their backward passes over dense [rows, columns]. One body serves both: rms_norm is
// layer_norm without the mean and without the bias.
#include <cmath>

#include "kernel.h"
#include "parallel.h"
#include "scratch.h"
#include "vector_math.h"

namespace ng {
namespace {

// A parameter vector as computing type; nullptr if it is absent.
template <class T>
const T* parameter(const Args& args, int index, int64_t n, T* buffer) {
  if (index >= args.num_in || !args.in[index]) return nullptr;
  const Tensor& t = args.in[index];
  const int64_t stride = t.ndim > 0 ? t.strides[t.ndim - 1] : 1;
  if (t.type == TypeOf<T>::value && stride == 1) return t.as<T>();
  read_parameter<T>(t.data, t.type, stride, n, T(0), buffer);
  return buffer;
}

// One number per row, float or double or half.
struct RowValues {
  void* data = nullptr;
  ngDataType type = NG_FLOAT32;
  RowValues() = default;
  explicit RowValues(const Tensor& t) : data(t.data), type(t.type) {}

  double get(int64_t row) const {
    double value;
    const int64_t bytes = size_of(type);
    read_parameter<double>(static_cast<char*>(data) + row * bytes, type, 1, 1, 0.0, &value);
    return value;
  }
  void set(int64_t row, double value) const {
    if (data) write_parameter<double>(static_cast<char*>(data) + row * size_of(type), type, 1, 1, &value);
  }
};

template <class T>
Vector<T> load_parameter(const T* p, int64_t at, int64_t count, T missing) {
  return p ? load_some(p + at, count) : broadcast(missing);
}

template <class S, bool kCentre>
ngResult forward(const Args& args) {
  using T = Compute<S>;
  constexpr int kLane = kLanes<T>;
  const int64_t rows = args.i(0), columns = args.i(1);
  const double eps = args.f(2);
  const T* weight = parameter<T>(args, 1, columns, scratch<T>(kScratchOperand, columns));
  const T* bias = kCentre ? parameter<T>(args, 2, columns, scratch<T>(kScratchOperand2, columns)) : nullptr;
  const RowValues means = kCentre ? RowValues(args.out[1]) : RowValues(), rstds(args.out[kCentre ? 2 : 1]);
  const S* in = args.in[0].as<S>();
  S* out = args.out[0].as<S>();
  parallel_for(rows, 0.3 * columns + 20, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const S* x = in + r * columns;
      S* y = out + r * columns;
      T mean = 0;
      if (kCentre) {
        Moments<S> plain(T(0));
        plain.add(x, columns);
        mean = static_cast<T>(plain.sum() / columns);
      }
      Moments<S> centred(mean);
      centred.add(x, columns);
      const double offset = kCentre ? centred.sum() / columns : 0.0;
      const double rstd = 1.0 / std::sqrt(centred.squares() / columns - offset * offset + eps);
      means.set(r, mean);
      rstds.set(r, rstd);
      const T scale = static_cast<T>(rstd);
      for (int64_t c = 0; c < columns; c += kLane) {
        const int64_t count = std::min<int64_t>(kLane, columns - c);
        Vector<T> v = (load_some(x + c, count) - mean) * scale;
        if (weight) v *= load_some(weight + c, count);
        if (bias) v += load_some(bias + c, count);
        store_some(y + c, v, count);
      }
    }
  });
  return NG_SUCCESS;
}

template <class S>
struct BackwardRow {
  using T = Compute<S>;
  const S *grad, *x;
  S* out;                    // may be nullptr
  const T* weight;           // may be nullptr
  T *weight_sum, *bias_sum;  // may be nullptr
  int64_t columns;

  // The mean term (only when centred) and the variance term, then the row's gradient and its part of the sums.
  template <bool kCentre>
  void run(T mean, T rstd) const {
    constexpr int kLane = kLanes<T>;
    Vector<T> first{}, second{};
    if (out) {
      for (int64_t c = 0; c < columns; c += kLane) {
        const int64_t count = std::min<int64_t>(kLane, columns - c);
        const Vector<T> g = load_some(grad + c, count) * load_parameter(weight, c, count, T(1));
        const Vector<T> centred = load_some(x + c, count) - mean;
        first += g;
        second += g * centred;  // lanes past the end have g = 0
      }
    }
    const T mean_grad = kCentre ? horizontal_sum<T>(first) / static_cast<T>(columns) : T(0);
    const T slope = horizontal_sum<T>(second) * rstd * rstd / static_cast<T>(columns);
    for (int64_t c = 0; c < columns; c += kLane) {
      const int64_t count = std::min<int64_t>(kLane, columns - c);
      const Vector<T> g = load_some(grad + c, count), centred = load_some(x + c, count) - mean;
      if (weight_sum) store_some(weight_sum + c, load_some(weight_sum + c, count) + g * (centred * rstd), count);
      if (bias_sum) store_some(bias_sum + c, load_some(bias_sum + c, count) + g, count);
      if (!out) continue;
      const Vector<T> scaled = g * load_parameter(weight, c, count, T(1));
      store_some(out + c, (scaled - mean_grad - centred * slope) * rstd, count);
    }
  }
};

// Gathers the partial sums of `parts` parts into an output vector.
template <class T>
void write_sums(const Tensor& t, const T* partial, int64_t parts, int64_t stride, int64_t columns) {
  double* total = scratch<double>(kScratchRow2, columns);
  std::fill_n(total, columns, 0.0);
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t c = 0; c < columns; ++c) total[c] += partial[part * stride + c];
  }
  write_parameter<double>(t.data, t.type, t.ndim > 0 ? t.strides[t.ndim - 1] : 1, columns, total);
}

template <class S, bool kCentre>
ngResult backward(const Args& args) {
  using T = Compute<S>;
  const int64_t rows = args.i(0), columns = args.i(1);
  const int rstd_index = kCentre ? 3 : 2;
  const RowValues means = kCentre ? RowValues(args.in[2]) : RowValues(), rstds(args.in[rstd_index]);
  const T* weight = parameter<T>(args, rstd_index + 1, columns, scratch<T>(kScratchOperand, columns));
  const bool wants_weight = args.num_out > 1 && args.out[1], wants_bias = kCentre && args.num_out > 2 && args.out[2];
  const bool wants_sums = wants_weight || wants_bias;
  // Without sums a part is a row; with sums the parts are few, each with its own.
  const int64_t parts =
      wants_sums ? std::max<int64_t>(1, std::min<int64_t>(2 * cores(), rows * columns / 16384)) : rows;
  T* partial = wants_sums ? scratch<T>(kScratchRow3, parts * 2 * columns) : nullptr;
  if (wants_sums) std::fill_n(partial, parts * 2 * columns, T(0));
  parallel_for(parts, (0.5 * columns + 20) * rows / parts, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      BackwardRow<S> row{};
      row.columns = columns;
      row.weight = weight;
      row.weight_sum = wants_weight ? partial + part * 2 * columns : nullptr;
      row.bias_sum = wants_bias ? partial + (part * 2 + 1) * columns : nullptr;
      for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
        row.grad = args.in[0].as<S>() + r * columns;
        row.x = args.in[1].as<S>() + r * columns;
        row.out = args.out[0] ? args.out[0].as<S>() + r * columns : nullptr;
        row.template run<kCentre>(kCentre ? static_cast<T>(means.get(r)) : T(0), static_cast<T>(rstds.get(r)));
      }
    }
  });
  if (wants_weight) write_sums(args.out[1], partial, parts, 2 * columns, columns);
  if (wants_bias) write_sums(args.out[2], partial + columns, parts, 2 * columns, columns);
  return NG_SUCCESS;
}

template <bool kCentre, bool kBackward>
ngResult run(const Args& args) {
  switch (args.in[0].type) {
    case NG_FLOAT16:
      return kBackward ? backward<Half, kCentre>(args) : forward<Half, kCentre>(args);
    case NG_BFLOAT16:
      return kBackward ? backward<BFloat16, kCentre>(args) : forward<BFloat16, kCentre>(args);
    case NG_FLOAT32:
      return kBackward ? backward<float, kCentre>(args) : forward<float, kCentre>(args);
    default:
      return kBackward ? backward<double, kCentre>(args) : forward<double, kCentre>(args);
  }
}

NG_KERNEL("layer_norm", kFloatTypes, (run<true, false>));
NG_KERNEL("layer_norm_backward", kFloatTypes, (run<true, true>));
NG_KERNEL("rms_norm", kFloatTypes, (run<false, false>));
NG_KERNEL("rms_norm_backward", kFloatTypes, (run<false, true>));

}  // namespace
}  // namespace ng
