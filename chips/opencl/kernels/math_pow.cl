// Powers, and the neighbours of a number.
#if KIND < KIND_FLOAT

// Wraps; a negative exponent gives the integer part of the fraction.
FUNCTION S lane_power(S base, S exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (base == (S)-1) return exponent & 1 ? base : 1;
    return 0;
  }
  ulong result = 1, factor = (ulong)base;
  for (ulong left = (ulong)exponent; left != 0; left >>= 1) {
    if (left & 1) result *= factor;
    factor *= factor;
  }
  return (S)result;
}
LANE_FUNCTION2(POW, lane_power)

#else

#if KIND == KIND_DOUBLE
LANE_FUNCTION2(POW, pow)  // PoCL 3's vector form is wrong if one lane is special
#else
#define POW(x, y) pow(x, y)
#endif

#if HALF_TYPE == 0
#define next_after(x, y) nextafter(x, y)
#else
// On the bits of the 16-bit type, which order numbers of one sign as their values do.
FUNCTION float lane_next(float x, float y) {
  if (isnan(x) || isnan(y)) return NAN;
  if (x == y) return y;
  ushort bits = stored_bits(x);
  if (x == 0) bits = (ushort)((stored_bits(y) & 0x8000u) | 1u);
  else bits = (ushort)((x < y) == (x > 0) ? bits + 1 : bits - 1);
  return stored_value(bits);
}
LANE_FUNCTION2(next_after, lane_next)
#endif
#endif
