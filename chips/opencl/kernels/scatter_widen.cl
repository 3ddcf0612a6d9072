// Copies a strided tensor of a half type T into dense floats and back, for sums that are rounded once at the end. Walk
// operands: the tensor, the floats.
#define WIDTH_COPY(name, MOVE)                                             \
  __kernel void name(OUT(T, x), OUT(f32, wide), Walk walk, long chunk) {   \
    OPERAND_OUT(T, x);                                                     \
    OPERAND_OUT(f32, wide);                                                \
    long begin = get_global_id(0) * chunk;                                 \
    const long end = min(begin + chunk, walk.numel);                       \
    if (begin >= end) return;                                              \
    Cursor c;                                                              \
    cursor_set(&c, &walk, begin);                                          \
    while (begin < end) {                                                  \
      const long n = min(cursor_left(&c, &walk), end - begin);             \
      for (long i = 0; i < n; ++i) {                                       \
        const long at = c.at[0] + i * STEP(walk, 0);                       \
        const long wide_at = c.at[1] + i * STEP(walk, 1);                  \
        MOVE;                                                              \
      }                                                                    \
      begin += n;                                                          \
      cursor_advance(&c, &walk, n);                                        \
    }                                                                      \
  }
WIDTH_COPY(widen, wide[wide_at] = LOAD(T, x, at))
WIDTH_COPY(narrow, STORE(T, x, at, wide[wide_at]))
