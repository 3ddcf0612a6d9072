// Comparisons, predicates, logic, bits, extrema and selection.
#include "elementwise.h"
#include "scalar_math.h"

namespace ng {
namespace {

using RealsBoolComplex = decltype(join(RealsBool{}, Complexes{}));

// ---- comparisons and logic: bool results ----

NG_TEST2(eq, RealsBoolComplex, 0.1, x == y);
NG_TEST2(ne, RealsBoolComplex, 0.1, x != y);
NG_TEST2(lt, RealsBool, 0.1, x < y);
NG_TEST2(le, RealsBool, 0.1, x <= y);
NG_TEST2(gt, RealsBool, 0.1, x > y);
NG_TEST2(ge, RealsBool, 0.1, x >= y);
NG_TEST2(logical_and, RealsBoolComplex, 0.1, (x != T(0)) & (y != T(0)));
NG_TEST2(logical_or, RealsBoolComplex, 0.1, (x != T(0)) | (y != T(0)));
NG_TEST2(logical_xor, RealsBoolComplex, 0.1, (x != T(0)) != (y != T(0)));
NG_TEST1(logical_not, RealsBoolComplex, 0.1, x == T(0));

template <class T> constexpr bool is_float = std::is_floating_point_v<T>;

// Integers are never infinite, but the host may ask.
template <class T> bool is_infinity(T x, int sign) {
  if constexpr (is_float<T>) return x == static_cast<T>(sign) * math::infinity<T>;
  else return false;
}
NG_TEST1(isnan, RealsBoolComplex, 0.1, x != x);
NG_TEST1(isinf, RealsBool, 0.1, is_infinity(x, 1) | is_infinity(x, -1));
NG_TEST1(isposinf, RealsBool, 0.1, is_infinity(x, 1));
NG_TEST1(isneginf, RealsBool, 0.1, is_infinity(x, -1));

template <class T> bool has_sign(T x) {
  if constexpr (is_float<T>) return math::sign_bit(x);
  else return x < T(0);
}
NG_TEST1(signbit, RealsBool, 0.1, has_sign(x));

// ---- bits ----

template <class T> T shift_left(T x, T y) {
  constexpr T width = sizeof(T) * 8;
  const T amount = (y < 0) | (y >= width) ? T(0) : y;
  return (y < 0) | (y >= width) ? T(0) : static_cast<T>(static_cast<math::Wrapping<T>>(x) << amount);
}
template <class T> T shift_right(T x, T y) {
  // For signed types the last bit is the sign; for unsigned ones a shift by the width leaves 0.
  constexpr T most = sizeof(T) * 8 - std::is_signed_v<T>;
  return static_cast<T>(x >> ((y < 0) | (y >= most) ? most : y));
}

NG_OP2(bitwise_and, IntsBool, 0.1, x & y);
NG_OP2(bitwise_or, IntsBool, 0.1, x | y);
NG_OP2(bitwise_xor, IntsBool, 0.1, x ^ y);
NG_OP1(bitwise_not, IntsBool, 0.1, std::is_same_v<T, bool> ? T(!x) : static_cast<T>(~static_cast<int64_t>(x)));
NG_OP2(shift_left, Ints, 0.2, shift_left(x, y));
NG_OP2(shift_right, Ints, 0.2, shift_right(x, y));

// ---- extrema; NaN rules as named in uniops.yaml ----

template <class T> T bound_below(T x, T low) { return (x < low) | (low != low) ? low : x; }
template <class T> T bound_above(T x, T high) { return (x > high) | (high != high) ? high : x; }
template <class T> T clamp_attrs(const Attrs<T>& p, T x) {
  const T low = p.has_a ? bound_below(x, p.a) : x;
  return p.has_b ? bound_above(low, p.b) : low;
}
// A NaN in any operand wins; else min(max(x, low), high).
template <class T> T clamp_between(T x, T low, T high) { return math::minimum(math::maximum(x, low), high); }

NG_OP2(maximum, RealsBool, 0.1, math::maximum(x, y));
NG_OP2(minimum, RealsBool, 0.1, math::minimum(x, y));
NG_OP2(fmax, RealsBool, 0.1, (x >= y) | (y != y) ? x : y);
NG_OP2(fmin, RealsBool, 0.1, (x <= y) | (y != y) ? x : y);
NG_OP1(clamp, Reals, 0.1, clamp_attrs(p, x));
NG_OP3(clamp_tensor, Reals, 0.15, clamp_between(x, y, z));
NG_OP1(sign, RealsBool, 0.1, static_cast<T>((x > T(0)) - (x < T(0))));
NG_OP2(heaviside, RealsBool, 0.15, x == T(0) ? y : static_cast<T>(x > T(0)));
NG_OP1(relu, Reals, 0.1, math::maximum(x, T(0)));
NG_OP1(threshold, Reals, 0.1, x <= p.a ? p.b : x);

// ---- selection: these have an operand of type bool beside those of the computing type ----

// Any type of one size is moved as raw bytes by the same loop.
struct Raw16 {
  uint64_t low, high;
};

template <class U> void where_loop(void* const* operands, int64_t, int64_t n, const Params&) {
  U* const out = static_cast<U*>(operands[0]);
  const uint8_t* const condition = static_cast<const uint8_t*>(operands[1]);
  const U* const self = static_cast<const U*>(operands[2]);
  const U* const other = static_cast<const U*>(operands[3]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = condition[i] ? self[i] : other[i];
}

template <class T> void masked_fill_loop(void* const* operands, int64_t, int64_t n, const Params& params) {
  const Attrs<T> attrs(params);
  const T value = attrs.a;
  Stored<T>* const out = static_cast<Stored<T>*>(operands[0]);
  const Stored<T>* const self = static_cast<const Stored<T>*>(operands[1]);
  const uint8_t* const mask = static_cast<const uint8_t*>(operands[2]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = mask[i] ? static_cast<Stored<T>>(value) : self[i];
}

constexpr Loops kWhereLoops = {
    where_loop<uint8_t>,  where_loop<uint8_t>,  where_loop<uint8_t>,  where_loop<uint16_t>,
    where_loop<uint32_t>, where_loop<uint64_t>, where_loop<uint32_t>, where_loop<uint32_t>,  // halves come as float
    where_loop<uint32_t>, where_loop<uint64_t>, where_loop<uint64_t>, where_loop<Raw16>};

template <class... T> constexpr Loops masked_fill_loops(Types<T...>) {
  Loops all{};
  ((all[TypeOf<T>::value] = masked_fill_loop<T>), ...);
  all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32];
  return all;
}

ngResult where(const Args& args) {
  Params params;
  return elementwise(args, kWhereLoops, args.out[0].type, 0.2, params);
}
ngResult masked_fill(const Args& args) {
  static constexpr Loops loops = masked_fill_loops(RealsBoolComplex{});
  Params params(args);
  return elementwise(args, loops, args.out[0].type, 0.2, params);
}

NG_KERNEL("where", kAllTypes | kComplexTypes, where);
NG_KERNEL("masked_fill", kAllTypes | kComplexTypes, masked_fill);

}  // namespace
}  // namespace ng
