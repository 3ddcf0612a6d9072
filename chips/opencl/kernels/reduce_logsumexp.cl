// log of the sum of exponentials: the largest element so far and the sum of exponentials scaled by it.

typedef struct {
  E largest, sum;
} State;

inline State start(void) {
  State s;
  s.largest = (E)(-INFINITY);
  s.sum = (E)0;
  return s;
}

// An infinity or NaN as the largest must not make inf - inf of all other terms.
inline E shift_of(E largest) { return fabs(largest) < (E)INFINITY ? largest : (E)0; }

inline void merge(State* s, State other) {
  const E largest = LARGER(other.largest, s->largest), by = shift_of(largest);
  const E mine = s->largest == (E)(-INFINITY) ? s->sum : s->sum * exp(shift_of(s->largest) - by);
  const E theirs = other.largest == (E)(-INFINITY) ? other.sum : other.sum * exp(shift_of(other.largest) - by);
  s->largest = largest;
  s->sum = mine + theirs;
}

inline void fold_block(State* s, const __global MEM(T)* x, long x_step, const __global MEM(T)* y, long y_step, E centre,
                       S p0, long n, long position, int count) {
  State block = start();
  long i = 0;
#if MODE == 0
  V best = (V)(-INFINITY);
  for (; i + 16 <= n; i += 16) {
    const V v = LOADV(x, i);
    best = LARGER(v, best);
  }
  block.largest = max_lanes(best);
#endif
  for (; i < n; ++i) {
    const E v = LOADE(x, i * x_step);
    block.largest = LARGER(v, block.largest);
  }
  const E by = shift_of(block.largest);
  i = 0;
#if MODE == 0
  V sum = (V)0;
  for (; i + 16 <= n; i += 16) sum += exp(LOADV(x, i) - by);
  block.sum = sum_lanes(sum);
#endif
  for (; i < n; ++i) block.sum += exp(LOADE(x, i * x_step) - by);
  // Of -inf alone the sum is 0 (or NaN, which stays).
  merge(s, block);
}

inline void finish(State s, __global MEM(O)* out, long out_step, __global MEM(O2)* out2, long out2_step, long total,
                   S p0, S p1, int count) {
  const E value = log(s.sum) + shift_of(s.largest);
  PUT(A, O, out, out_step, value);
}
inline void store_part(State s, __global MEM(P0)* part0, __global MEM(P1)* part1, int count) {
  PUT_SAME(P0, part0, 1, s.largest);
  PUT_SAME(P1, part1, 1, s.sum);
}
#if MODE != 2
inline State load_part(const __global MEM(P0)* part0, const __global MEM(P1)* part1, long from, long n) {
  State s;
  s.largest = *part0;
  s.sum = *part1;
  return s;
}
#endif
