// sin, cos and tan. In float our own: x = n pi/2 + r, with polynomials on [-pi/4, pi/4]. Vectors with large values go
// to the built-ins lane by lane: PoCL 3's vector forms are wrong if one lane is large.
#if KIND == KIND_DOUBLE
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define TAN(x) tan(x)
#else
#define SIN(x) float_sin(x)
#define COS(x) float_cos(x)
#define TAN(x) float_tan(x)

// sin(x + quarter pi / 2), and the cosine of that.
FUNCTION V float_sine(V x, int quarter, V* other) {
  M turn;
  const V n = float_round(x * 0.636619772f, &turn);
  V r = fma(-n, C(1.57079637f), x);
  r = fma(-n, C(-4.37113900e-8f), r);
  r = fma(-n, C(-1.71512451e-15f), r);
  const V square = r * r;
  V s = C(-0.0001951520059f);
  s = s * square + 0.008332160168f;
  s = s * square - 0.166666546f;
  V c = C(2.443305841e-05f);
  c = c * square - 0.00138873154f;
  c = c * square + 0.04166664567f;
  const V sine = r + r * square * s, cosine = 1.0f - 0.5f * square + square * square * c;
  turn += quarter;
  const M odd = (turn & 1) != (M)0;
  const V value = odd ? cosine : sine, across = odd ? sine : cosine;
  *other = ((turn + 1) & 2) != (M)0 ? -across : across;
  return (turn & 2) != (M)0 ? -value : value;
}
LANE_FUNCTION(lanes_sin, sin)
LANE_FUNCTION(lanes_cos, cos)
LANE_FUNCTION(lanes_tan, tan)
#define LARGE_ANGLE(x) RARELY(any_lane(fabs(x) > C(1e5f)))
FUNCTION V float_sin(V x) {
  if (LARGE_ANGLE(x)) return lanes_sin(x);
  V cosine;
  const V sine = float_sine(x, 0, &cosine);
  return x == C(0) ? x : sine;
}
FUNCTION V float_cos(V x) {
  if (LARGE_ANGLE(x)) return lanes_cos(x);
  V other;
  return float_sine(x, 1, &other);
}
FUNCTION V float_tan(V x) {
  if (LARGE_ANGLE(x)) return lanes_tan(x);
  V cosine;
  const V sine = float_sine(x, 0, &cosine);
  return x == C(0) ? x : sine / cosine;
}
#endif
