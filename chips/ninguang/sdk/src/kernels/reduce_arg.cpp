// Reductions that name a position: argmax, argmin, max_dim, min_dim. The first of equals wins, a NaN over numbers.
#include <algorithm>

#include "reduce.h"
#include "scalar_math.h"

namespace ng {
namespace {

template <class T, bool largest> bool better(T x, T best) {
  // Also true for the first NaN, never for a later one.
  const bool beats = largest ? x > best : x < best;
  return beats | ((x != x) & (best == best));
}

template <class In, bool largest, bool indices_first> struct ArgFold {
  using T = Stored<In>;
  static constexpr bool is_float = std::is_floating_point_v<T>;

  struct Accs {
    T value[kRun];
    int64_t index[kRun];  // -1: nothing seen
  };

  static T worst() {
    using Limits = std::numeric_limits<T>;
    if constexpr (is_float) return largest ? -Limits::infinity() : Limits::infinity();
    else return largest ? Limits::lowest() : Limits::max();
  }

  static void start(void* accs, int64_t n) {
    Accs& acc = *static_cast<Accs*>(accs);
    std::fill_n(acc.value, n, worst());
    std::fill_n(acc.index, n, -1);
  }

  static T extreme(const T* x, int64_t n) {
    if constexpr (is_float) {
      return extreme_dense<largest>(x, n, [](auto v) { return v; });
    } else {
      T best = worst();
      for (int64_t i = 0; i < n; ++i) best = largest ? std::max(best, x[i]) : std::min(best, x[i]);
      return best;
    }
  }

  // Finds the extreme of a stretch first, by vectors, and its place only if it is a new one.
  static void row(const void* x, int64_t n, int64_t position, void* accs, int64_t slot, const Params&) {
    const T* const values = static_cast<const T*>(x);
    Accs& acc = *static_cast<Accs*>(accs);
    T best = acc.value[slot];
    int64_t index = acc.index[slot];
    for (int64_t i = 0; i < n; i += 1024) {
      const int64_t count = std::min<int64_t>(1024, n - i);
      const T found = extreme(values + i, count);
      if (index >= 0 && !better<T, largest>(found, best)) continue;
      int64_t k = i;
      if (found != found) while (values[k] == values[k]) ++k;
      else while (values[k] != found) ++k;
      best = found;
      index = position + k;
    }
    acc.value[slot] = best;
    acc.index[slot] = index;
  }

  static void columns(const void* x, int64_t stride, int64_t rows, int64_t n, int64_t position, void* accs,
                      const Params&) {
    const T* const values = static_cast<const T*>(x);
    Accs& acc = *static_cast<Accs*>(accs);
    for (int64_t r = 0; r < rows; ++r) {
      const T* const line = values + r * stride;
      const int64_t here = position + r;
#pragma GCC ivdep
      for (int64_t c = 0; c < n; ++c) {
        const bool take = better<T, largest>(line[c], acc.value[c]) | (acc.index[c] < 0);
        acc.value[c] = take ? line[c] : acc.value[c];
        acc.index[c] = take ? here : acc.index[c];
      }
    }
  }

  static void combine(void* accs, const void* others, int64_t n) {
    Accs& acc = *static_cast<Accs*>(accs);
    const Accs& other = *static_cast<const Accs*>(others);
    for (int64_t i = 0; i < n; ++i) {
      if (other.index[i] < 0 || (acc.index[i] >= 0 && !better<T, largest>(other.value[i], acc.value[i]))) continue;
      acc.value[i] = other.value[i];
      acc.index[i] = other.index[i];
    }
  }

  static void finish(const void* accs, int64_t n, int64_t, void* const* results, const Params&) {
    const Accs& acc = *static_cast<const Accs*>(accs);
    std::copy_n(acc.index, n, static_cast<int64_t*>(results[indices_first ? 0 : 1]));
    std::copy_n(acc.value, n, static_cast<T*>(results[indices_first ? 1 : 0]));
  }

  static constexpr ngDataType value_type = TypeOf<In>::value;
  static constexpr ngDataType first = indices_first ? NG_INT64 : value_type;
  static constexpr ngDataType second = indices_first ? value_type : NG_INT64;
  static constexpr Fold fold{sizeof(Accs), {first, second}, start, row, columns, combine, nullptr, finish};
};

template <bool largest, bool indices_first, class... T> constexpr Folds arg_folds(Types<T...>) {
  Folds all{};
  ((all[TypeOf<T>::value] = &ArgFold<T, largest, indices_first>::fold), ...);
  all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32];
  return all;
}

template <bool largest, bool indices_first> ngResult run_arg(const Args& args) {
  static constexpr Folds folds = arg_folds<largest, indices_first>(RealsBool{});
  Params params;
  return reduce(args, folds, 0.15, params);
}

NG_KERNEL("argmax", kAllTypes, (run_arg<true, true>), bit(NG_INT64));
NG_KERNEL("argmin", kAllTypes, (run_arg<false, true>), bit(NG_INT64));
NG_KERNEL("max_dim", kAllTypes, (run_arg<true, false>));
NG_KERNEL("min_dim", kAllTypes, (run_arg<false, false>));

}  // namespace
}  // namespace ng
