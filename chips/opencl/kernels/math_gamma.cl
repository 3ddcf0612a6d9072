// The gamma function's relatives, lane by lane in the widest float there is. Needs math_wide.cl.

FUNCTION wide lane_log_gamma(wide x) { return isinf(x) ? (wide)INFINITY : lgamma(x); }

FUNCTION wide lane_digamma(wide x) {
  if (x == 0) return copysign((wide)INFINITY, -x);
  wide reflection = 0;
  if (x < 0) {
    if (x == trunc(x)) return NAN;  // also -inf
    reflection = -WIDE_PI / tan(WIDE_PI * (x - trunc(x)));
    x = 1 - x;
  }
  wide sum = 0;
  for (; x < 10; ++x) sum -= 1 / x;
  const wide z = 1 / (x * x);
  // Bernoulli numbers B2k / 2k.
  wide series = z / 12;
  series = z * ((wide)(691.0 / 32760) - series);
  series = z * ((wide)(1.0 / 132) - series);
  series = z * ((wide)(1.0 / 240) - series);
  series = z * ((wide)(1.0 / 252) - series);
  series = z * ((wide)(1.0 / 120) - series);
  series = z * ((wide)(1.0 / 12) - series);
  return log(x) - (wide)0.5 / x - series + sum + reflection;
}

// x^a e^-x / Gamma(a)
FUNCTION wide gamma_density(wide a, wide x) { return exp(a * log(x) - x - lgamma(a)); }

// P(a, x) by its power series; for x < a + 1.
FUNCTION wide lower_series(wide a, wide x) {
  wide term = 1 / a, sum = term;
  for (wide n = a + 1; term > sum * (wide)1e-17; ++n) {
    term *= x / n;
    sum += term;
  }
  return sum * gamma_density(a, x);
}

// Q(a, x) by its continued fraction (Lentz); for x >= a + 1.
FUNCTION wide upper_fraction(wide a, wide x) {
  const wide tiny = sizeof(wide) == 8 ? (wide)1e-300 : (wide)1e-30, least = sizeof(wide) == 8 ? 1e-16f : 1e-7f;
  wide b = x + 1 - a, c = 1 / tiny, d = 1 / b, h = d;
  for (int i = 1; i < 100000; ++i) {
    const wide step = -i * (i - a);
    b += 2;
    d = 1 / (step * d + b);
    c = b + step / c;
    h *= d * c;
    if (fabs(d * c - 1) < least) break;
  }
  return h * gamma_density(a, x);
}

// Regularised incomplete gamma functions: P if `lower`, else Q.
FUNCTION wide incomplete_gamma(wide a, wide x, int lower) {
  if (!(a >= 0) || !(x >= 0)) return NAN;
  if (a == 0) return x > 0 ? (wide)lower : (wide)NAN;
  if (x == 0) return !lower;
  if (isinf(a)) return isinf(x) ? (wide)NAN : (wide)!lower;
  if (isinf(x)) return lower;
  if (x < a + 1) {
    const wide p = lower_series(a, x);
    return lower ? p : 1 - p;
  }
  const wide q = upper_fraction(a, x);
  return lower ? 1 - q : q;
}
FUNCTION wide lane_lower(wide a, wide x) { return incomplete_gamma(a, x, 1); }
FUNCTION wide lane_upper(wide a, wide x) { return incomplete_gamma(a, x, 0); }

// B2k / (2k)!
__constant wide zeta_factors[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160,
                                  -691.0 / 1307674368000.0, 1.0 / 74724249600.0};

// Hurwitz zeta: ten terms of the sum, then Euler-Maclaurin.
FUNCTION wide lane_zeta(wide x, wide q) {
  if (x == 1) return INFINITY;
  if (!(x > 1)) return NAN;
  if (q <= 0) {
    if (q == floor(q)) return INFINITY;
    if (x != floor(x)) return NAN;
  }
  wide sum = 0;
  for (int terms = 0; terms < 10 || q < 10; ++terms, ++q) sum += pow(q, -x);
  wide power = pow(q, -x);
  sum += power * q / (x - 1) + power / 2;
  wide rising = x;  // x (x + 1) ... (x + 2k)
  power /= q;
  for (int k = 0; k < 7; ++k) {
    sum += zeta_factors[k] * rising * power;
    rising *= (x + 2 * k + 1) * (x + 2 * k + 2);
    power /= q * q;
  }
  return sum;
}

LANE_FUNCTION(log_gamma, lane_log_gamma)
LANE_FUNCTION(digamma, lane_digamma)
LANE_FUNCTION2(lower_gamma, lane_lower)
LANE_FUNCTION2(upper_gamma, lane_upper)
LANE_FUNCTION2(hurwitz_zeta, lane_zeta)
