// Special functions, computed in double for every float type: inverse error functions, gamma and its relatives, zeta,
// Bessel functions, erfcx. They are rare, so exactness counts for more than speed.
#include <cmath>

#include "elementwise.h"
#include "scalar_math.h"
#include "special_coefficients.h"

namespace ng {
namespace {

constexpr double kPi = 3.14159265358979323846, kRoot2 = 1.41421356237309504880, kRootPi = 1.77245385090551602730;
constexpr double kInfinity = math::infinity<double>, kNan = math::nan<double>;

// The sum of coefficients[k] * T_k(t), by Clenshaw's recurrence. coefficients[0] is halved already.
template <int n> double chebyshev(const double (&coefficients)[n], double t) {
  double a = 0, b = 0;
  for (int k = n - 1; k > 0; --k) {
    const double next = 2 * t * a - b + coefficients[k];
    b = a;
    a = next;
  }
  return t * a - b + coefficients[0];
}

// ---- error functions ----

double erfcx(double x) {
  const double distance = std::fabs(x);
  // 1 / (sqrt(pi) x) is exact to the last place long before x^2 overflows.
  const double t = distance > 1e8 ? 1.0 : (distance - 3.75) / (distance + 3.75);
  const double right = chebyshev(kErfcx, t) / (1 + 2 * distance);
  return x < 0 ? 2 * std::exp(x * x) - right : right;
}

// Winitzki's closed form for erf^-1, good to 0.2 %: log_product is log((1 - x)(1 + x)).
double inverse_guess(double log_product) {
  constexpr double a = 0.147;
  const double t = 2 / (kPi * a) + log_product / 2, q = -log_product / a;
  return std::sqrt(q / (std::sqrt(t * t + q) + t));
}

// y >= 0 with erfc(y) = q, for 0 < q <= 1/2: Newton's method on the logarithm, which is nearly a parabola.
double erfc_inverse(double q) {
  const double log_q = std::log(q);
  double y = inverse_guess(log_q + std::log(2 - q));
  for (int step = 0; step < 3; ++step) {
    const double scaled = erfcx(y);
    y += (std::log(scaled) - y * y - log_q) * scaled * kRootPi / 2;
  }
  return y;
}

double erfinv(double x) {
  const double distance = std::fabs(x);
  if (!(distance < 1)) return distance == 1 ? std::copysign(kInfinity, x) : kNan;
  double y;
  if (distance > 0.5) {
    y = erfc_inverse(1 - distance);
  } else {
    y = distance < 1e-3 ? distance * kRootPi / 2 : inverse_guess(std::log1p(-distance * distance));
    for (int step = 0; step < 2; ++step) {  // Halley's method: each step cubes the error
      const double newton = (std::erf(y) - distance) / (2 / kRootPi * std::exp(-y * y));
      y -= newton / (1 + y * newton);
    }
  }
  return std::copysign(y, x);
}

double ndtri(double p) {
  if (p == 0) return -kInfinity;
  if (p == 1) return kInfinity;
  if (!(p > 0 && p < 1)) return kNan;
  return p < 0.25 ? -kRoot2 * erfc_inverse(2 * p) : kRoot2 * erfinv(2 * p - 1);
}

double log_ndtr(double x) {
  const double t = x / kRoot2;
  return x < -1 ? std::log(erfcx(-t) / 2) - t * t : std::log1p(-std::erfc(t) / 2);
}

// ---- gamma ----

// glibc's lgamma writes the global `signgam`; the _r forms do not.
double lgamma(double x) {
  int sign;
  return ::lgamma_r(x, &sign);
}

double digamma(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  double reflection = 0;
  if (x < 0) {
    if (x == std::trunc(x)) return kNan;  // also -inf
    const double part = x - std::trunc(x);
    reflection = -kPi / std::tan(kPi * part);
    x = 1 - x;
  }
  double sum = 0;
  for (; x < 10; ++x) sum -= 1 / x;
  const double z = 1 / (x * x);
  // Bernoulli numbers B2k / 2k.
  const double series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z *
                        (691.0 / 32760 - z / 12))))));
  return std::log(x) - 0.5 / x - series + sum + reflection;
}

