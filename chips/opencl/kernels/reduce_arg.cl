// The place of the largest (or smallest) element of one reduced dim: argmax, argmin, max_dim, min_dim. The first of
// equals wins, a NaN over numbers. BEATS(x, y) compares; INDEX: token of the index's type, as wide as A in MODE 2.

#if MODE == 2
#define EI ACC16(INDEX)
#define TAKE EI
#else
#define EI ACC(INDEX)
#define TAKE int
#endif
#define BETTER(x, best) (BEATS(x, best) | (((x) != (x)) & ((best) == (best))))

typedef struct {
  E value;
  EI index;  // from the start of the part; -1: nothing seen
} State;

inline State start(void) {
  State s;
  s.value = (E)0;
  s.index = (EI)(-1);
  return s;
}

#if MODE == 0
#define BEST_OF(best, x) (BETTER(x, best) ? (x) : (best))
DEFINE_FOLD_LANES(best_lanes, BEST_OF)

// The best of a dense stretch first, by vectors, and its place only if it is a new one.
inline void fold_block(State* s, const __global MEM(T)* x, long x_step, const __global MEM(T)* y, long y_step, E centre,
                       S p0, long n, long position, int count) {
  long i = 0;
  E best = LOADE(x, 0);
  if (n >= 32) {
    V a = LOADV(x, 0), b = LOADV(x, 16);
    for (i = 32; i + 32 <= n; i += 32) {
      const V v0 = LOADV(x, i), v1 = LOADV(x, i + 16);
      a = BEST_OF(a, v0), b = BEST_OF(b, v1);
    }
    a = BEST_OF(a, b);
    best = best_lanes(a);
  }
  for (; i < n; ++i) {
    const E v = LOADE(x, i);
    best = BEST_OF(best, v);
  }
  if (s->index >= 0 && !BETTER(best, s->value)) return;
  for (i = 0; i + 16 <= n; i += 16) {
    const V v = LOADV(x, i);
    if (any((v == (V)best) | ((v != v) & ((V)best != (V)best)))) break;
  }
  for (; i < n; ++i) {
    const E v = LOADE(x, i);
    if (v == best || (v != v && best != best)) break;
  }
  s->value = best;
  s->index = position + i;
}
#else
inline void fold_block(State* s, const __global MEM(T)* x, long x_step, const __global MEM(T)* y, long y_step, E centre,
                       S p0, long n, long position, int count) {
  for (long i = 0; i < n; ++i) {
    const E v = LOADE(x, i * x_step);
    const EI at = (EI)(position + i);
    const TAKE take = BETTER(v, s->value) | (s->index < (EI)0);
    s->value = take ? v : s->value;
    s->index = take ? at : s->index;
  }
}
#endif

#if MODE != 2
inline void merge(State* s, State other) {
  if (other.index < 0) return;
  const bool same = other.value == s->value || (other.value != other.value && s->value != s->value);
  if (s->index < 0 || BETTER(other.value, s->value) || (same && other.index < s->index)) *s = other;
}
inline State load_part(const __global MEM(P0)* part0, const __global MEM(P1)* part1, long from, long n) {
  State s;
  s.value = *part0;
  s.index = *part1 + from;
  return s;
}
#endif

inline void finish(State s, __global MEM(O)* out, long out_step, __global MEM(O2)* out2, long out2_step, long total,
                   S p0, S p1, int count) {
#ifdef INDEX_ONLY
  PUT(INDEX, O, out, out_step, s.index);
#else
  PUT(A, O, out, out_step, s.value);
  PUT(INDEX, O2, out2, out2_step, s.index);
#endif
}
inline void store_part(State s, __global MEM(P0)* part0, __global MEM(P1)* part1, int count) {
  PUT_SAME(P0, part0, 1, s.value);
  PUT(INDEX, P1, part1, 1, s.index);
}
