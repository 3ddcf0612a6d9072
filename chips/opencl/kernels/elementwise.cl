// The kernel of an elementwise operation: `dense` for operands that all lie dense, `strided` for any layout and for
// inputs passed by value, `short_rows` for the same where the last dim is shorter than a vector (in programs of their
// own: compilers take long). ops/elementwise.cpp defines
//   T, TR          the computing type and the result's; TX, TY, TZ: the inputs'
//   ARITY          number of inputs, 0 to 3; MIXED: one of them is bool and T is not
//   EXPRESSION     the result in terms of x, y, z, the attributes a, b, c, d, and `at`, the position of the first lane
//   LANES, NDIM    values at a time; dims that `strided` walks, 0 for `dense`; SHORT_ROWS
//   HAS_ATTRIBUTES, RESULT_IS_MASK, CHECK_DIVISOR (a 0 in an integer y is told to the host)
// A file before this one may define struct Attributes and USE_ATTRIBUTES its own way.
// Each work-item takes `chunk` elements in row-major order: many on a CPU, LANES on a GPU.

#if HAS_ATTRIBUTES
#define ATTRIBUTES , const struct Attributes attributes
#define PASS_ATTRIBUTES , attributes
#ifndef USE_ATTRIBUTES
struct Attributes {
  S a, b, c, d;
};
#define USE_ATTRIBUTES const V a = C(attributes.a), b = C(attributes.b), c = C(attributes.c), d = C(attributes.d)
#endif
#else
#define ATTRIBUTES
#define PASS_ATTRIBUTES
#define USE_ATTRIBUTES
#endif

#if CHECK_DIVISOR
#define CHECK , ERRORS
#define PASS_CHECK , errors_base, errors_offset
#define USE_CHECK OPERAND_ERRORS; if (any(y == C(0))) ERROR_DIVISION(errors)
#else
#define CHECK
#define PASS_CHECK
#define USE_CHECK
#endif

// ---- inputs: a row has a base, a stride, and a value that stands for all if the stride is 0

#if NDIM > 0
struct Layout {
  long size[NDIM];
  long stride[ARITY + 1][NDIM];  // of the output, then of the inputs
  ulong immediate[ARITY + 1];    // values of inputs that are not in memory; an ACC(TYPE) in the first bytes
  int immediates;                // bit k: input k is one, counted from 1
  int dense;                     // bit k: operand k lies dense as a whole
};
#endif

#define KERNEL_INPUT(TYPE, p, k) , IN(TYPE, p)
#define ROW_INPUT(TYPE, p, k) , const __global MEM(TYPE) * p##_row, long p##_stride, ACCV(TYPE) p##_value
#define FETCH_INPUT(TYPE, p, k) const ACCV(TYPE) p = CAT(fetch_, TYPE)(p##_row, p##_stride, p##_value, i, left);
#define PASS_DENSE(TYPE, p, k) , p##_base + p##_offset + begin, 1, (ACCV(TYPE))(ACC(TYPE))0
#define PASS_STRIDED(TYPE, p, k)                                                         \
  , p##_base + p##_offset + position.offset[k], layout.stride[k][NDIM - 1],                       \
      CAT(value_, TYPE)(p##_base + p##_offset + position.offset[k], layout.stride[k][NDIM - 1],   \
                        layout.immediates >> k & 1, layout.immediate[k])

#if ARITY == 0
#define EACH_INPUT(WHAT)
#elif ARITY == 1
#define EACH_INPUT(WHAT) WHAT(TX, x, 1)
#elif ARITY == 2
#define EACH_INPUT(WHAT) WHAT(TX, x, 1) WHAT(TY, y, 2)
#else
#define EACH_INPUT(WHAT) WHAT(TX, x, 1) WHAT(TY, y, 2) WHAT(TZ, z, 3)
#endif

