// Philox4x32-10. philox(key, counter, words) makes WORDS random words, those of counters counter, counter + 1 …, four
// each: word w of counter c is words[4 * (c - counter) + w]. The upper counter words are 0.
#ifdef CPU
#define WORDS 64

// Each 64-bit lane holds a 32-bit word; its upper half may hold anything, the product takes the lower one.
#define PHILOX_LOW(x) ((x) & 0xfffffffful)
#define PHILOX_ROUND(a, b, c, d)                                                       \
  {                                                                                    \
    const ulong8 p = PHILOX_LOW(a) * 0xD2511F53ul, q = PHILOX_LOW(c) * 0xCD9E8D57ul;   \
    a = (q >> 32) ^ b ^ (ulong)key0;                                                   \
    c = (p >> 32) ^ d ^ (ulong)key1;                                                   \
    b = q;                                                                             \
    d = p;                                                                             \
  }
#define PHILOX_PUT(n, a, b, c, d)                                                                       \
  {                                                                                                     \
    const uint16 low = as_uint16(PHILOX_LOW(a) | (b << 32)), high = as_uint16(PHILOX_LOW(c) | (d << 32)); \
    vstore16((uint16)(low.s01, high.s01, low.s23, high.s23, low.s45, high.s45, low.s67, high.s67), n, words);     \
    vstore16((uint16)(low.s89, high.s89, low.sab, high.sab, low.scd, high.scd, low.sef, high.sef), n + 1, words); \
  }

inline void philox(ulong key, ulong counter, uint* words) {
  ulong8 a0 = counter + (ulong8)(0, 1, 2, 3, 4, 5, 6, 7), a1 = a0 + 8;
  ulong8 b0 = a0 >> 32, b1 = a1 >> 32, c0 = 0, c1 = 0, d0 = 0, d1 = 0;
  uint key0 = (uint)key, key1 = (uint)(key >> 32);
  for (int round = 0; round < 10; ++round) {
    PHILOX_ROUND(a0, b0, c0, d0)
    PHILOX_ROUND(a1, b1, c1, d1)
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  PHILOX_PUT(0, a0, b0, c0, d0)
  PHILOX_PUT(2, a1, b1, c1, d1)
}

#else
#define WORDS 4

inline void philox(ulong key, ulong counter, uint* words) {
  uint a = (uint)counter, b = (uint)(counter >> 32), c = 0, d = 0;
  uint key0 = (uint)key, key1 = (uint)(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint p = a * 0xD2511F53u, q = c * 0xCD9E8D57u;
    const uint p_high = mul_hi(a, 0xD2511F53u), q_high = mul_hi(c, 0xCD9E8D57u);
    a = q_high ^ b ^ key0;
    c = p_high ^ d ^ key1;
    b = q;
    d = p;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}
#endif
