// What the expressions of elementwise_table.cl are written in, for the computing type T (a token of types.cl) and its
// KIND. May be included again for another T: the macros are renewed and the functions are overloads (two T that are
// computed alike, as f16 and f32, share them: include it for one of them).
//   V, S, M     a vector of LANES values of ACC(T), one of them, and what comparing vectors gives
//   C(v)        the vector with v in each lane
// Conditions choose lane by lane (?:) and are joined with | and &.
#define KIND_BOOL 0
#define KIND_UNSIGNED 1
#define KIND_INT 2
#define KIND_FLOAT 3
#define KIND_DOUBLE 4

#undef V
#undef S
#undef M
#undef B
#undef C
#define V ACCV(T)
#define S ACC(T)
#define M MASKV(T)
#define B BITSV(T)
#define C(v) ((V)(S)(v))

#ifdef __clang__
#define RARELY(condition) __builtin_expect(condition, 0)
#else
#define RARELY(condition) (condition)
#endif

// any() of a condition on floats; the built-in takes longer than what it guards.
FUNCTION int any_lane(int4 m) { return (m.x | m.y | m.z | m.w) != 0; }
FUNCTION int any_lane(int16 m) {
  const int8 half_of = m.lo | m.hi;
  return any_lane(half_of.lo | half_of.hi);
}

// Defines V name(V x): f, a function of one S, in each lane.
#define LANE_FUNCTION(name, f)                                             \
  FUNCTION V name(V x) {                                                   \
    S lane[LANES];                                                         \
    WIDE(vstore)(x, 0, lane);                                              \
    ROLLED for (int k = 0; k < LANES; ++k) lane[k] = f(lane[k]);           \
    return WIDE(vload)(0, lane);                                           \
  }
#define LANE_FUNCTION2(name, f)                                            \
  FUNCTION V name(V x, V y) {                                              \
    S lane[LANES], other[LANES];                                           \
    WIDE(vstore)(x, 0, lane);                                              \
    WIDE(vstore)(y, 0, other);                                             \
    ROLLED for (int k = 0; k < LANES; ++k) lane[k] = f(lane[k], other[k]); \
    return WIDE(vload)(0, lane);                                           \
  }

// ---- arithmetic: integers wrap, bool is a lattice

#undef ADD
#undef SUB
#undef MUL
#undef NEG
#undef ABS
#if KIND >= KIND_FLOAT
#define ADD(x, y) ((x) + (y))
#define SUB(x, y) ((x) - (y))
#define MUL(x, y) ((x) * (y))
#define NEG(x) (-(x))
#define ABS(x) fabs(x)
#elif KIND == KIND_BOOL
#define ADD(x, y) ((x) | (y))
#define SUB(x, y) ((x) ^ (y))
#define MUL(x, y) ((x) & (y))
#define NEG(x) (x)
#define ABS(x) (x)
#else
#define ADD(x, y) FROM_BITSV(T, TO_BITSV(T, x) + TO_BITSV(T, y))
#define SUB(x, y) FROM_BITSV(T, TO_BITSV(T, x) - TO_BITSV(T, y))
#define MUL(x, y) FROM_BITSV(T, TO_BITSV(T, x) * TO_BITSV(T, y))
#define NEG(x) FROM_BITSV(T, (B)0 - TO_BITSV(T, x))
#define ABS(x) ((x) < C(0) ? NEG(x) : (x))
#endif

// NaN wins; the other value wins.
#define MAXIMUM(x, y) ((((x) >= (y)) | ((x) != (x))) ? (x) : (y))
#define MINIMUM(x, y) ((((x) <= (y)) | ((x) != (x))) ? (x) : (y))
#define FMAXIMUM(x, y) ((((x) >= (y)) | ((y) != (y))) ? (x) : (y))
#define FMINIMUM(x, y) ((((x) <= (y)) | ((y) != (y))) ? (x) : (y))
#define CLAMP_BELOW(x, low) ((((x) < (low)) | ((low) != (low))) ? (low) : (x))
#define CLAMP_ABOVE(x, high) ((((x) > (high)) | ((high) != (high))) ? (high) : (x))


// ---- what differs for integers

#undef SIGN
#undef FLOAT_ONLY
#undef IS_INFINITY
#undef HAS_SIGN
#undef BITWISE_NOT
#if KIND >= KIND_FLOAT
#define FLOAT_ONLY(f, x) f(x)
#define IS_INFINITY(f, x) (f(x) == C(INFINITY))
#define HAS_SIGN(x) ((TO_BITSV(T, x) >> (B)(8 * sizeof(S) - 1)) != (B)0)
#else
#define FLOAT_ONLY(f, x) (x)
#define IS_INFINITY(f, x) ((M)0)
#define HAS_SIGN(x) ((x) < C(0))
#endif
#if KIND == KIND_BOOL
#define BITWISE_NOT(x) ((x) ^ C(1))
#else
#define BITWISE_NOT(x) (~(x))
#endif
#if KIND == KIND_BOOL || KIND == KIND_UNSIGNED
#define SIGN(x) ((x) > C(0) ? C(1) : C(0))
#else
#define SIGN(x) ((x) > C(0) ? C(1) : ((x) < C(0) ? C(-1) : C(0)))
#endif

FUNCTION V clamp_between(V x, V low, V high) {
  V y = MAXIMUM(x, low);
  return MINIMUM(y, high);
}

// ---- 16-bit floats: HALF_TYPE is 1 for f16, 2 for bf16, 0 for the rest

#if HALF_TYPE == 1
FUNCTION ushort stored_bits(float x) {
  ushort bits;
  vstore_half_rte(x, 0, (half*)&bits);
  return bits;
}
FUNCTION float stored_value(ushort bits) { return vload_half(0, (const half*)&bits); }
#elif HALF_TYPE == 2
#define stored_bits(x) bf16_from_float(x)
#define stored_value(bits) bf16_to_float(bits)
#endif
#if HALF_TYPE
FUNCTION float lane_rounded(float x) { return stored_value(stored_bits(x)); }
LANE_FUNCTION(rounded, lane_rounded)
#else
#define rounded(x) (x)
#endif
