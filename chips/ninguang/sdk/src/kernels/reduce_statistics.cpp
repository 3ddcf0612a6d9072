// Reductions with several accumulators per output: var, var_mean (count, mean and sum of squared distances, merged
// stretch by stretch as Chan et al. do) and logsumexp (the largest so far and the sum of exponentials scaled by it).
#include <algorithm>

#include "reduce.h"
#include "scalar_math.h"

namespace ng {
namespace {

constexpr int64_t kStretch = 1024;

// ---- variance ----

template <class T> struct Variance {
  struct Accs {
    double count[kRun], mean[kRun], squares[kRun];
  };

  static void start(void* accs, int64_t n) {
    Accs& acc = *static_cast<Accs*>(accs);
    std::fill_n(acc.count, n, 0.0);
    std::fill_n(acc.mean, n, 0.0);
    std::fill_n(acc.squares, n, 0.0);
  }

  static void merge(Accs& acc, int64_t slot, double count, double mean, double squares) {
    const double total = acc.count[slot] + count, distance = mean - acc.mean[slot];
    acc.squares[slot] += squares + distance * distance * (acc.count[slot] * count / total);
    acc.mean[slot] += distance * (count / total);
    acc.count[slot] = total;
  }

  static void row(const void* x, int64_t n, int64_t, void* accs, int64_t slot, const Params&) {
    const T* const values = static_cast<const T*>(x);
    const auto add = [](auto a, auto b) { return a + b; };
    for (int64_t i = 0; i < n; i += kStretch) {
      const int64_t count = std::min(kStretch, n - i);
      const T mean = fold_dense(values + i, count, T(0), [](auto v) { return v; }, add) / static_cast<T>(count);
      const auto squared = [mean](auto v) { return (v - mean) * (v - mean); };
      const auto distance = [mean](auto v) { return v - mean; };
      // The rounding error of the stretch's mean is measured and taken out again.
      const double error = fold_dense(values + i, count, T(0), distance, add) / static_cast<double>(count);
      const double squares = fold_dense(values + i, count, T(0), squared, add);
      merge(*static_cast<Accs*>(accs), slot, static_cast<double>(count), mean + error,
            squares - error * error * static_cast<double>(count));
    }
  }

  static void columns(const void* x, int64_t stride, int64_t rows, int64_t n, int64_t, void* accs, const Params&) {
    const T* const values = static_cast<const T*>(x);
    Accs& acc = *static_cast<Accs*>(accs);
    const double count = static_cast<double>(rows), inverse = 1 / count;
    double mean[kRun], squares[kRun];
    std::fill_n(mean, n, 0.0);
    std::fill_n(squares, n, 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      const T* const line = values + r * stride;
      for (int64_t c = 0; c < n; ++c) mean[c] += line[c];
    }
    for (int64_t c = 0; c < n; ++c) mean[c] *= inverse;
    for (int64_t r = 0; r < rows; ++r) {
      const T* const line = values + r * stride;
      for (int64_t c = 0; c < n; ++c) squares[c] += (line[c] - mean[c]) * (line[c] - mean[c]);
    }
#pragma GCC ivdep
    for (int64_t c = 0; c < n; ++c) merge(acc, c, count, mean[c], squares[c]);
  }

  static void combine(void* accs, const void* others, int64_t n) {
    const Accs& other = *static_cast<const Accs*>(others);
    for (int64_t i = 0; i < n; ++i) {
      merge(*static_cast<Accs*>(accs), i, other.count[i], other.mean[i], other.squares[i]);
    }
  }

  // Attributes: correction, take_sqrt.
  static void finish(const void* accs, int64_t n, int64_t reduced, void* const* results, const Params& params) {
    const Accs& acc = *static_cast<const Accs*>(accs);
    const double divisor = std::max(0.0, static_cast<double>(reduced) - params.f[0]);
    double* const variance = static_cast<double*>(results[0]);
    for (int64_t i = 0; i < n; ++i) {
      const double value = acc.squares[i] / divisor;
      variance[i] = params.i[1] ? std::sqrt(value) : value;
    }
    std::copy_n(acc.mean, n, static_cast<double*>(results[1]));
  }

  static constexpr Fold fold{sizeof(Accs), {NG_FLOAT64, NG_FLOAT64}, start, row, columns, combine, nullptr, finish};
};

// ---- log of the sum of exponentials ----

template <class T> struct LogSumExp {
  struct Accs {
    T largest[kRun];
    double sum[kRun];  // of exp(x - shift(largest))
  };

  static void start(void* accs, int64_t n) {
    Accs& acc = *static_cast<Accs*>(accs);
    std::fill_n(acc.largest, n, -math::infinity<T>);
    std::fill_n(acc.sum, n, 0.0);
  }

  // An infinity or NaN as the largest must not make inf - inf of all other terms.
  static T shift(T largest) { return math::abs(largest) < math::infinity<T> ? largest : T(0); }
  // What a sum made under `old` is multiplied with under `largest`; a sum that saw only -inf is 0.
  static T factor(T old, T largest) {
    return old == -math::infinity<T> ? T(0) : math::exp(shift(old) - shift(largest));
  }

  static void row(const void* x, int64_t n, int64_t, void* accs, int64_t slot, const Params&) {
    const T* const values = static_cast<const T*>(x);
    Accs& acc = *static_cast<Accs*>(accs);
    const auto larger = [](auto a, auto b) { return (a > b) | (a != a) ? a : b; };
    const auto add = [](auto a, auto b) { return a + b; };
    for (int64_t i = 0; i < n; i += kStretch) {
      const int64_t count = std::min(kStretch, n - i);
      const T largest = fold_dense(values + i, count, acc.largest[slot], [](auto v) { return v; }, larger);
      const T by = shift(largest);
      T terms[kStretch];
      for (int64_t k = 0; k < count; ++k) terms[k] = math::exp(values[i + k] - by);
      const double old = acc.sum[slot] * factor(acc.largest[slot], largest);
      acc.sum[slot] = old + fold_dense(terms, count, T(0), [](auto v) { return v; }, add);
      acc.largest[slot] = largest;
    }
  }

  static void columns(const void* x, int64_t stride, int64_t rows, int64_t n, int64_t, void* accs, const Params&) {
    const T* const values = static_cast<const T*>(x);
    Accs& acc = *static_cast<Accs*>(accs);
    T largest[kRun], by[kRun], part[kRun];
    std::copy_n(acc.largest, n, largest);
    for (int64_t r = 0; r < rows; ++r) {
      const T* const line = values + r * stride;
      for (int64_t c = 0; c < n; ++c) largest[c] = math::maximum(line[c], largest[c]);
    }
    for (int64_t c = 0; c < n; ++c) {
      by[c] = shift(largest[c]);
      part[c] = factor(acc.largest[c], largest[c]);
    }
    for (int64_t c = 0; c < n; ++c) {
      acc.sum[c] *= part[c];
      acc.largest[c] = largest[c];
      part[c] = 0;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const T* const line = values + r * stride;
      for (int64_t c = 0; c < n; ++c) part[c] += math::exp(line[c] - by[c]);
    }
    for (int64_t c = 0; c < n; ++c) acc.sum[c] += part[c];
  }

  static void combine(void* accs, const void* others, int64_t n) {
    Accs& acc = *static_cast<Accs*>(accs);
    const Accs& other = *static_cast<const Accs*>(others);
    for (int64_t i = 0; i < n; ++i) {
      const T largest = math::maximum(acc.largest[i], other.largest[i]);
      acc.sum[i] = acc.sum[i] * factor(acc.largest[i], largest) + other.sum[i] * factor(other.largest[i], largest);
      acc.largest[i] = largest;
    }
  }

  static void finish(const void* accs, int64_t n, int64_t, void* const* results, const Params&) {
    const Accs& acc = *static_cast<const Accs*>(accs);
    for (int64_t i = 0; i < n; ++i) {
      static_cast<double*>(results[0])[i] = std::log(acc.sum[i]) + shift(acc.largest[i]);
    }
  }

  static constexpr Fold fold{sizeof(Accs), {NG_FLOAT64, NG_FLOAT64}, start, row, columns, combine, nullptr, finish};
};

template <template <class> class F> constexpr Folds float_folds() {
  Folds all{};
  all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32] = &F<float>::fold;
  all[NG_FLOAT64] = &F<double>::fold;
  return all;
}

ngResult var(const Args& args) {
  static constexpr Folds folds = float_folds<Variance>();
  Params params(args);
  return reduce(args, folds, 0.3, params);
}
ngResult logsumexp(const Args& args) {
  static constexpr Folds folds = float_folds<LogSumExp>();
  Params params(args);
  return reduce(args, folds, 0.5, params);
}

NG_KERNEL("var", kFloatTypes, var, kFloatTypes);
NG_KERNEL("var_mean", kFloatTypes, var, kFloatTypes);
NG_KERNEL("logsumexp", kFloatTypes, logsumexp, kFloatTypes);

}  // namespace
}  // namespace ng
