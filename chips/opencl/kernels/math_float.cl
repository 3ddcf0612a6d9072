// The part of math.cl for floating computing types. In float, exponentials and their kin are our own: inlined vectors
// are faster than the runtimes' built-ins and alike on all of them. In double the built-ins serve.
#define PI 3.14159265358979323846
#undef EXP
#undef EXP2
#undef EXPM1
#undef LOG
#undef LOG1P
#undef TANH
#undef ERF
#undef TWICE_NORMAL_CDF

#if KIND == KIND_DOUBLE
#define EXP(x) exp(x)
#define EXP2(x) exp2(x)
#define EXPM1(x) expm1(x)
#define LOG(x) log(x)
#define LOG1P(x) log1p(x)
#define TANH(x) tanh(x)
#define ERF(x) erf(x)
#define TWICE_NORMAL_CDF(x) (C(1) + erf((x) * C(0.70710678118654752440)))
#else
#define EXP(x) float_exp(x)
#define EXP2(x) float_exp2(x)
#define EXPM1(x) float_expm1(x)
#define LOG(x) float_log(x)
#define LOG1P(x) float_log1p(x)
#define TANH(x) float_tanh(x)
#define ERF(x) float_erf(x)
#define TWICE_NORMAL_CDF(x) float_twice_normal_cdf(x)
// The nearest integer of a value below 2^22, as an integer and as a float: adding 1.5 * 2^23 rounds.
#define ROUND_MAGIC 12582912.0f
FUNCTION V float_round(V x, M* whole) {
  const V shifted = x + ROUND_MAGIC;
  *whole = WIDE(as_int)(shifted) - 0x4b400000;
  return shifted - ROUND_MAGIC;
}
// Between two bounds; NaN stays.
FUNCTION V float_bounded(V x, float low, float high) {
  const V above = x < C(low) ? C(low) : x;
  return above > C(high) ? C(high) : above;
}
// 2^n for n in [-126, 127]
FUNCTION V float_power_of_2(M n) { return WIDE(as_float)((n + 127) << 23); }

// x = n ln 2 + r with n an integer; gives exp(r) - 1 = r + r^2 q(r), q fitted to 2^-32.
FUNCTION V float_exp_reduced(V x, M* n) {
  const V turns = float_round(x * 1.44269504f, n);
  const V r = (x - turns * 0.693145751953125f) - turns * 1.428606765330187e-6f;
  V q = C(0.0001989099082f);
  q = q * r + 0.001393365f;
  q = q * r + 0.008333310925f;
  q = q * r + 0.04166646493f;
  q = q * r + 0.1666666668f;
  q = q * r + 0.5000000013f;
  return r + r * r * q;
}
// mantissa * 2^n in two steps, so that results near and beyond both ends of the range are right.
FUNCTION V float_scale(V mantissa, M n) {
  const M first = n >> 1;
  return mantissa * float_power_of_2(first) * float_power_of_2(n - first);
}
FUNCTION V float_exp(V x) {
  M n;
  const V rest = float_exp_reduced(float_bounded(x, -105, 89), &n);
  return float_scale(rest + 1.0f, n);
}
FUNCTION V float_exp2(V x) {
  M n;
  const V bounded = float_bounded(x, -152, 129), r = bounded - float_round(bounded, &n);
  V g = C(0.0001545316295f);
  g = g * r + 0.001339086336f;
  g = g * r + 0.009618082557f;
  g = g * r + 0.05550357114f;
  g = g * r + 0.2402265076f;
  g = g * r + 0.693147188f;
  return float_scale(r * g + 1.0f, n);
}
// 2^n (exp(r) - 1) + (2^n - 1), halved meanwhile so that the largest finite results do not overflow.
FUNCTION V float_expm1(V x) {
  M n;
  const V rest = float_exp_reduced(float_bounded(x, -30, 89), &n);
  const V half_scale = float_power_of_2(n - 1);
  const V result = 2.0f * (half_scale * rest + (half_scale - 0.5f));
  return x == C(0) ? x : result;
}
// e / (e + 2) with e = exp(2 |x|) - 1.
FUNCTION V float_tanh(V x) {
  const V size = fabs(x), bounded = size > C(10) ? C(10) : size;
  M n;
  const V rest = float_exp_reduced(bounded + bounded, &n);
  const V scale = float_power_of_2(n);
  const V e = scale * rest + (scale - 1.0f);
  return copysign(e / (e + 2.0f), x);
}

// x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2); log(1 + f) = f - f^2 / 2 + f^3 q(f), q fitted to 2^-30.
FUNCTION V float_log(V x) {
  const M tiny = x < C(1.17549435e-38f);
  const V normal = tiny ? x * 8388608.0f : x;
  const M bits = WIDE(as_int)(normal);
  const M n = (bits - 0x3f3504f3) >> 23;  // floor(log2(x sqrt(2)))
  const V f = WIDE(as_float)(bits - (n << 23)) - 1.0f;
  const V power = WIDE(convert_float)(n) - (tiny ? C(23) : C(0));
  V q = C(0.06746615718f);
  q = q * f - 0.1167575399f;
  q = q * f + 0.1188823112f;
  q = q * f - 0.1240557805f;
  q = q * f + 0.1421954167f;
  q = q * f - 0.1666799602f;
  q = q * f + 0.2000211919f;
  q = q * f - 0.250000096f;
  q = q * f + 0.333333126f;
  const V square = f * f;
  const V rest = q * f * square + power * 1.428606765330187e-6f - 0.5f * square;
  const V result = power * 0.693145751953125f + (f + rest);
  return x > C(0) ? (x < C(INFINITY) ? result : x) : (x == C(0) ? C(-INFINITY) : C(NAN));
}
// What rounding 1 + x loses is put back.
FUNCTION V float_log1p(V x) {
  const V u = x + 1.0f;
  const V lost = (x - (u - 1.0f)) / u;
  return float_log(u) + (((u > C(0)) & (u < C(INFINITY))) ? lost : C(0));
}

