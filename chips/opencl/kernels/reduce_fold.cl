// Folds of one value per output: sum, prod, norms, any, all, amax, amin. Definitions: MAP(W, x) of an element (W: E or
// V), FOLD(a, x), IDENTITY, FINISH(x). COMPENSATED: sums of floats, whose blocks meet with the rounding error kept.

typedef struct {
  E value;
#ifdef COMPENSATED
  E rest;
#endif
} State;

inline State start(void) {
  State s;
  s.value = (E)(IDENTITY);
#ifdef COMPENSATED
  s.rest = (E)0;
#endif
  return s;
}

inline void add_value(State* s, E value) {
#ifdef COMPENSATED
  const E exact = value - s->rest, sum = s->value + exact, rest = (sum - s->value) - exact;
  s->rest = rest - rest == (E)0 ? rest : (E)0;  // nothing is kept of infinities
  s->value = sum;
#else
  s->value = FOLD(s->value, value);
#endif
}
inline void merge(State* s, State other) { add_value(s, other.value); }

#if MODE == 0
DEFINE_FOLD_LANES(fold_lanes, FOLD)
#define ITEM16(i) MAP(V, LOADV(x, i))
#endif

#define FIRST_LOAD(i) MAP(E, LOADE(x, (i)*x_step))
inline void fold_block(State* s, const __global MEM(T)* x, long x_step, const __global MEM(T)* y, long y_step, E centre,
                       S p0, long n, long position, int count) {
  E value = (E)(IDENTITY);
  long i = 0;
#if MODE == 0
  if (n >= 16) {
    V a = (V)(IDENTITY), b = a, c = a, d = a;
    for (; i + 64 <= n; i += 64) {
      for (int k = 0; k < 64 * (int)sizeof(MEM(T)); k += 64) PREFETCH((const __global char*)(x + i) + 4096 + k);
      const V v0 = ITEM16(i), v1 = ITEM16(i + 16), v2 = ITEM16(i + 32), v3 = ITEM16(i + 48);
      a = FOLD(a, v0), b = FOLD(b, v1), c = FOLD(c, v2), d = FOLD(d, v3);
    }
    for (; i + 16 <= n; i += 16) {
      const V v = ITEM16(i);
      a = FOLD(a, v);
    }
    a = FOLD(a, b), c = FOLD(c, d);
    a = FOLD(a, c);
    value = fold_lanes(a);
  }
#else
  E b = value, c = value, d = value;
  for (; i + 4 <= n; i += 4) {
    const E v0 = FIRST_LOAD(i), v1 = FIRST_LOAD(i + 1), v2 = FIRST_LOAD(i + 2), v3 = FIRST_LOAD(i + 3);
    value = FOLD(value, v0), b = FOLD(b, v1), c = FOLD(c, v2), d = FOLD(d, v3);
  }
  value = FOLD(value, b), c = FOLD(c, d);
  value = FOLD(value, c);
#endif
  for (; i < n; ++i) {
    const E v = FIRST_LOAD(i);
    value = FOLD(value, v);
  }
  add_value(s, value);
}

inline void finish(State s, __global MEM(O)* out, long out_step, __global MEM(O2)* out2, long out2_step, long total,
                   S p0, S p1, int count) {
  const E value = FINISH(E, s.value);
#ifdef SAME_OUT
  PUT_SAME(O, out, out_step, value);
#else
  PUT(A, O, out, out_step, value);
#endif
}
inline void store_part(State s, __global MEM(P0)* part0, __global MEM(P1)* part1, int count) {
  PUT_SAME(P0, part0, 1, s.value);
}
#if MODE != 2
inline State load_part(const __global MEM(P0)* part0, const __global MEM(P1)* part1, long from, long n) {
  State s = start();
  s.value = *part0;
  return s;
}
#endif
