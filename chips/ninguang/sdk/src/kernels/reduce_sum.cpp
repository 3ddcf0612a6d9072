// Reductions with one accumulator per output: sum, prod, norms, any, all, amax, amin. Floats are folded in the
// computing type over short stretches and accumulated in double, so that long sums lose nothing; integers in int64.
#include "reduce.h"
#include "scalar_math.h"

#include <algorithm>

namespace ng {
namespace {

template <class T> constexpr bool is_float = std::is_floating_point_v<T>;

// An operation: Acc is the accumulators' type, Part the type that short stretches are folded in.
//   map(x): an input element as Part; op: folds two Parts; merge: folds two Accs.
//   vectors: map and op also work on the compiler's vectors, so float folding may be reordered over their lanes.
//   extreme: it is a maximum (if `largest`) or minimum of map.
template <class T> struct SumOp {
  static constexpr bool vectors = is_float<T>, extreme = false;
  using Part = std::conditional_t<is_float<T>, T, int64_t>;
  using Acc = std::conditional_t<is_float<T>, double, int64_t>;
  static constexpr Acc identity = 0;
  template <class V> static V map(V x, const Params&) { return x; }
  template <class V> static V op(V x, V y) { return math::add(x, y); }
  static Acc merge(Acc x, Acc y) { return math::add(x, y); }
};
template <class T> struct AbsSumOp : SumOp<T> {
  template <class V> static V map(V x, const Params&) { return x < 0 ? -x : x; }
};
template <class T> struct SquareSumOp : SumOp<T> {
  template <class V> static V map(V x, const Params&) { return x * x; }
};

template <class T> struct MaxOp {
  static constexpr bool vectors = false, extreme = true, largest = true;
  using Part = Stored<T>;
  using Acc = Part;
  using Limits = std::numeric_limits<T>;
  static constexpr Acc identity = is_float<T> ? -Limits::infinity() : Limits::lowest();
  template <class V> static V map(V x, const Params&) { return x; }
  template <class V> static V op(V x, V y) { return (x > y) | (x != x) ? x : y; }
  static Acc merge(Acc x, Acc y) { return op(x, y); }
};
template <class T> struct MinOp : MaxOp<T> {
  static constexpr bool largest = false;
  using Acc = typename MaxOp<T>::Acc;
  using Limits = std::numeric_limits<T>;
  static constexpr Acc identity = is_float<T> ? Limits::infinity() : Limits::max();
  template <class V> static V op(V x, V y) { return (x < y) | (x != x) ? x : y; }
  static Acc merge(Acc x, Acc y) { return op(x, y); }
};
template <class T> struct AbsMaxOp : MaxOp<T> {
  static constexpr T identity = 0;
  template <class V> static V map(V x, const Params&) { return x < 0 ? -x : x; }
};
template <class T> struct AbsMinOp : MinOp<T> {
  template <class V> static V map(V x, const Params&) { return x < 0 ? -x : x; }
};

// Ops whose map is scalar: the compiler vectorises what it can of a plain loop over several lanes.
template <class T> struct ProdOp {
  static constexpr bool vectors = false, extreme = false;
  using Part = std::conditional_t<is_float<T>, double, int64_t>;
  using Acc = Part;
  static constexpr Acc identity = 1;
  static Part map(T x, const Params&) { return static_cast<Part>(x); }
  static Part op(Part x, Part y) { return math::mul(x, y); }
  static Acc merge(Acc x, Acc y) { return math::mul(x, y); }
};
template <class T> struct PowerSumOp {  // sum |x|^p; attribute 0 is p
  static constexpr bool vectors = false, extreme = false;
  using Part = double;
  using Acc = double;
  static constexpr Acc identity = 0;
  static Part map(T x, const Params& p) { return math::pow(std::fabs(x), static_cast<T>(p.f[0])); }
  static Part op(Part x, Part y) { return x + y; }
  static Acc merge(Acc x, Acc y) { return x + y; }
};
template <class T> struct NonzeroOp {
  static constexpr bool vectors = false, extreme = false;
  using Part = int64_t;
  using Acc = int64_t;
  static constexpr Acc identity = 0;
  static Part map(T x, const Params&) { return x != T(0); }
  static Part op(Part x, Part y) { return x + y; }
  static Acc merge(Acc x, Acc y) { return x + y; }
};
template <class T> struct AnyOp {
  static constexpr bool vectors = false, extreme = false;
  using Part = uint8_t;
  using Acc = uint8_t;
  static constexpr Acc identity = 0;
  static Part map(T x, const Params&) { return x != T(0); }
  static Part op(Part x, Part y) { return x | y; }
  static Acc merge(Acc x, Acc y) { return x | y; }
};
template <class T> struct AllOp : AnyOp<T> {
  static constexpr uint8_t identity = 1;
  static uint8_t op(uint8_t x, uint8_t y) { return x & y; }
  static uint8_t merge(uint8_t x, uint8_t y) { return x & y; }
};
template <class T> struct ComplexSumOp {
  static constexpr bool vectors = false, extreme = false;
  using Part = std::complex<double>;
  using Acc = Part;
  static constexpr Acc identity = {};
  static Part map(T x, const Params&) { return Part(x); }
  static Part op(Part x, Part y) { return x + y; }
  static Acc merge(Acc x, Acc y) { return x + y; }
};

template <class Op, class T> typename Op::Part fold_stretch(const T* x, int64_t n, const Params& params) {
  using Part = typename Op::Part;
  if constexpr (is_float<T> && Op::extreme) {
    return extreme_dense<Op::largest>(x, n, [&params](auto v) { return Op::map(v, params); });
  } else if constexpr (Op::vectors) {
    const auto map = [&params](auto v) { return Op::map(v, params); };
    const auto op = [](auto a, auto b) { return Op::op(a, b); };
    return fold_dense(x, n, static_cast<T>(Op::identity), map, op);
  } else {
    constexpr int kLanes = 16;
    Part lanes[kLanes];
    std::fill_n(lanes, kLanes, static_cast<Part>(Op::identity));
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) lanes[k] = Op::op(lanes[k], static_cast<Part>(Op::map(x[i + k], params)));
    }
    for (int k = 0; i + k < n; ++k) lanes[k] = Op::op(lanes[k], static_cast<Part>(Op::map(x[i + k], params)));
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lanes[k] = Op::op(lanes[k], lanes[k + width]);
    }
    return lanes[0];
  }
}