// fetch: elements i … of a row; lanes from `left` on repeat the first. value: the one value of a row of stride 0.
#define DEFINE_INPUT(TYPE)                                                                                          \
  static inline ACCV(TYPE) CAT(fetch_, TYPE)(const __global MEM(TYPE)* row, long stride, ACCV(TYPE) value, long i,  \
                                             int left) {                                                            \
    if (stride == 0) return value;                                                                                  \
    if (stride == 1 && left == LANES) return LOADV(TYPE, row, i);                                                   \
    ACC(TYPE) lane[LANES];                                                                                          \
    ROLLED for (int k = 0; k < LANES; ++k) lane[k] = LOAD(TYPE, row, (i + (k < left ? k : 0)) * stride);            \
    return WIDE(vload)(0, lane);                                                                                    \
  }                                                                                                                 \
  static inline ACCV(TYPE) CAT(value_, TYPE)(const __global MEM(TYPE)* row, long stride, int immediate,             \
                                             ulong bits) {                                                          \
    if (immediate) return (ACCV(TYPE))(*(const ACC(TYPE)*)&bits);                                                   \
    return (ACCV(TYPE))(stride == 0 ? LOAD(TYPE, row, 0) : (ACC(TYPE))0);                                           \
  }
#if ARITY > 0
DEFINE_INPUT(T)
#endif
#if MIXED
DEFINE_INPUT(b8)
#endif

// ---- the work

#if RESULT_IS_MASK
#define RESULT (WIDE(convert_uchar)(EXPRESSION) & (ACCV(b8))(uchar)1)
#else
#define RESULT EXPRESSION
#endif

// `count` elements of one row; `at`: the position of the first in the output.
static inline void run(__global MEM(TR)* out, long out_stride EACH_INPUT(ROW_INPUT), long at, long count
                       ATTRIBUTES CHECK) {
  USE_ATTRIBUTES;
  for (long i = 0; i < count; i += LANES, at += LANES) {
    const int left = (int)min((long)LANES, count - i);
    EACH_INPUT(FETCH_INPUT)
    USE_CHECK;
    const ACCV(TR) result = RESULT;
    if (out_stride == 1 && left == LANES) {
      STOREV(TR, out, i, result);
    } else {
      ACC(TR) lane[LANES];
      WIDE(vstore)(result, 0, lane);
      ROLLED for (int k = 0; k < left; ++k) STORE(TR, out, (i + k) * out_stride, lane[k]);
    }
  }
}

#if NDIM == 0
__kernel void dense(OUT(TR, out) EACH_INPUT(KERNEL_INPUT), long n, long chunk ATTRIBUTES CHECK) {
  const long begin = get_global_id(0) * chunk;
  if (begin >= n) return;
  run(out_base + out_offset + begin, 1 EACH_INPUT(PASS_DENSE), begin, min(chunk, n - begin) PASS_ATTRIBUTES PASS_CHECK);
}

#else
// Where an element is: its place in the dims, and in each operand.
struct Position {
  long index[NDIM];
  long offset[ARITY + 1];
};
static inline void set_position(struct Position* p, const struct Layout* layout, long at) {
  for (int k = 0; k <= ARITY; ++k) p->offset[k] = 0;
  for (int d = NDIM - 1; d >= 0; --d) {
    const long quotient = at / layout->size[d];
    p->index[d] = at - quotient * layout->size[d];
    at = quotient;
    for (int k = 0; k <= ARITY; ++k) p->offset[k] += p->index[d] * layout->stride[k][d];
  }
}
// One step along dim d, and along the dims before it where one is at its end.
static inline void step(struct Position* p, const struct Layout* layout, int d) {
  for (; d >= 0; --d) {
    for (int k = 0; k <= ARITY; ++k) p->offset[k] += layout->stride[k][d];
    if (++p->index[d] < layout->size[d]) break;
    for (int k = 0; k <= ARITY; ++k) p->offset[k] -= p->index[d] * layout->stride[k][d];
    p->index[d] = 0;
  }
}
// From anywhere in a row to the start of the next one.
static inline void next_row(struct Position* p, const struct Layout* layout) {
  for (int k = 0; k <= ARITY; ++k) p->offset[k] -= p->index[NDIM - 1] * layout->stride[k][NDIM - 1];
  p->index[NDIM - 1] = 0;
  step(p, layout, NDIM - 2);
}

#if SHORT_ROWS
// Lanes of one vector may lie in several rows: those of operands that are not dense are fetched from their own places.
#define FETCH_SHORT(TYPE, p, k)                                                                                 \
  const ACCV(TYPE) p =                                                                                          \
      CAT(lanes_, TYPE)(p##_base + p##_offset, at, place[k], (layout.dense >> k & 1) && left == LANES,          \
                        layout.immediates >> k & 1, layout.immediate[k]);
