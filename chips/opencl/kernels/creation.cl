// Expressions for tensors made of their positions. W: i64 or the widest float, in which values are computed before they
// are cast to T; NUMBER its index: `positions` are the places of the lanes in the output, `n` its length.
struct Attributes {
  ACC(W) a, b;
  long n;
};
#define USE_ATTRIBUTES                                       \
  const ACCV(W) a = attributes.a, b = attributes.b;          \
  const ACCV(i64) n = attributes.n
#define POSITIONS (at + LANE_NUMBERS)

static inline ACCV(W) range(ACCV(W) start, ACCV(W) step, ACCV(i64) position) {
  return start + CONVERTV(i64, W, position) * step;
}
// From each end towards the middle, so that both ends are exact.
static inline ACCV(W) even_steps(ACCV(W) start, ACCV(W) end, ACCV(i64) position, ACCV(i64) n) {
  const ACCV(W) step = n > (ACCV(i64))1 ? (end - start) / CONVERTV(i64, W, n - 1) : (ACCV(W))0;
  const ACCV(W) from_start = start + CONVERTV(i64, W, position) * step;
  const ACCV(W) from_end = end - CONVERTV(i64, W, n - 1 - position) * step;
  return ((position < n / 2) | (n == (ACCV(i64))1)) ? from_start : from_end;
}