// The Fold of an op. `In` is the input's computing type.
template <class Op, class In, ngDataType result_type> struct FoldOf {
  using T = Stored<In>;
  using Part = typename Op::Part;
  using Acc = typename Op::Acc;

  static void start(void* accs, int64_t n) { std::fill_n(static_cast<Acc*>(accs), n, static_cast<Acc>(Op::identity)); }

  static void row(const void* x, int64_t n, int64_t, void* accs, int64_t slot, const Params& params) {
    const T* values = static_cast<const T*>(x);
    Acc& acc = static_cast<Acc*>(accs)[slot];
    for (int64_t i = 0; i < n; i += kRowBlock) {
      acc = Op::merge(acc, static_cast<Acc>(fold_stretch<Op>(values + i, std::min(kRowBlock, n - i), params)));
    }
  }

  static void columns(const void* x, int64_t stride, int64_t rows, int64_t n, int64_t, void* accs,
                      const Params& params) {
    const T* const values = static_cast<const T*>(x);
    Acc* const acc = static_cast<Acc*>(accs);
    // Where accumulators are wider than parts, a group of rows is folded before it is widened.
    if (!std::is_same_v<Part, Acc> && rows == kGroup) {
#pragma GCC ivdep
      for (int64_t c = 0; c < n; ++c) {
        Part part = value(values[c], params);
        for (int r = 1; r < kGroup; ++r) part = Op::op(part, value(values[r * stride + c], params));
        acc[c] = Op::merge(acc[c], static_cast<Acc>(part));
      }
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
#pragma GCC ivdep
      for (int64_t c = 0; c < n; ++c) {
        acc[c] = Op::merge(acc[c], static_cast<Acc>(value(values[r * stride + c], params)));
      }
    }
  }

  static Part value(T x, const Params& params) { return static_cast<Part>(Op::map(x, params)); }

  static void combine(void* accs, const void* others, int64_t n) {
    Acc* const acc = static_cast<Acc*>(accs);
    const Acc* const other = static_cast<const Acc*>(others);
    for (int64_t i = 0; i < n; ++i) acc[i] = Op::merge(acc[i], other[i]);
  }

  static void wrap(void* accs, int64_t width, int64_t n) {
    Acc* const acc = static_cast<Acc*>(accs);
    for (int64_t i = width; i < n; i += width) combine(acc, acc + i, std::min(width, n - i));
  }

  static void finish(const void* accs, int64_t n, int64_t, void* const* results, const Params&) {
    std::copy_n(static_cast<const Acc*>(accs), n, static_cast<Acc*>(results[0]));
  }

  static constexpr Fold fold{kRun * static_cast<int64_t>(sizeof(Acc)), {result_type, result_type}, start, row,
                             columns, combine, wrap, finish};
};

