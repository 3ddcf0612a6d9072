// Inverse and scaled error functions, lane by lane in the widest float there is: they are rare, so exactness counts for
// more than speed. Needs math_wide.cl.

// (1 + 2x) exp(x^2) erfc(x) for x >= 0, in t = (x - 3.75) / (x + 3.75): Chebyshev coefficients made with mpmath.
__constant wide erfcx_terms[] = {
    1.1775789345674018, -0.0045900545806464773, -0.084249133366517916, 0.05920993999819189, -0.026658668435305752,
    0.0090749976707052651, -0.0024131635404176082, 0.00049077583652580863, -6.9169733025012064e-5,
    4.1390279860730102e-6, 7.7403830661984907e-7, -2.1886401049234396e-7, 1.076499946567091e-8, 4.5219598112182869e-9,
    -7.7544002088313511e-10, -6.3180883408866845e-11, 2.8687950109306699e-11, 1.9455868545777347e-13,
    -9.6546967484334389e-13, 3.2525481481487398e-14, 3.3478119482868054e-14, -1.8645628804193131e-15,
    -1.2507950530688647e-15, 7.4182352566240435e-17, 5.0681489047961113e-17};

FUNCTION wide lane_erfcx(wide x) {
  const wide distance = fabs(x);
  // 1 / (sqrt(pi) x) is exact to the last place long before x^2 overflows.
  const wide t = distance > 1e8f ? (wide)1 : (distance - (wide)3.75) / (distance + (wide)3.75);
  const wide right = chebyshev(erfcx_terms, 25, t) / (1 + 2 * distance);
  return x < 0 ? 2 * exp(x * x) - right : right;
}

// Winitzki's closed form for the inverse of erf, good to 0.2 %: log_product is log((1 - x)(1 + x)).
FUNCTION wide inverse_guess(wide log_product) {
  const wide a = (wide)0.147, t = 2 / (WIDE_PI * a) + log_product / 2, q = -log_product / a;
  return sqrt(q / (sqrt(t * t + q) + t));
}

// y >= 0 with erfc(y) = q, for 0 < q <= 1/2: Newton's method on the logarithm, which is nearly a parabola.
FUNCTION wide erfc_inverse(wide q) {
  const wide log_q = log(q);
  wide y = inverse_guess(log_q + log(2 - q));
  for (int step = 0; step < 3; ++step) {
    const wide scaled = lane_erfcx(y);
    y += (log(scaled) - y * y - log_q) * scaled * ROOT_PI / 2;
  }
  return y;
}

FUNCTION wide lane_erf_inverse(wide x) {
  const wide distance = fabs(x);
  if (!(distance < 1)) return distance == 1 ? copysign((wide)INFINITY, x) : (wide)NAN;
  wide y;
  if (distance > (wide)0.5) {
    y = erfc_inverse(1 - distance);
  } else {
    y = distance < (wide)1e-3 ? distance * ROOT_PI / 2 : inverse_guess(log1p(-distance * distance));
    for (int step = 0; step < 2; ++step) {  // Halley's method: each step cubes the error
      const wide newton = (erf(y) - distance) / (2 / ROOT_PI * exp(-y * y));
      y -= newton / (1 + y * newton);
    }
  }
  return copysign(y, x);
}

FUNCTION wide lane_normal_quantile(wide p) {
  if (p == 0) return -INFINITY;
  if (p == 1) return INFINITY;
  if (!(p > 0 && p < 1)) return NAN;
  return p < (wide)0.25 ? -ROOT_2 * erfc_inverse(2 * p) : ROOT_2 * lane_erf_inverse(2 * p - 1);
}

FUNCTION wide lane_log_normal_cdf(wide x) {
  const wide t = x / ROOT_2;
  return x < -1 ? log(lane_erfcx(-t) / 2) - t * t : log1p(-erfc(t) / 2);
}

LANE_FUNCTION(erf_inverse, lane_erf_inverse)
LANE_FUNCTION(erfc_scaled, lane_erfcx)
LANE_FUNCTION(normal_quantile, lane_normal_quantile)
LANE_FUNCTION(log_normal_cdf, lane_log_normal_cdf)