// erf(z / sqrt(2)) = z P(z^2) / Q(z^2) for |z| <= 5.5, right to 3e-7 of its value; beyond it is 1.
FUNCTION V float_normal_ratio(V x) {
  const V z = float_bounded(x, -5.5f, 5.5f), u = z * z;
  V p = C(4.54988438e-8f);
  p = p * u + 1.27041849e-5f;
  p = p * u + 0.000337648293f;
  p = p * u + 0.00935450289f;
  p = p * u + 0.0677050278f;
  p = p * u + 0.797884464f;
  V q = C(1.19750359e-6f);
  q = q * u + 7.36469301e-5f;
  q = q * u + 0.00188443635f;
  q = q * u + 0.028645793f;
  q = q * u + 0.251521587f;
  q = q * u + 1.0f;
  return z * p / q;
}
FUNCTION V float_twice_normal_cdf(V x) { return x < C(-5.5f) ? C(0) : 1.0f + float_normal_ratio(x); }
FUNCTION V float_erf(V x) {
  const V result = float_normal_ratio(x * 1.41421356f);
  return fabs(x) > C(3.9f) ? copysign(C(1), x) : result;
}
#endif

// ---- what several expressions share

#define SIGMOID(x) (C(1) / (C(1) + EXP(-(x))))

// From the nearer end, so that weight 1 gives exactly `end`.
FUNCTION V interpolate(V start, V end, V weight) {
  const V difference = end - start;
  return fabs(weight) < C(0.5) ? start + weight * difference : end - difference * (C(1) - weight);
}
FUNCTION V smooth_l1(V distance, V beta) {
  return distance < beta ? C(0.5) * distance * distance / beta : distance - C(0.5) * beta;
}
FUNCTION V huber(V distance, V delta) {
  return distance <= delta ? C(0.5) * distance * distance : delta * (distance - C(0.5) * delta);
}

// The larger plus the rest; two equal infinities are their own sum.
FUNCTION V log_add_exp(V x, V y) {
  const V larger = MAXIMUM(x, y), sum = larger + LOG1P(EXP(-fabs(x - y)));
  return ((x == y) & (fabs(x) == C(INFINITY))) ? x : sum;
}
FUNCTION V log_add_exp2(V x, V y) {
  const V larger = MAXIMUM(x, y), sum = larger + LOG1P(EXP2(-fabs(x - y))) * C(1.44269504088896340736);
  return ((x == y) & (fabs(x) == C(INFINITY))) ? x : sum;
}

FUNCTION V hard_gate(V x) {
  const V y = x + C(3), above = MAXIMUM(y, C(0));
  return MINIMUM(above, C(6));
}
// Without a bound if eps is negative.
FUNCTION V logit(V x, V eps) {
  const V low = eps < C(0) ? C(-INFINITY) : eps, high = eps < C(0) ? C(INFINITY) : C(1) - eps;
  const V z = x < low ? low : (x > high ? high : x);
  return LOG(z / (C(1) - z));
}
FUNCTION V logit_gradient(V grad, V x, V eps) {
  const M free = eps < C(0);
  const V low = free ? C(0) : eps, high = free ? C(1) : C(1) - eps, outside = free ? C(NAN) : C(0);
  return ((x >= low) & (x <= high)) ? grad / (x * (C(1) - x)) : outside;
}

#define GELU_SCALE C(0.79788456080286535588)
FUNCTION V gelu_tanh(V x) {
  return x * C(0.5) * (C(1) + TANH(GELU_SCALE * (x + C(0.044715) * x * x * x)));
}
FUNCTION V gelu_tanh_gradient(V grad, V x) {
  const V t = TANH(GELU_SCALE * (x + C(0.044715) * x * x * x));
  const V inner = GELU_SCALE * (C(1) + C(3 * 0.044715) * x * x);
  return grad * (C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * inner);
}
FUNCTION V gelu_gradient(V grad, V x) {
  const V cdf = C(0.5) * TWICE_NORMAL_CDF(x);
  return grad * (cdf + x * EXP(x * x * C(-0.5)) * C(0.39894228040143267794));
}
FUNCTION V silu_gradient(V grad, V x) {
  const V s = SIGMOID(x);
  return grad * s * (C(1) + x * (C(1) - s));
}
// tanh(log(1 + e^x)) = w / (w + 2) with w = e^x (e^x + 2); 1 to the last place from 20 on.
FUNCTION V tanh_of_softplus(V x) {
  const V e = EXP(x > C(20) ? C(20) : x), w = e * (e + C(2));
  return w / (w + C(2));
}
FUNCTION V mish_gradient(V grad, V x) {
  const V s = SIGMOID(x), t = tanh_of_softplus(x);
  return grad * (t + x * s * (C(1) - t * t));
}
FUNCTION V log_sigmoid_gradient(V grad, V x) {
  const V z = EXP(-fabs(x)), part = z / (C(1) + z);
  return grad * (x < C(0) ? C(1) - part : part);
}
FUNCTION V softplus_gradient(V grad, V x, V beta, V threshold) {
  const V z = EXP(x * beta);
  return x * beta > threshold ? grad : grad * z / (z + C(1));
}
