// Division with a remainder, of integers and of floats; common divisors; shifts. A divisor 0 counts as 1 here: the
// kernel tells the host (see DIVISION in elementwise_table.cl).
#if KIND < KIND_FLOAT

FUNCTION S lane_quotient(S x, S y) {
#if KIND == KIND_INT
  if (y == (S)-1) return (S)(0 - (ulong)x);  // the lowest number / -1 wraps
#endif
  return y == 0 ? x : (S)(x / y);
}
LANE_FUNCTION2(lanes_quotient, lane_quotient)

// x / y rounded towards zero. Where a float type can hold all numbers, it divides them: that is a vector operation. The
// half that is put on keeps quotients away from whole numbers, which rounding might cross.
FUNCTION V quotient(V x, V y) {
  const V divisor = y == C(0) ? C(1) : y;
  if (sizeof(S) <= 2) {
    const WIDE(float) a = WIDE(convert_float)(x), b = WIDE(convert_float)(divisor);
    return CONVERTV(f32, T, (a + copysign((WIDE(float))0.5f, a)) / b);
  }
#ifdef HAS_FP64
  if (sizeof(S) == 4) {
    const WIDE(double) a = WIDE(convert_double)(x), b = WIDE(convert_double)(divisor);
    const V result = CONVERTV(f64, T, (a + copysign((WIDE(double))0.5, a)) / b);
    return y == C(-1) ? NEG(x) : result;
  }
#endif
  return lanes_quotient(x, y);
}
FUNCTION V rest(V x, V y) { return SUB(x, MUL(quotient(x, y), y)); }

#define DIV_TRUNC(x, y) quotient(x, y)
#define FMOD(x, y) rest(x, y)
FUNCTION V DIV_FLOOR(V x, V y) {
  const V q = quotient(x, y), r = SUB(x, MUL(q, y));
  return ((r != C(0)) & ((x < C(0)) ^ (y < C(0)))) ? SUB(q, C(1)) : q;
}
FUNCTION V REMAINDER(V x, V y) {
  const V r = rest(x, y);
  return ((r != C(0)) & ((x < C(0)) ^ (y < C(0)))) ? ADD(r, y) : r;
}

FUNCTION S absolute(S x) { return x < 0 ? (S)(0 - (ulong)x) : x; }
FUNCTION S lane_divisor(S x, S y) {
  while (x != 0) {
    const S q = lane_quotient(y, x), r = (S)((ulong)y - (ulong)q * (ulong)x);
    y = x;
    x = r;
  }
  return absolute(y);
}
// Narrow types wrap only at the end, as C promotes them.
FUNCTION S lane_multiple(S x, S y) {
  const S divisor = lane_divisor(x, y);
  if (divisor == 0) return 0;
  const ulong multiple = (ulong)(long)lane_quotient(x, divisor) * (ulong)(long)y;
  if (sizeof(S) == 8) return absolute((S)multiple);
  const int narrow = (int)multiple;
  return (S)(narrow < 0 ? 0u - (uint)narrow : (uint)narrow);
}
LANE_FUNCTION2(common_divisor, lane_divisor)
LANE_FUNCTION2(common_multiple, lane_multiple)

#define WIDTH C(8 * sizeof(S))
FUNCTION V shift_left(V x, V y) {
  const M outside = (y < C(0)) | (y >= WIDTH);
  return outside ? C(0) : x << (outside ? C(0) : y);
}
// The last bit of a signed type is its sign; of an unsigned one a shift by the width leaves nothing.
FUNCTION V shift_right(V x, V y) {
#if KIND == KIND_UNSIGNED
  return y >= WIDTH ? C(0) : x >> (y >= WIDTH ? C(0) : y);
#else
  const V most = WIDTH - C(1);
  return x >> (((y < C(0)) | (y > most)) ? most : y);
#endif
}

#else

// The quotient of 16-bit floats is rounded to their type before it is truncated, as PyTorch does.
#define DIV_TRUNC(x, y) trunc(rounded((x) / (y)))
#if KIND == KIND_DOUBLE
LANE_FUNCTION2(FMOD, fmod)  // PoCL 3's vector form is wrong if one lane is special
#else
#define FMOD(x, y) fmod(x, y)
#endif
FUNCTION V REMAINDER(V x, V y) {
  const V m = FMOD(x, y);
  return ((m != C(0)) & ((y < C(0)) ^ (m < C(0)))) ? m + y : m;
}
// As Python: the exact multiple is divided, and what rounding did to it is repaired.
FUNCTION V DIV_FLOOR(V x, V y) {
  const V m = FMOD(x, y), ratio = x / y;
  V q = (x - m) / y;
  q = ((m != C(0)) & ((y < C(0)) ^ (m < C(0)))) ? q - C(1) : q;
  V floored = floor(q);
  floored = q - floored > C(0.5) ? floored + C(1) : floored;
  floored = q == C(0) ? copysign(C(0), ratio) : floored;
  return y == C(0) ? ratio : floored;
}
#endif
