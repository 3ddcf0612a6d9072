// How a kernel walks rows: the modes that one source is compiled in, for softmax, norms and reductions.
//   MODE 0  rows are dense: sixteen elements of a row at a time, then the rest one by one
//   MODE 1  rows are strided: one by one
//   MODE 2  up to sixteen neighbouring rows at once (their elements lie side by side): E is a vector of rows
// GROUP: a work-group shares a row, element by element, results meet by a tree in local memory (GPUs, mode 1).
// ITEM: neighbouring items take neighbouring rows (GPUs, mode 1). Neither: an item takes a stretch of rows.
// Definitions: A, token of the computing type; T, of what is loaded; D, of what is stored, DA, of what
// D computes in; OPERANDS, DIMS.

#define WIDEN16_b8 convert_uchar16
#define WIDEN16_u8 convert_uchar16
#define WIDEN16_i8 convert_char16
#define WIDEN16_i16 convert_short16
#define WIDEN16_i32 convert_int16
#define WIDEN16_i64 convert_long16
#define WIDEN16_f32 convert_float16
#define WIDEN16_f64 convert_double16

#define VECTOR_u8(n) CAT(uchar, n)
#define VECTOR_i8(n) CAT(char, n)
#define VECTOR_i16(n) CAT(short, n)
#define VECTOR_i32(n) CAT(int, n)
#define VECTOR_i64(n) CAT(long, n)
#define VECTOR_f32(n) CAT(float, n)
#define VECTOR_f64(n) CAT(double, n)

#define S ACC(A)
#define V ACC16(A)
#define LOADV(p, i) CAT(WIDEN16_, A)(LOAD16(T, p, i))
#define LARGER(x, y) ((x) > (y) ? (x) : (y))
#define ADD(x, y) ((x) + (y))

// The sixteen lanes of a vector folded into one value.
#define DEFINE_FOLD_LANES(name, FOLD)         \
  inline S name(V v) {                        \
    CAT(VECTOR_, A)(8) a = FOLD(v.lo, v.hi);  \
    CAT(VECTOR_, A)(4) b = FOLD(a.lo, a.hi);  \
    CAT(VECTOR_, A)(2) c = FOLD(b.lo, b.hi);  \
    return FOLD(c.x, c.y);                    \
  }
DEFINE_FOLD_LANES(sum_lanes, ADD)
DEFINE_FOLD_LANES(max_lanes, LARGER)

// ---- one step of the row loop; `count` rows of MODE 2 exist

#if MODE == 2
#define E V
inline V load_rows(const __global MEM(T)* p, long i, int count) {
  if (count == 16) return LOADV(p, i);
  S lanes[16];
  for (int k = 0; k < 16; ++k) lanes[k] = k < count ? (S)LOAD(T, p, i + k) : (S)0;
  return vload16(0, lanes);
}
#define LOADE(p, i) load_rows(p, i, count)
#ifdef D
inline void store_rows(__global MEM(D)* p, long i, V value, int count) {
  if (count == 16) {
    STORE16(D, p, i, CAT(WIDEN16_, DA)(value));
    return;
  }
  S lanes[16];
  vstore16(value, 0, lanes);
  for (int k = 0; k < count; ++k) STORE(D, p, i + k, CONVERT(A, D, lanes[k]));
}
#define STOREE(p, i, value) store_rows(p, i, value, count)
#endif
#else
#define E S
#define LOADE(p, i) ((S)LOAD(T, p, i))
#define STOREE(p, i, value) STORE(D, p, i, value)
#endif

// ---- which rows, and where a row is

#if defined(GROUP)
#define FIRST_ROW(rows) ((long)get_group_id(0))
#define END_ROW(rows) (rows)
#define ROW_STEP ((long)get_num_groups(0))
#elif defined(ITEM)
#define FIRST_ROW(rows) ((long)get_global_id(0))
#define END_ROW(rows) (rows)
#define ROW_STEP ((long)get_global_size(0))
#else
#define FIRST_ROW(rows) ((long)get_global_id(0) * (rows) / (long)get_global_size(0))
#define END_ROW(rows) (((long)get_global_id(0) + 1) * (rows) / (long)get_global_size(0))
#define ROW_STEP 1
#endif
#define FOR_ROWS(r, rows) for (long r = FIRST_ROW(rows), r##_end = END_ROW(rows); r < r##_end; r += ROW_STEP)

