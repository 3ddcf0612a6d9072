// Arithmetic: sums, products, quotients, powers and their fused forms. Division of integers is in
// elementwise_division.cpp.
#include "elementwise.h"
#include "scalar_math.h"

namespace ng {
namespace {

using math::add, math::mul, math::sub;

template <class... T> constexpr auto with_complex(Types<T...> types) { return join(types, Complexes{}); }
using RealsComplex = decltype(with_complex(Reals{}));
using RealsBoolComplex = decltype(with_complex(RealsBool{}));
using FloatsComplex = decltype(with_complex(Floats{}));

// Complex division scaled against overflow; the compiler's own would call a library function per element.
template <class T> std::complex<T> divide(std::complex<T> x, std::complex<T> y) {
  const T scale = std::max(std::fabs(y.real()), std::fabs(y.imag()));
  const T a = y.real() / scale, b = y.imag() / scale, norm = a * y.real() + b * y.imag();
  return {(x.real() * a + x.imag() * b) / norm, (x.imag() * a - x.real() * b) / norm};
}
template <class T> T divide(T x, T y) { return x / y; }

// Not std::complex's operator*, which calls a library function to repair NaNs.
template <class T> std::complex<T> mul(std::complex<T> x, std::complex<T> y) {
  return {x.real() * y.real() - x.imag() * y.imag(), x.real() * y.imag() + x.imag() * y.real()};
}

// From the nearer end, so that weight 1 gives exactly `end`.
template <class T> T lerp_between(T start, T end, T weight) {
  const T difference = end - start;
  return math::abs(weight) < T(0.5) ? start + weight * difference : end - difference * (T(1) - weight);
}

NG_OP2(add, RealsBoolComplex, 0.1, add(x, mul(p.a, y)));
NG_OP2(sub, RealsComplex, 0.1, sub(x, mul(p.a, y)));
NG_OP2(mul, RealsBoolComplex, 0.1, mul(x, y));
NG_OP2(div, FloatsComplex, 0.15, divide(x, y));
NG_OP1(neg, RealsComplex, 0.1, math::neg(x));
NG_OP1(reciprocal, FloatsComplex, 0.15, divide(T(1), x));
NG_OP2(lerp_scalar, Floats, 0.2, lerp_between(x, y, p.a));
NG_OP3(lerp, Floats, 0.2, lerp_between(x, y, z));
NG_OP3(addcmul, RealsComplex, 0.2, add(x, mul(mul(p.a, y), z)));
NG_OP3(addcdiv, FloatsComplex, 0.25, x + mul(p.a, divide(y, z)));
NG_OP2(mse, Floats, 0.1, (x - y) * (x - y));

}  // namespace
}  // namespace ng
