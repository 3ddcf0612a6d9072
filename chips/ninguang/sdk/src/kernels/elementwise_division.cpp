// Division with a remainder, of integers and of floats: div_trunc, div_floor, remainder, fmod; gcd and lcm.
#include <algorithm>
#include <cmath>

#include "elementwise.h"
#include "scalar_math.h"

namespace ng {
namespace {

// ---- integers ----

// x / y, rounded towards zero; wraps for the lowest number / -1; y = 0 counts as 1 (the loop reports it). Narrow types
// divide as floats, which vectorises and is exact: the quotient is never nearer to an integer than the rounding error.
template <class T> T quotient(T x, T y) {
  const T divisor = y == 0 ? T(1) : y;
  if constexpr (sizeof(T) <= 2) {
    return static_cast<T>(static_cast<int32_t>(static_cast<float>(x) / static_cast<float>(divisor)));
  } else if constexpr (sizeof(T) == 4) {
    return static_cast<T>(static_cast<int64_t>(static_cast<double>(x) / static_cast<double>(divisor)));
  } else {
    return y == -1 ? math::neg(x) : x / divisor;
  }
}
template <class T> T rest(T x, T y) { return math::sub(x, math::mul(quotient(x, y), y)); }

struct DivTrunc {
  template <class T> static T apply(const Attrs<T>&, T x, T y) { return quotient(x, y); }
};
struct DivFloor {
  template <class T> static T apply(const Attrs<T>&, T x, T y) {
    return static_cast<T>(quotient(x, y) - ((rest(x, y) != 0) & ((x < 0) != (y < 0))));
  }
};
struct Remainder {
  template <class T> static T apply(const Attrs<T>&, T x, T y) {
    const T r = rest(x, y);
    return (r != 0) & ((x < 0) != (y < 0)) ? math::add(r, y) : r;
  }
};
struct Fmod {
  template <class T> static T apply(const Attrs<T>&, T x, T y) { return rest(x, y); }
};

template <class Op, class T> void checked_loop(void* const* operands, int64_t first, int64_t n, const Params& params) {
  constexpr int64_t kStretch = 2048;  // so that checking brings the divisors into the cache
  for (int64_t i = 0; i < n; i += kStretch) {
    const int64_t count = std::min(kStretch, n - i);
    const T* const y = static_cast<const T*>(operands[2]) + i;
    bool zero = false;
    for (int64_t k = 0; k < count; ++k) zero |= y[k] == 0;
    if (zero) __atomic_store_n(params.failed, 1, __ATOMIC_RELAXED);
    void* const places[3] = {static_cast<T*>(operands[0]) + i, static_cast<T*>(operands[1]) + i,
                             static_cast<T*>(operands[2]) + i};
    loop_of<Op, T, T, T>(places, first + i, count, params);
  }
}

// ---- floats ----

constexpr int64_t kChunk = 256;

// std::fmod of n <= kChunk elements. Float by way of double: with a quotient below 2^52 the fused x - q * y is exact,
// and q is off by one at most. Larger quotients are rare and go to the C library one by one.
void fmod_chunk(const float* x, const float* y, float* r, int64_t n) {
  constexpr double kMost = 0x1p52;
  bool rare = false;
  for (int64_t i = 0; i < n; ++i) {
    const double a = x[i], b = std::fabs(y[i]), q = std::trunc(a / b);
    double left = __builtin_fma(-q, b, a);
    left = left < 0 && a > 0 ? left + b : left;
    left = left > 0 && a < 0 ? left - b : left;
    left = std::fabs(left) >= b ? left - std::copysign(b, a) : left;
    // A finite number by infinity is itself.
    left = b == math::infinity<double> && std::fabs(a) < math::infinity<double> ? a : left;
    rare |= (std::fabs(q) >= kMost) & (std::fabs(a) < math::infinity<double>) & (b > 0);
    r[i] = static_cast<float>(std::copysign(left, a));
  }
  if (__builtin_expect(rare, 0)) {
    for (int64_t i = 0; i < n; ++i) r[i] = std::fmod(x[i], y[i]);
  }
}
void fmod_chunk(const double* x, const double* y, double* r, int64_t n) {
  for (int64_t i = 0; i < n; ++i) r[i] = std::fmod(x[i], y[i]);
}

// The result from x, y and m = fmod(x, y).
template <class T> struct FloatFmod {
  static T last(T, T, T m) { return m; }
};
template <class T> struct FloatRemainder {
  static T last(T, T y, T m) { return (m != 0) & ((y < 0) != (m < 0)) ? m + y : m; }
};
// As Python: the exact multiple is divided, and what rounding did to it is repaired.
template <class T> struct FloatDivFloor {
  static T last(T x, T y, T m) {
    const T ratio = x / y;
    T quotient = (x - m) / y;
    quotient = (m != 0) & ((y < 0) != (m < 0)) ? quotient - T(1) : quotient;
    T floored = std::floor(quotient);
    floored = quotient - floored > T(0.5) ? floored + T(1) : floored;
    floored = quotient == T(0) ? std::copysign(T(0), ratio) : floored;
    return y == T(0) ? ratio : floored;
  }
};

template <template <class> class Op, class T>
void float_loop(void* const* operands, int64_t, int64_t n, const Params&) {
  T* const out = static_cast<T*>(operands[0]);
  const T* const x = static_cast<const T*>(operands[1]);
  const T* const y = static_cast<const T*>(operands[2]);
  T m[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    fmod_chunk(x + i, y + i, m, count);
#pragma GCC ivdep
    for (int64_t k = 0; k < count; ++k) out[i + k] = Op<T>::last(x[i + k], y[i + k], m[k]);
  }
}

// The quotient of 16-bit floats is rounded to their type before it is truncated, as PyTorch does.
template <class S> struct FloatDivTrunc {
  template <class T> static T apply(const Attrs<T>&, T x, T y) { return std::trunc(static_cast<T>(S(x / y))); }
};

template <class Op, class... T> constexpr Loops checked(Types<T...>) {
  Loops all{};
  ((all[TypeOf<T>::value] = checked_loop<Op, T>), ...);
  return all;
}
constexpr Loops with_floats(Loops loops, Loop of_float, Loop of_double) {
  loops[NG_FLOAT32] = loops[NG_FLOAT16] = loops[NG_BFLOAT16] = of_float;
  loops[NG_FLOAT64] = of_double;
  return loops;
}

constexpr Loops div_trunc_loops() {
  Loops all = with_floats(checked<DivTrunc>(Ints{}), loop_of<FloatDivTrunc<float>, float, float, float>,
                          loop_of<FloatDivTrunc<double>, double, double, double>);
  all[NG_FLOAT16] = loop_of<FloatDivTrunc<Half>, float, float, float>;
  all[NG_BFLOAT16] = loop_of<FloatDivTrunc<BFloat16>, float, float, float>;
  return all;
}
constexpr Loops kDivTrunc = div_trunc_loops();
constexpr Loops kDivFloor =
    with_floats(checked<DivFloor>(Ints{}), float_loop<FloatDivFloor, float>, float_loop<FloatDivFloor, double>);
constexpr Loops kRemainder =
    with_floats(checked<Remainder>(Ints{}), float_loop<FloatRemainder, float>, float_loop<FloatRemainder, double>);
constexpr Loops kFmod = with_floats(checked<Fmod>(Ints{}), float_loop<FloatFmod, float>, float_loop<FloatFmod, double>);

template <const Loops& loops> ngResult division(const Args& args) {
  int failed = 0;
  Params params;
  params.failed = &failed;
  const ngResult result = elementwise(args, loops, args.in[0].type, 1.0, params);
  return failed ? fail(NG_ERROR_DIVISION_BY_ZERO, "ZeroDivisionError") : result;
}

NG_KERNEL("div_trunc", kRealTypes, division<kDivTrunc>);
NG_KERNEL("div_floor", kRealTypes, division<kDivFloor>);
NG_KERNEL("remainder", kRealTypes, division<kRemainder>);
NG_KERNEL("fmod", kRealTypes, division<kFmod>);

// ---- common divisors and multiples ----

template <class T> T absolute(T x) { return x < 0 ? math::neg(x) : x; }
template <class T> T common_divisor(T x, T y) {
  while (x != 0) {
    const T r = rest(y, x);
    y = x;
    x = r;
  }
  return absolute(y);
}
template <class T> T common_multiple(T x, T y) {
  using Wide = decltype(x + y);  // narrow types wrap only at the end
  const T divisor = common_divisor(x, y);
  const Wide multiple = math::mul<Wide>(quotient(x, divisor), y);
  return divisor == 0 ? T(0) : static_cast<T>(absolute(multiple));
}
NG_OP2(gcd, Ints, 20, common_divisor(x, y));
NG_OP2(lcm, Ints, 20, common_multiple(x, y));

}  // namespace
}  // namespace ng