#define DEFINE_LANES(TYPE)                                                                                      \
  static inline ACCV(TYPE) CAT(lanes_, TYPE)(const __global MEM(TYPE)* base, long at, const long* place,        \
                                             int dense, int immediate, ulong bits) {                            \
    if (dense) return LOADV(TYPE, base, at);                                                                    \
    if (immediate) return (ACCV(TYPE))(*(const ACC(TYPE)*)&bits);                                               \
    ACC(TYPE) lane[LANES];                                                                                      \
    ROLLED for (int k = 0; k < LANES; ++k) lane[k] = LOAD(TYPE, base, place[k]);                                \
    return WIDE(vload)(0, lane);                                                                                \
  }
#if ARITY > 0
DEFINE_LANES(T)
#endif
#if MIXED
DEFINE_LANES(b8)
#endif

// The places of `left` elements, to which the position moves on.
static inline void find_places(long place[ARITY + 1][LANES], struct Position* p, const struct Layout* layout,
                               int left) {
  const int columns = (int)layout->size[NDIM - 1], first = (int)p->index[NDIM - 1], end = first + left;
  if (p->index[NDIM - 2] + (end - 1) / columns >= layout->size[NDIM - 2]) {  // another dim moves meanwhile: one by one
    for (int lane = 0; lane < LANES; ++lane) {
      for (int k = 0; k <= ARITY; ++k) place[k][lane] = p->offset[k];
      if (lane + 1 < left || left == LANES) step(p, layout, NDIM - 1);
    }
    return;
  }
  // The half keeps quotients away from whole numbers.
  const WIDE(int) number = min(first + CONVERTV(i64, i32, LANE_NUMBERS), end - 1);
  const WIDE(int) row = WIDE(convert_int)((WIDE(convert_float)(number) + 0.5f) / (float)columns);
  const WIDE(int) column = number - row * columns;
  const int rows = end / columns, rest = end - rows * columns;
  for (int k = 0; k <= ARITY; ++k) {
    const int down = (int)layout->stride[k][NDIM - 2], across = (int)layout->stride[k][NDIM - 1];
    const long start = p->offset[k] - (long)first * across;
    WIDE(vstore)(start + WIDE(convert_long)(row * down + column * across), 0, place[k]);
    p->offset[k] = start + (long)rows * down + (long)rest * across;
  }
  p->index[NDIM - 1] = rest;
  p->index[NDIM - 2] += rows - 1;
  for (int k = 0; k <= ARITY; ++k) p->offset[k] -= layout->stride[k][NDIM - 2];
  step(p, layout, NDIM - 2);
}

__kernel void short_rows(OUT(TR, out) EACH_INPUT(KERNEL_INPUT), long n, long chunk, const struct Layout layout
                         ATTRIBUTES CHECK) {
  OPERAND_OUT(TR, out);
  const long begin = get_global_id(0) * chunk;
  if (begin >= n) return;
  const long end = min(begin + chunk, n);
  USE_ATTRIBUTES;
  struct Position position;
  set_position(&position, &layout, begin);
  for (long at = begin; at < end; at += LANES) {
    const int left = (int)min((long)LANES, end - at);  // the lanes after them repeat the last one
    long place[ARITY + 1][LANES];
    find_places(place, &position, &layout, left);
    EACH_INPUT(FETCH_SHORT)
    USE_CHECK;
    const ACCV(TR) result = RESULT;
    if ((layout.dense & 1) && left == LANES) {
      STOREV(TR, out, at, result);
    } else {
      ACC(TR) lane[LANES];
      WIDE(vstore)(result, 0, lane);
      ROLLED for (int k = 0; k < left; ++k) STORE(TR, out, place[0][k], lane[k]);
    }
  }
}
#else
__kernel void strided(OUT(TR, out) EACH_INPUT(KERNEL_INPUT), long n, long chunk, const struct Layout layout
                      ATTRIBUTES CHECK) {
  long begin = get_global_id(0) * chunk;
  if (begin >= n) return;
  const long end = min(begin + chunk, n);
  struct Position position;
  set_position(&position, &layout, begin);
  while (true) {
    const long count = min(layout.size[NDIM - 1] - position.index[NDIM - 1], end - begin);
    run(out_base + out_offset + position.offset[0], layout.stride[0][NDIM - 1] EACH_INPUT(PASS_STRIDED), begin,
        count PASS_ATTRIBUTES PASS_CHECK);
    begin += count;
    if (begin >= end) break;
    next_row(&position, &layout);
  }
}
#endif
#endif