// The norm's last step, in place of finish.
template <class F> struct RootOf : F {
  static void finish(const void* accs, int64_t n, int64_t, void* const* results, const Params& params) {
    const double* const acc = static_cast<const double*>(accs);
    const double p = params.f[0];
    for (int64_t i = 0; i < n; ++i) {
      static_cast<double*>(results[0])[i] = p == 2 ? std::sqrt(acc[i]) : std::pow(acc[i], 1 / p);
    }
  }
  static constexpr Fold fold{F::fold.acc_bytes, {NG_FLOAT64, NG_FLOAT64}, F::start, F::row, F::columns, F::combine,
                             F::wrap, finish};
};

template <template <class> class Op, class... T> constexpr Folds folds_of(Types<T...>) {
  Folds all{};
  ((all[TypeOf<T>::value] = &FoldOf<Op<T>, T, TypeOf<typename Op<T>::Acc>::value>::fold), ...);
  all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32];
  return all;
}
template <template <class> class Op> constexpr Folds roots_of() {
  Folds all{};
  all[NG_FLOAT32] = &RootOf<FoldOf<Op<float>, float, NG_FLOAT64>>::fold;
  all[NG_FLOAT64] = &RootOf<FoldOf<Op<double>, double, NG_FLOAT64>>::fold;
  all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32];
  return all;
}

constexpr Folds with(Folds a, const Folds& b) {
  for (int t = 0; t < NG_DATA_TYPE_COUNT; ++t) a[t] = a[t] ? a[t] : b[t];
  return a;
}

template <const Folds& folds> ngResult kernel(const Args& args) {
  Params params(args);
  return reduce(args, folds, 0.12, params);
}

constexpr Folds kSum = with(folds_of<SumOp>(RealsBool{}), folds_of<ComplexSumOp>(Complexes{}));
constexpr Folds kProd = folds_of<ProdOp>(RealsBool{});
constexpr Folds kMax = folds_of<MaxOp>(RealsBool{}), kMin = folds_of<MinOp>(RealsBool{});
constexpr Folds kAny = with(folds_of<AnyOp>(RealsBool{}), folds_of<AnyOp>(Complexes{}));
constexpr Folds kAll = with(folds_of<AllOp>(RealsBool{}), folds_of<AllOp>(Complexes{}));

// A float input with an integer result would have to be rounded before the sum; the host casts it first.
ngResult accepts_sum(const Args& args) {
  const bool floating = bit(args.in[0].type) & (kFloatTypes | kComplexTypes);
  const bool to_integer = bit(args.out[0].type) & (kIntTypes | bit(NG_BOOL));
  return floating && to_integer ? NG_ERROR_NOT_SUPPORTED : NG_SUCCESS;
}

NG_KERNEL("sum", kAllTypes | kComplexTypes, kernel<kSum>, kAllTypes | kComplexTypes, accepts_sum);
NG_KERNEL("prod", kAllTypes, kernel<kProd>, kAllTypes, accepts_sum);
NG_KERNEL("amax", kAllTypes, kernel<kMax>);
NG_KERNEL("amin", kAllTypes, kernel<kMin>);
NG_KERNEL("any", kAllTypes | kComplexTypes, kernel<kAny>, bit(NG_BOOL) | bit(NG_UINT8));
NG_KERNEL("all", kAllTypes | kComplexTypes, kernel<kAll>, bit(NG_BOOL) | bit(NG_UINT8));

ngResult vector_norm(const Args& args) {
  static constexpr Folds sums = folds_of<AbsSumOp>(Floats{}), counts = folds_of<NonzeroOp>(Floats{});
  static constexpr Folds largest = folds_of<AbsMaxOp>(Floats{}), smallest = folds_of<AbsMinOp>(Floats{});
  static constexpr Folds squares = roots_of<SquareSumOp>(), powers = roots_of<PowerSumOp>();
  Params params(args);
  const double order = params.has[0] ? params.f[0] : 2;
  params.f[0] = order;
  if (order == 2) return reduce(args, squares, 0.12, params);
  if (order == 1) return reduce(args, sums, 0.12, params);
  if (order == 0) return reduce(args, counts, 0.12, params);
  if (order == math::infinity<double>) return reduce(args, largest, 0.12, params);
  if (order == -math::infinity<double>) return reduce(args, smallest, 0.12, params);
  return reduce(args, powers, 1.0, params);
}
NG_KERNEL("vector_norm", kFloatTypes, vector_norm, kFloatTypes);

}  // namespace
}  // namespace ng
