// How an elementwise kernel is written. An op is a small struct whose static `apply` maps scalars of the computing type
// to the result; `loops<Op, types...>()` makes one dense loop per computing type from it, and `elementwise()` runs such
// a loop over operands of any layout (elementwise.cpp): operands that are not dense, are scalars, or are of a 16-bit
// float type pass block by block through a buffer in the L1 cache. So each op costs one vectorised loop per type.
#pragma once
#include <array>
#include <complex>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "../kernel.h"
#include "half.h"

namespace ng {

constexpr int kMaxOperands = 4;  // the output and at most three inputs
constexpr int kMaxDims = 64;

// The attributes of a call, by position, in every form a loop may want.
struct Params {
  double f[4] = {0, 0, 0, 0};
  int64_t i[4] = {0, 0, 0, 0};
  double imaginary[4] = {0, 0, 0, 0};
  bool has[4] = {false, false, false, false};
  int* failed = nullptr;  // integer division: set to 1 when a divisor is 0

  Params() = default;
  explicit Params(const Args& args);
};

// The same in the computing type, as `apply` receives them.
template <class T> struct Attrs {
  T a, b, c, d;
  bool has_a, has_b;
  int* failed;
  explicit Attrs(const Params& p)
      : a(get(p, 0)), b(get(p, 1)), c(get(p, 2)), d(get(p, 3)), has_a(p.has[0]), has_b(p.has[1]), failed(p.failed) {}
  static T get(const Params& p, int k) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(p.i[k]);
    else if constexpr (std::is_floating_point_v<T>) return static_cast<T>(p.f[k]);
    else return T(static_cast<typename T::value_type>(p.f[k]), static_cast<typename T::value_type>(p.imaginary[k]));
  }
};

// Computes n dense elements; operands[0] is the output, the rest are inputs. `first` is the position of element 0 in
// row-major order over the output. Values of 16-bit float types arrive and leave as float, bools as 0 or 1.
using Loop = void (*)(void* const* operands, int64_t first, int64_t n, const Params& params);
using Loops = std::array<Loop, NG_DATA_TYPE_COUNT>;  // by computing type; nullptr: none

// Bool values are computed on as bytes: they vectorise better and mix with other types more simply.
template <class T> using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <class Op, class T, class... In, size_t... k>
void dense_loop(void* const* operands, int64_t n, const Params& params, std::index_sequence<k...>) {
  const Attrs<T> attrs(params);
  using Out = Stored<decltype(Op::apply(attrs, std::declval<In>()...))>;
  Out* const out = static_cast<Out*>(operands[0]);
  const auto inputs = std::make_tuple(static_cast<const Stored<In>*>(operands[k + 1])...);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<Out>(Op::apply(attrs, static_cast<In>(std::get<k>(inputs)[i])...));
  }
}

template <class Op, class T, class... In>
void loop_of(void* const* operands, int64_t, int64_t n, const Params& params) {
  dense_loop<Op, T, In...>(operands, n, params, std::index_sequence_for<In...>{});
}

// Types lists for loops<>().
template <class... T> struct Types {};
using Floats = Types<float, double>;
using Ints = Types<uint8_t, int8_t, int16_t, int32_t, int64_t>;
using Reals = Types<float, double, uint8_t, int8_t, int16_t, int32_t, int64_t>;
using RealsBool = Types<float, double, uint8_t, int8_t, int16_t, int32_t, int64_t, bool>;
using IntsBool = Types<uint8_t, int8_t, int16_t, int32_t, int64_t, bool>;
using Complexes = Types<std::complex<float>, std::complex<double>>;

template <class... A, class... B> constexpr Types<A..., B...> join(Types<A...>, Types<B...>) { return {}; }

// An op with `arity` inputs, all of the computing type. float also serves the 16-bit float types.
template <class Op, int arity, class... T> constexpr Loops loops(Types<T...>) {
  Loops all{};
  const auto set = [&all](ngDataType type, Loop loop) {
    all[type] = loop;
    if (type == NG_FLOAT32) all[NG_FLOAT16] = all[NG_BFLOAT16] = loop;
  };
  if constexpr (arity == 1) (set(TypeOf<T>::value, loop_of<Op, T, T>), ...);
  if constexpr (arity == 2) (set(TypeOf<T>::value, loop_of<Op, T, T, T>), ...);
  if constexpr (arity == 3) (set(TypeOf<T>::value, loop_of<Op, T, T, T, T>), ...);
  return all;
}

constexpr uint32_t types_of(const Loops& loops) {
  uint32_t bits = 0;
  for (int t = 0; t < NG_DATA_TYPE_COUNT; ++t) bits |= loops[t] ? 1u << t : 0u;
  return bits;
}

// Runs loops[type] over args' operands (one output). `cost`: rough nanoseconds per element on one core.
ngResult elementwise(const Args& args, const Loops& loops, ngDataType type, double cost, Params& params);

// The Kernel for an op whose table is Op::table and whose cost is Op::cost; `typed` is the operand that tells the
// computing type: an input's index, or -1 for the output.
template <class Op, int typed = 0> ngResult elementwise_kernel(const Args& args) {
  Params params(args);
  const ngDataType type = typed < 0 ? args.out[0].type : args.in[typed < 0 ? 0 : typed].type;
  return elementwise(args, Op::table, type, Op::cost, params);
}

// NG_OP1(name, types, cost, expr) registers an op of one input `x`; NG_OP2 has inputs `x`, `y`; NG_OP3 also `z`.
// In expr, T is the computing type and p the attributes (Attrs<T>). NG_TEST1 and NG_TEST2 have a bool output.
#define NG_OP(name, arity, types, ns_cost, Result, out_types, parameters, ...)                   \
  struct name##_op {                                                                             \
    static constexpr double cost = ns_cost;                                                      \
    template <class T> static Result apply([[maybe_unused]] const Attrs<T>& p, parameters) {     \
      return static_cast<Result>(__VA_ARGS__);                                                   \
    }                                                                                            \
    static const Loops table;                                                                    \
  };                                                                                             \
  constexpr Loops name##_op::table = loops<name##_op, arity>(types{});                           \
  NG_KERNEL(#name, types_of(name##_op::table), elementwise_kernel<name##_op>, out_types)
#define NG_COMMA ,
#define NG_OP1(name, types, cost, ...) NG_OP(name, 1, types, cost, T, 0, T x, __VA_ARGS__)
#define NG_OP2(name, types, cost, ...) NG_OP(name, 2, types, cost, T, 0, T x NG_COMMA T y, __VA_ARGS__)
#define NG_OP3(name, types, cost, ...) NG_OP(name, 3, types, cost, T, 0, T x NG_COMMA T y NG_COMMA T z, __VA_ARGS__)
#define NG_TEST1(name, types, cost, ...) NG_OP(name, 1, types, cost, bool, bit(NG_BOOL), T x, __VA_ARGS__)
#define NG_TEST2(name, types, cost, ...) \
  NG_OP(name, 2, types, cost, bool, bit(NG_BOOL), T x NG_COMMA T y, __VA_ARGS__)

}  // namespace ng
