// Random fills: element i is made from (seed, offset, i) alone, i in row-major order, a block of WORDS words at a time
// (uniops.yaml, category random). One of UNIFORM, NORMAL, EXPONENTIAL, BERNOULLI, BERNOULLI_EACH, RANDOM_INT, DROPOUT
// is defined; T is out's type, WIDE says that an element takes two words. STRIDED: out is walked (index_walk.cl).

#ifdef WIDE
#define ELEMENTS (WORDS / 2)
#else
#define ELEMENTS WORDS
#endif

inline float unit(uint word) { return (float)(int)(word >> 8) * 0x1p-24f; }
inline ulong joined(const uint* words, int i) { return (ulong)words[2 * i] << 32 | words[2 * i + 1]; }

// u in [0, 1) of element i of a block, in the computing type.
#ifdef WIDE
#define UNIT(i) ((ACC(T))(long)(joined(words, i) >> 11) * (ACC(T))0x1p-53)
#else
#define UNIT(i) unit(words[i])
#endif

#if defined(UNIFORM) || defined(NORMAL) || defined(EXPONENTIAL)
#define PARAMS , ACC(T) first, ACC(T) second, ACC(T) third
#elif defined(BERNOULLI)
#define PARAMS , long threshold
#elif defined(BERNOULLI_EACH)
#define PARAMS , IN(P, p)
#elif defined(RANDOM_INT)
#define PARAMS , long low, ulong range, ulong inverse
#else
#define PARAMS , IN(T, self), OUT(b8, mask), long threshold, ACC(T) scale
#endif

#ifdef STRIDED
#define WALK_PARAM , Walk walk
#else
#define WALK_PARAM
#endif

__kernel void random_fill(OUT(T, out), long key, long offset, long numel, long chunk WALK_PARAM PARAMS) {
  OPERAND_OUT(T, out);
  const long blocks = (numel + ELEMENTS - 1) / ELEMENTS;
  long block = get_global_id(0) * chunk;
  const long end = min(block + chunk, blocks);
  if (block >= end) return;
#ifdef BERNOULLI_EACH
  OPERAND_IN(P, p);
#endif
#ifdef DROPOUT
  OPERAND_IN(T, self);
  OPERAND_OUT(b8, mask);
#endif
#ifdef STRIDED
  Cursor c;
  cursor_set(&c, &walk, block * ELEMENTS);
#endif
  for (; block < end; ++block) {
    uint words[WORDS];
    ACC(T) values[ELEMENTS];
    const long at = block * ELEMENTS;
    const int count = (int)min((long)ELEMENTS, numel - at);
    philox((ulong)key, (ulong)offset + (ulong)block * (WORDS / 4), words);
#if defined(UNIFORM)  // from, range, the last number before `to`
#if defined(CPU) && !defined(WIDE)
    for (int v = 0; v < ELEMENTS; v += 16) {
      const float16 u = convert_float16(as_int16(vload16(0, words + v) >> 8)) * 0x1p-24f;
      vstore16(fmin(fma(u, second, first), third), 0, values + v);
    }
#else
    for (int i = 0; i < ELEMENTS; ++i) values[i] = fmin(fma(UNIT(i), second, first), third);
#endif
#elif defined(NORMAL)  // mean, deviation
#ifdef CPU
#ifndef WIDE
    for (int v = 0; v < ELEMENTS; v += 16) {
      const float16 u = convert_float16(as_int16(vload16(0, words + v) >> 8)) * 0x1p-24f;
      const float8 radius = sqrt(-2.0f * log(1.0f - u.even)) * second;
      float16 pair;
      pair.even = first + radius * cospi(2.0f * u.odd);
      pair.odd = first + radius * sinpi(2.0f * u.odd);
      vstore16(pair, 0, values + v);
    }
#else
    for (int v = 0; v < ELEMENTS; v += 8) {
      const ulong8 joint = as_ulong8(rotate(as_ulong8(vload16(0, words + 2 * v)), (ulong8)32));
      const double8 u = convert_double8(as_long8(joint >> 11)) * 0x1p-53;
      const double4 radius = sqrt(-2.0 * log(1.0 - u.even)) * second;
      double8 pair;
      pair.even = first + radius * cospi(2.0 * u.odd);
      pair.odd = first + radius * sinpi(2.0 * u.odd);
      vstore8(pair, 0, values + v);
    }
#endif
#else
    for (int i = 0; i < ELEMENTS; i += 2) {
      const ACC(T) radius = sqrt((ACC(T))-2 * log((ACC(T))1 - UNIT(i))) * second, angle = (ACC(T))2 * UNIT(i + 1);
      values[i] = first + radius * cospi(angle);
      values[i + 1] = first + radius * sinpi(angle);
    }
#endif
#elif defined(EXPONENTIAL)  // rate, the smallest result
#if defined(CPU) && !defined(WIDE)
    for (int v = 0; v < ELEMENTS; v += 16) {
      const float16 u = convert_float16(as_int16(vload16(0, words + v) >> 8)) * 0x1p-24f;
      vstore16(fmax(-log(1.0f - u) / first, second), 0, values + v);
    }
#else
    for (int i = 0; i < ELEMENTS; ++i) values[i] = fmax(-log((ACC(T))1 - UNIT(i)) / first, second);
#endif
#elif defined(BERNOULLI)
    for (int i = 0; i < ELEMENTS; ++i) values[i] = (ACC(T))((long)(words[i] >> 8) < threshold ? 1 : 0);
#elif defined(BERNOULLI_EACH)
    for (int i = 0; i < count; ++i) values[i] = (ACC(T))((ACC(P))unit(words[i]) < LOAD(P, p, at + i) ? 1 : 0);
#elif defined(RANDOM_INT)
    for (int i = 0; i < ELEMENTS; ++i) {
      const ulong word = joined(words, i);
      ulong rest = word;
      if (range != 0) {  // word % range: the estimated quotient is at most 2 too small
        rest = word - mul_hi(word, inverse) * range;
        rest = min(rest, rest - range);  // wraps if it was less
        rest = min(rest, rest - range);
      }
      const long value = (long)((ulong)low + rest);
      values[i] = CONVERT(i64, T, value);
    }
#else
    for (int i = 0; i < count; ++i) {
      const uchar keep = (long)(words[i] >> 8) >= threshold ? 1 : 0;
      mask[at + i] = keep;
      values[i] = LOAD(T, self, at + i) * (keep ? scale : (ACC(T))0);
    }
#endif
#ifdef STRIDED
    for (int i = 0; i < count; ++i) {
      STORE(T, out, c.at[0], values[i]);
      cursor_advance(&c, &walk, 1);
    }
#else
#ifdef CPU
    if (count == ELEMENTS) {
      for (int v = 0; v < ELEMENTS; v += 16) STORE16(T, out, at + v, vload16(0, values + v));
      continue;
    }
#endif
    for (int i = 0; i < count; ++i) STORE(T, out, at + i, values[i]);
#endif
  }
}