// A row of n elements: i from 0 below VECTOR_END(n) by sixteen, then from FIRST(n) by STEP.
#if defined(GROUP)
#define VECTOR_END(n) 0L
#define FIRST(n) ((long)get_local_id(0))
#define STEP ((long)get_local_size(0))
#elif MODE == 0
#define VECTOR_END(n) ((n) & ~15L)
#define FIRST(n) ((n) & ~15L)
#define STEP 1
#else
#define VECTOR_END(n) 0L
#define FIRST(n) 0L
#define STEP 1
#endif
#define FOR_VECTORS(i, n) for (long i = 0; i < VECTOR_END(n); i += 16)
#define FOR_REST(i, n) for (long i = FIRST(n); i < (n); i += STEP)

#ifdef OPERANDS
// Dims, the last one fastest, with a stride for each operand.
typedef struct {
  long dims, size[DIMS], stride[OPERANDS][DIMS];
} Axes;

inline void offsets_at(const Axes* axes, int dims, long index, long* out) {
  for (int k = 0; k < OPERANDS; ++k) out[k] = 0;
  for (int d = dims - 1; d >= 0; --d) {
    long at = index;
    if (d > 0) {
      index /= axes->size[d];
      at -= index * axes->size[d];
    }
    for (int k = 0; k < OPERANDS; ++k) out[k] += at * axes->stride[k][d];
  }
}

// Declares offset[] (and count) of row r. In MODE 2 r is a block of ROW_BLOCK rows (sixteen) along the last dim.
#if MODE == 2
#ifndef ROW_BLOCK
#define ROW_BLOCK 16
#endif
#define PLACE_ROW(axes, r)                                                                 \
  long offset[OPERANDS];                                                                   \
  const int last_dim = (int)axes.dims - 1;                                                 \
  const long width = axes.size[last_dim], blocks = (width + ROW_BLOCK - 1) / ROW_BLOCK;    \
  const long column = (r) % blocks * ROW_BLOCK, row = (r) / blocks * width + column;       \
  const int count = (int)min((long)ROW_BLOCK, width - column);                             \
  offsets_at(&axes, last_dim, (r) / blocks, offset);                                       \
  for (int k = 0; k < OPERANDS; ++k) offset[k] += column * axes.stride[k][last_dim]
#else
#define PLACE_ROW(axes, r) \
  long offset[OPERANDS];   \
  const long row = r;      \
  const int count = 1;     \
  offsets_at(&axes, (int)axes.dims, row, offset)
#endif
#endif

// ---- values that the items of a group fold together; all items get the result

#ifdef GROUP
#define DEFINE_FOLD_GROUP(name, FOLD)                                     \
  inline S name(S value, __local S* tree) {                               \
    const int id = (int)get_local_id(0);                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                         \
    tree[id] = value;                                                     \
    for (int n = (int)get_local_size(0); n > 1; n = (n + 1) / 2) {        \
      barrier(CLK_LOCAL_MEM_FENCE);                                       \
      const int half_n = (n + 1) / 2;                                     \
      if (id < n - half_n) tree[id] = FOLD(tree[id], tree[id + half_n]);  \
    }                                                                     \
    barrier(CLK_LOCAL_MEM_FENCE);                                         \
    return tree[0];                                                       \
  }
DEFINE_FOLD_GROUP(sum_group, ADD)
DEFINE_FOLD_GROUP(max_group, LARGER)
#define TREE __local S tree[GROUP]
#define SUM_ALL(value) sum_group(value, tree)
#define MAX_ALL(value) max_group(value, tree)
#else
#define TREE
#define SUM_ALL(value) (value)
#define MAX_ALL(value) (value)
#endif
#define IS_LEADER (get_local_id(0) == 0)

// A result at p[0], of MODE 2 `count` results `step` apart. PUT converts from the type of token FROM; PUT_SAME stores
// what TO computes in.
#if MODE == 2
#define PUT(FROM, TO, p, step, value)                                                        \
  {                                                                                          \
    ACC(FROM) lanes[16];                                                                     \
    vstore16(value, 0, lanes);                                                               \
    for (int k = 0; k < count; ++k) STORE(TO, p, k * (step), CONVERT(FROM, TO, lanes[k]));   \
  }
#define PUT_SAME(TO, p, step, value)                         \
  if ((step) == 1 && count == 16) STORE16(TO, p, 0, value);  \
  else PUT(TO, TO, p, step, value)
#else
#define PUT(FROM, TO, p, step, value) STORE(TO, p, 0, CONVERT(FROM, TO, value))
#define PUT_SAME(TO, p, step, value) STORE(TO, p, 0, value)
#endif