// x^a e^-x / Gamma(a)
double gamma_density(double a, double x) { return std::exp(a * std::log(x) - x - lgamma(a)); }

// P(a, x) by its power series; for x < a + 1.
double lower_series(double a, double x) {
  double term = 1 / a, sum = term;
  for (double n = a + 1; term > sum * 1e-17; ++n) {
    term *= x / n;
    sum += term;
  }
  return sum * gamma_density(a, x);
}

// Q(a, x) by its continued fraction (Lentz); for x >= a + 1.
double upper_fraction(double a, double x) {
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 100000; ++i) {
    const double step = -i * (i - a);
    b += 2;
    d = 1 / (step * d + b);
    c = b + step / c;
    h *= d * c;
    if (std::fabs(d * c - 1) < 1e-16) break;
  }
  return h * gamma_density(a, x);
}

// Regularised incomplete gamma functions: P if `lower`, else Q.
double incomplete_gamma(double a, double x, bool lower) {
  if (!(a >= 0) || !(x >= 0)) return kNan;
  if (a == 0) return x > 0 ? lower : kNan;
  if (x == 0) return !lower;
  if (std::isinf(a)) return std::isinf(x) ? kNan : !lower;
  if (std::isinf(x)) return lower;
  if (x < a + 1) {
    const double p = lower_series(a, x);
    return lower ? p : 1 - p;
  }
  const double q = upper_fraction(a, x);
  return lower ? 1 - q : q;
}

// Hurwitz zeta: ten terms of the sum, then Euler-Maclaurin.
double zeta(double x, double q) {
  if (x == 1) return kInfinity;
  if (!(x > 1)) return kNan;
  if (q <= 0) {
    if (q == std::floor(q)) return kInfinity;
    if (x != std::floor(x)) return kNan;
  }
  double sum = 0;
  int terms = 0;
  for (; terms < 10 || q < 10; ++terms, ++q) sum += std::pow(q, -x);
  // B2k / (2k)!
  constexpr double factors[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160,
                                -691.0 / 1307674368000.0, 1.0 / 74724249600.0};
  double power = std::pow(q, -x);
  sum += power * q / (x - 1) + power / 2;
  double rising = x;  // x (x + 1) ... (x + 2k)
  power /= q;
  for (int k = 0; k < 7; ++k) {
    sum += factors[k] * rising * power;
    rising *= (x + 2 * k + 1) * (x + 2 * k + 2);
    power /= q * q;
  }
  return sum;
}

// ---- Bessel ----

double i0e(double x) {
  const double distance = std::fabs(x);
  if (distance <= 8) return chebyshev(kI0Near, distance / 4 - 1);
  return chebyshev(kI0Far, 16 / distance - 1) / std::sqrt(distance);
}
double i1e(double x) {
  const double distance = std::fabs(x);
  if (distance <= 8) return x * chebyshev(kI1Near, distance / 4 - 1);
  return std::copysign(chebyshev(kI1Far, 16 / distance - 1) / std::sqrt(distance), x);
}
// In two steps, so that the exponential alone does not overflow.
double unscaled(double value, double x) {
  const double half = std::exp(std::fabs(x) / 2);
  return std::isinf(x) ? std::copysign(kInfinity, value) : value * half * half;
}

NG_OP1(erfinv, Floats, 40, erfinv(x));
NG_OP1(erfcx, Floats, 20, erfcx(x));
NG_OP1(ndtri, Floats, 50, ndtri(x));
NG_OP1(log_ndtr, Floats, 40, log_ndtr(x));
NG_OP1(lgamma, Floats, 30, lgamma(x));
NG_OP1(digamma, Floats, 30, digamma(x));
NG_OP1(i0, Floats, 30, unscaled(i0e(x), x));
NG_OP1(i0e, Floats, 20, i0e(x));
NG_OP1(i1, Floats, 30, unscaled(i1e(x), x));
NG_OP1(i1e, Floats, 20, i1e(x));
NG_OP2(zeta, Floats, 200, zeta(x, y));
NG_OP2(igamma, Floats, 200, incomplete_gamma(x, y, true));
NG_OP2(igammac, Floats, 200, incomplete_gamma(x, y, false));

}  // namespace
}  // namespace ng
