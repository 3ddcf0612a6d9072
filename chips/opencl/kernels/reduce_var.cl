// Mean and sum of squared distances from it, block by block, merged as Chan et al. do: var, var_mean, batch norm.
// Blocks are summed in A; states are kept in B (float64 where the device has it).

#if MODE == 2
#define EB ACC16(B)
#define WIDE(x) CAT(WIDEN16_, B)(x)
#else
#define EB ACC(B)
#define WIDE(x) ((EB)(x))
#endif

typedef struct {
  long count;
  EB mean, squares;
} State;

inline State start(void) {
  State s;
  s.count = 0;
  s.mean = s.squares = (EB)0;
  return s;
}

inline void merge(State* s, State other) {
  if (other.count == 0) return;
  const long total = s->count + other.count;
  const ACC(B) share = (ACC(B))other.count / (ACC(B))total;
  const EB distance = other.mean - s->mean;
  s->mean += distance * share;
  s->squares += other.squares + distance * distance * (share * (ACC(B))s->count);
  s->count = total;
}

// The distances are taken from a value near the block's mean (in dense rows the rounded mean itself), so no digits are
// lost however far the mean is from zero.
inline void fold_block(State* s, const __global MEM(T)* x, long x_step, const __global MEM(T)* y, long y_step, E centre,
                       S p0, long n, long position, int count) {
  E near_mean = LOADE(x, 0), sum = (E)0, squares = (E)0;
  long i = 0;
#if MODE == 0
  if (n >= 32) {
    V a = (V)0, b = (V)0;
    for (i = 0; i + 32 <= n; i += 32) {
      a += LOADV(x, i);
      b += LOADV(x, i + 16);
    }
    near_mean = sum_lanes(a + b) / (S)i;
    a = b = (V)0;
    V c = (V)0, d = (V)0;
    for (i = 0; i + 32 <= n; i += 32) {
      const V v0 = LOADV(x, i) - near_mean, v1 = LOADV(x, i + 16) - near_mean;
      a += v0, b += v1;
      c += v0 * v0, d += v1 * v1;
    }
    sum = sum_lanes(a + b);
    squares = sum_lanes(c + d);
  }
#endif
  for (; i < n; ++i) {
    const E v = LOADE(x, i * x_step) - near_mean;
    sum += v;
    squares += v * v;
  }
  const EB offset = WIDE(sum) / (ACC(B))n;
  State block;
  block.count = n;
  block.mean = WIDE(near_mean) + offset;
  block.squares = WIDE(squares) - WIDE(sum) * offset;
  block.squares = block.squares < (EB)0 ? (EB)0 : block.squares;
  merge(s, block);
}

// p0: correction, p1: take the root
inline void finish(State s, __global MEM(O)* out, long out_step, __global MEM(O2)* out2, long out2_step, long total,
                   S p0, S p1, int count) {
  EB value = s.squares / fmax((ACC(B))0, (ACC(B))total - (ACC(B))p0);
  if (p1 != 0) value = sqrt(value);
  PUT(B, O, out, out_step, value);
#ifdef WITH_MEAN
  PUT(B, O2, out2, out2_step, s.mean);
#endif
}
inline void store_part(State s, __global MEM(P0)* part0, __global MEM(P1)* part1, int count) {
  PUT_SAME(P0, part0, 1, s.squares);
  PUT_SAME(P1, part1, 1, s.mean);
}
#if MODE != 2
inline State load_part(const __global MEM(P0)* part0, const __global MEM(P1)* part1, long from, long n) {
  State s;
  s.count = n;
  s.squares = *part0;
  s.mean = *part1;
  return s;
}
#endif
