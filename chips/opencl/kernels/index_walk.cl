// Walks over operands of one shape (class Walk of ops/index_walk.h), and index operands that add to an offset.
// Definitions wanted: OPERANDS; for the index part also NUM_INDEX (its operands come last) and I, their type.

#define MAX_DIMS 12

typedef struct {
  long ndim, numel;
  long sizes[MAX_DIMS];
  long strides[MAX_DIMS * OPERANDS];
} Walk;

// A place in a walk: its coordinates and each operand's offset there.
typedef struct {
  long position[MAX_DIMS];
  long at[OPERANDS];
} Cursor;

inline void cursor_set(Cursor* c, const Walk* w, long flat) {
  for (int o = 0; o < OPERANDS; ++o) c->at[o] = 0;
  for (int d = (int)w->ndim - 1; d >= 0; --d) {
    const long size = w->sizes[d];
    long place = flat;
    if (d > 0) {
      if (((flat | size) >> 31) == 0) {
        const uint quotient = (uint)flat / (uint)size;
        place = flat - (long)quotient * size;
        flat = quotient;
      } else {
        place = flat % size;
        flat /= size;
      }
    }
    c->position[d] = place;
    for (int o = 0; o < OPERANDS; ++o) c->at[o] += place * w->strides[d * OPERANDS + o];
  }
}

// n elements along the innermost dimension are done; n is at most what was left of it.
inline void cursor_advance(Cursor* c, const Walk* w, long n) {
  int d = (int)w->ndim - 1;
  c->position[d] += n;
  for (int o = 0; o < OPERANDS; ++o) c->at[o] += n * w->strides[d * OPERANDS + o];
  while (d > 0 && c->position[d] == w->sizes[d]) {
    for (int o = 0; o < OPERANDS; ++o) {
      c->at[o] += w->strides[(d - 1) * OPERANDS + o] - w->sizes[d] * w->strides[d * OPERANDS + o];
    }
    c->position[d] = 0;
    c->position[--d] += 1;
  }
}

inline long cursor_left(const Cursor* c, const Walk* w) { return w->sizes[w->ndim - 1] - c->position[w->ndim - 1]; }

#define STEP(w, o) ((w).strides[((w).ndim - 1) * OPERANDS + (o)])

#ifdef NUM_INDEX

#define FIRST_INDEX (OPERANDS - NUM_INDEX)

typedef struct {
  long from_end;
  long extents[NUM_INDEX], strides[NUM_INDEX];
} IndexSet;

#define INDEX_PARAM(k) , const __global MEM(I)*restrict index##k##_base, long index##k##_offset
#define INDEX_POINTER(k) index[k] = index##k##_base + index##k##_offset;

#if NUM_INDEX == 1
#define FOR_INDICES(X) X(0)
#elif NUM_INDEX == 2
#define FOR_INDICES(X) X(0) X(1)
#elif NUM_INDEX == 3
#define FOR_INDICES(X) X(0) X(1) X(2)
#elif NUM_INDEX == 4
#define FOR_INDICES(X) X(0) X(1) X(2) X(3)
#elif NUM_INDEX == 5
#define FOR_INDICES(X) X(0) X(1) X(2) X(3) X(4)
#elif NUM_INDEX == 6
#define FOR_INDICES(X) X(0) X(1) X(2) X(3) X(4) X(5)
#elif NUM_INDEX == 7
#define FOR_INDICES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define FOR_INDICES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#endif

#define INDEX_PARAMS FOR_INDICES(INDEX_PARAM)
#define OPERAND_INDICES            \
  const __global MEM(I)* index[NUM_INDEX]; \
  FOR_INDICES(INDEX_POINTER)

// What index k adds to the offset if its value is `given`. Out of range: adds 0 and sets *bad.
inline long index_part(const IndexSet* set, int k, long given, int* bad) {
  const long extent = set->extents[k];
  const long value = given + (given < 0 && set->from_end ? extent : 0);
  const int outside = (ulong)value >= (ulong)extent;
  *bad |= outside;
  return (outside ? 0 : value) * set->strides[k];
}

#endif
