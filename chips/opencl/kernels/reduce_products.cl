// Sums of x and of x * (y - centre): the two sums of batch norm's backward pass (x: the gradient, y: the input).

typedef struct {
  E sum, sum_rest, product, product_rest;
} State;

inline State start(void) {
  State s;
  s.sum = s.sum_rest = s.product = s.product_rest = (E)0;
  return s;
}

#define COMPENSATED_ADD(sum, rest, value)                    \
  {                                                          \
    const E exact = (value) - (rest), next = (sum) + exact;  \
    const E lost = (next - (sum)) - exact;                   \
    rest = lost - lost == (E)0 ? lost : (E)0;                \
    sum = next;                                              \
  }
inline void merge(State* s, State other) {
  COMPENSATED_ADD(s->sum, s->sum_rest, other.sum)
  COMPENSATED_ADD(s->product, s->product_rest, other.product)
}

inline void fold_block(State* s, const __global MEM(T)* x, long x_step, const __global MEM(T)* y, long y_step, E centre,
                       S p0, long n, long position, int count) {
  State block = start();
  long i = 0;
#if MODE == 0
  if (n >= 32) {
    V a = (V)0, b = (V)0, c = (V)0, d = (V)0;
    for (; i + 32 <= n; i += 32) {
      const V v0 = LOADV(x, i), v1 = LOADV(x, i + 16);
      a += v0, b += v1;
      c += v0 * (LOADV(y, i) - centre), d += v1 * (LOADV(y, i + 16) - centre);
    }
    block.sum = sum_lanes(a + b);
    block.product = sum_lanes(c + d);
  }
#endif
  for (; i < n; ++i) {
    const E v = LOADE(x, i * x_step);
    block.sum += v;
    block.product += v * (LOADE(y, i * y_step) - centre);
  }
  merge(s, block);
}

inline void finish(State s, __global MEM(O)* out, long out_step, __global MEM(O2)* out2, long out2_step, long total,
                   S p0, S p1, int count) {
  PUT_SAME(O, out, out_step, s.sum);
  PUT_SAME(O2, out2, out2_step, s.product);
}
inline void store_part(State s, __global MEM(P0)* part0, __global MEM(P1)* part1, int count) {
  PUT_SAME(P0, part0, 1, s.sum);
  PUT_SAME(P1, part1, 1, s.product);
}
#if MODE != 2
inline State load_part(const __global MEM(P0)* part0, const __global MEM(P1)* part1, long from, long n) {
  State s = start();
  s.sum = *part0;
  s.product = *part1;
  return s;
}
#endif
