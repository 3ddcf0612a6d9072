// Roundings, roots, exponentials, logarithms, trigonometry and powers.
#include "elementwise.h"
#include "scalar_math.h"

namespace ng {
namespace {

template <class T> constexpr bool is_float = std::is_floating_point_v<T>;

// ---- absolute value and roundings; integers are round already ----

template <class T> T absolute(T x) {
  if constexpr (is_float<T>) return math::abs(x);
  else return x < T(0) ? math::neg(x) : x;
}

#define NG_ROUNDING(name, function)                 \
  template <class T> T name##_value(T x) {          \
    if constexpr (is_float<T>) return function(x);  \
    else return x;                                  \
  }                                                 \
  NG_OP1(name, Reals, 0.1, name##_value(x))
NG_ROUNDING(ceil, std::ceil);
NG_ROUNDING(floor, std::floor);
NG_ROUNDING(trunc, std::trunc);
NG_ROUNDING(round, std::nearbyint);
#undef NG_ROUNDING

NG_OP1(abs, Reals, 0.1, absolute(x));
NG_OP1(frac, Floats, 0.1, x - std::trunc(x));

struct ComplexAbs {
  static constexpr double cost = 0.6;
  template <class C, class T = typename C::value_type> static T apply(const Attrs<C>&, C x) {
    return math::hypot(x.real(), x.imag());
  }
  static const Loops table;
};
constexpr Loops ComplexAbs::table = loops<ComplexAbs, 1>(Complexes{});
NG_KERNEL("abs", kComplexTypes, elementwise_kernel<ComplexAbs>, bit(NG_FLOAT32) | bit(NG_FLOAT64));

// sgn: the direction, or 0.
struct ComplexSign {
  static constexpr double cost = 0.8;
  template <class C, class T = typename C::value_type> static C apply(const Attrs<C>&, C x) {
    const T length = math::hypot(x.real(), x.imag());
    return length == T(0) ? C() : C(x.real() / length, x.imag() / length);
  }
  static const Loops table;
};
constexpr Loops ComplexSign::table = loops<ComplexSign, 1>(Complexes{});
NG_KERNEL("sign", kComplexTypes, elementwise_kernel<ComplexSign>);

// Decimals: attribute a. params.f[1] is 10^|a|, params.i[0] the sign.
template <class T> T round_to(const Attrs<T>& p, T x) {
  return p.a < T(0) ? std::nearbyint(x / p.b) * p.b : std::nearbyint(x * p.b) / p.b;
}
struct RoundDecimals {
  template <class T> static T apply(const Attrs<T>& p, T x) { return round_to(p, x); }
};
ngResult round_decimals(const Args& args) {
  static constexpr Loops table = loops<RoundDecimals, 1>(Floats{});
  Params params(args);
  params.f[1] = std::pow(10.0, static_cast<double>(std::llabs(params.i[0])));
  return elementwise(args, table, args.in[0].type, 0.2, params);
}
NG_KERNEL("round_decimals", kFloatTypes, round_decimals);

// ---- roots, exponentials, logarithms ----

NG_OP1(sqrt, Floats, 0.2, math::sqrt(x));
NG_OP1(rsqrt, Floats, 0.2, T(1) / math::sqrt(x));
NG_OP1(exp, Floats, 0.3, math::exp(x));
NG_OP1(exp2, Floats, 0.3, math::exp2(x));
NG_OP1(expm1, Floats, 0.4, math::expm1(x));
NG_OP1(log, Floats, 0.4, math::log(x));
NG_OP1(log2, Floats, 0.4, math::log2(x));
NG_OP1(log10, Floats, 0.4, math::log10(x));
NG_OP1(log1p, Floats, 0.5, math::log1p(x));

// The larger plus the rest; two equal infinities are their own sum.
template <class T> T log_add_exp(T x, T y) {
  const T larger = math::maximum(x, y), distance = math::abs(x - y);
  const T sum = larger + math::log1p(math::exp(-distance));
  return (x == y) & (math::abs(x) == math::infinity<T>) ? x : sum;
}
template <class T> T log_add_exp2(T x, T y) {
  const T larger = math::maximum(x, y), distance = math::abs(x - y);
  const T sum = larger + math::log1p(math::exp2(-distance)) * T(1.44269504088896340736);
  return (x == y) & (math::abs(x) == math::infinity<T>) ? x : sum;
}
// 0 * log(anything but NaN) is 0.
template <class T> T x_times(T x, T log_of_y, T y) { return (x == T(0)) & (y == y) ? T(0) : x * log_of_y; }

NG_OP2(logaddexp, Floats, 1.0, log_add_exp(x, y));
NG_OP2(logaddexp2, Floats, 1.0, log_add_exp2(x, y));
NG_OP2(xlogy, Floats, 0.5, x_times(x, math::log(y), y));
NG_OP2(xlog1py, Floats, 0.5, x_times(x, math::log1p(y), y));
NG_OP1(entr, Floats, 0.5, x > T(0) ? -x * math::log(x) : (x == T(0) ? T(0) : (x != x ? x : -math::infinity<T>)));

// ---- trigonometry ----

NG_OP1(sin, Floats, 0.5, math::sin(x));
NG_OP1(cos, Floats, 0.5, math::cos(x));
NG_OP1(tan, Floats, 0.7, math::tan(x));
NG_OP1(asin, Floats, 0.5, math::asin(x));
NG_OP1(acos, Floats, 0.5, math::acos(x));
NG_OP1(atan, Floats, 0.5, math::atan(x));
NG_OP1(sinh, Floats, 0.6, math::sinh(x));
NG_OP1(cosh, Floats, 0.6, math::cosh(x));
NG_OP1(tanh, Floats, 0.5, math::tanh(x));
NG_OP1(asinh, Floats, 0.8, math::asinh(x));
NG_OP1(acosh, Floats, 0.8, math::acosh(x));
NG_OP1(atanh, Floats, 0.6, math::atanh(x));
NG_OP2(atan2, Floats, 0.9, math::atan2(x, y));
NG_OP2(hypot, Floats, 0.6, math::hypot(x, y));

template <class T> T sinc_value(T x) {
  const T angle = x * T(3.14159265358979323846);
  return x == T(0) ? T(1) : math::sin(angle) / angle;
}
NG_OP1(sinc, Floats, 0.7, sinc_value(x));

NG_OP1(erf, Floats, 0.5, math::erf(x));
NG_OP1(erfc, Floats, 0.7, math::erfc(x));

// ---- signs and neighbours ----

NG_OP2(copysign, Floats, 0.1, std::copysign(x, y));

template <class S> struct NextAfter {
  template <class T> static T apply(const Attrs<T>&, T x, T y) {
    if constexpr (is_half<S>) return next_after(S(x), S(y));
    else return std::nextafter(x, y);
  }
};
ngResult nextafter(const Args& args) {
  static constexpr auto table = [] {
    Loops all = loops<NextAfter<float>, 2>(Floats{});
    all[NG_FLOAT16] = loop_of<NextAfter<Half>, float, float, float>;
    all[NG_BFLOAT16] = loop_of<NextAfter<BFloat16>, float, float, float>;
    return all;
  }();
  Params params;
  return elementwise(args, table, args.in[0].type, 3.0, params);
}
NG_KERNEL("nextafter", kFloatTypes, nextafter);

// ---- powers ----

template <class T> T power(T x, T y) {
  if constexpr (is_float<T>) return math::pow(x, y);
  else return math::integer_power(x, y);
}
NG_OP2(pow, Reals, 1.0, power(x, y));

// pow_scalar has its common exponents as loops of their own.
#define NG_POWER(name, expr)                                               \
  struct name {                                                            \
    template <class T> static T apply(const Attrs<T>& p, T x) {            \
      (void)p;                                                             \
      return expr;                                                         \
    }                                                                      \
  }
NG_POWER(Square, math::mul(x, x));
NG_POWER(Cube, math::mul(math::mul(x, x), x));
NG_POWER(Power, power(x, p.a));
NG_POWER(SquareRoot, math::sqrt(x));
NG_POWER(InverseRoot, T(1) / math::sqrt(x));
NG_POWER(Inverse, T(1) / x);
NG_POWER(InverseSquare, T(1) / (x * x));
#undef NG_POWER

ngResult pow_scalar(const Args& args) {
  static constexpr Loops square = loops<Square, 1>(Reals{}), cube = loops<Cube, 1>(Reals{});
  static constexpr Loops general = loops<Power, 1>(Reals{}), root = loops<SquareRoot, 1>(Floats{});
  static constexpr Loops inverse_root = loops<InverseRoot, 1>(Floats{}), inverse = loops<Inverse, 1>(Floats{});
  static constexpr Loops inverse_square = loops<InverseSquare, 1>(Floats{});
  Params params(args);
  const ngDataType type = args.in[0].type;
  const bool floating = root[type] != nullptr;
  // PyTorch rounds the exponent to the tensor's type.
  if (type == NG_FLOAT16) params.f[0] = Half(static_cast<float>(params.f[0]));
  if (type == NG_BFLOAT16) params.f[0] = BFloat16(static_cast<float>(params.f[0]));
  const double exponent = params.f[0];
  const auto run = [&](const Loops& table, double cost) { return elementwise(args, table, type, cost, params); };
  if (exponent == 2) return run(square, 0.1);
  if (exponent == 3) return run(cube, 0.1);
  if (floating && exponent == 0.5) return run(root, 0.2);
  if (floating && exponent == -0.5) return run(inverse_root, 0.2);
  if (floating && exponent == -1) return run(inverse, 0.2);
  if (floating && exponent == -2) return run(inverse_square, 0.2);
  return run(general, 1.0);
}
NG_KERNEL("pow_scalar", kRealTypes, pow_scalar);

}  // namespace
}  // namespace ng
