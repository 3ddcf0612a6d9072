// sort and topk along one dimension. Values become unsigned keys that order as PyTorch does (NaN largest, -0 = 0,
// inverted when descending) and travel with their position, which makes every order total: stable for free.
// Definitions: U, the unsigned type of the values' size; KEY_BITS; INFINITY_BITS for floats or SIGNED for signed
// integers. Walk operands: self, values, indices, over all dims but the sorted one.

#define SIGN ((U)((U)1 << (KEY_BITS - 1)))
#define ALL_ONES ((U)~(U)0)

inline U key_of(U bits) {
#ifdef INFINITY_BITS
  const U magnitude = bits & (U)~SIGN;
  const U number = (bits & SIGN) ? (U)~bits : (U)(bits | SIGN);
  const U zero_or_number = magnitude == 0 ? SIGN : number;
  return magnitude > (U)(INFINITY_BITS) ? ALL_ONES : zero_or_number;
#elif defined(SIGNED)
  return bits ^ SIGN;
#else
  return bits;
#endif
}

// Up to 32 bits of key share a word with the position; wider keys stand before it.
#if KEY_BITS <= 32
typedef ulong Item;
#define DIGITS (KEY_BITS / 8)
#define MAKE_ITEM(key, position) ((ulong)(key) << 32 | (ulong)(position))
#define POSITION(item) ((long)((item) & 0xfffffffful))
#define KEY_PART(item) ((U)((item) >> 32))
#define DIGIT(item, d) ((uint)((item) >> (32 + 8 * (d))) & 255u)
#define LESS(a, b) ((a) < (b))
#else
typedef ulong2 Item;
#define DIGITS 8
#define MAKE_ITEM(key, position) ((ulong2)((key), (ulong)(position)))
#define POSITION(item) ((long)(item).y)
#define KEY_PART(item) ((U)(item).x)
#define DIGIT(item, d) ((uint)((item).x >> (8 * (d))) & 255u)
#define LESS(a, b) ((a).x < (b).x || ((a).x == (b).x && (a).y < (b).y))
#endif

#define ITEMS_PARAM(name) __global Item*name##_base, long name##_offset
#define VALUES_IN(name) const __global U*name##_base, long name##_offset
#define VALUES_OUT(name) __global U*name##_base, long name##_offset

typedef struct {
  long size, self_stride, value_stride, index_stride;  // of a row
  long first_row, rows;                                // of this launch
  long keep;                                           // how many of the sorted are written
  long descending;
} Rows;

inline void write_row(const __global Item* sorted, long begin, long end, const __global U* picked, __global U* values,
                      long value_stride, __global long* indices, long index_stride) {
  for (long i = begin; i < end; ++i) {
    values[i * value_stride] = picked[i];
    indices[i * index_stride] = POSITION(sorted[i]);
  }
}
