// Philox4x32-10, the counter-based random generator of Salmon et al. (SC 2011): word w of counter c is a function of
// (key, c, w) alone, so any part of a random tensor can be made anywhere. The counter is (c, 0) as two 64-bit numbers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a library border

namespace ng {

class Philox {
 public:
  explicit Philox(uint64_t key) : key_(key) {}

  // The 4 words of each of kLanes counters from `counter` on: out[4 * k + w].
  static constexpr int kLanes = 32;
  __attribute__((noinline)) void block(uint64_t counter, uint32_t* out) const {
    // Each 64-bit lane holds a 32-bit word; its upper half may hold anything, the product takes the lower one.
    Words a[kVectors], b[kVectors], c[kVectors], d[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      a[v] = counter + static_cast<uint64_t>(v * 8) + Words{0, 1, 2, 3, 4, 5, 6, 7};
      b[v] = a[v] >> 32;
      c[v] = d[v] = Words{};
    }
    uint32_t key0 = static_cast<uint32_t>(key_), key1 = static_cast<uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Words p = multiply(a[v], 0xD2511F53u), q = multiply(c[v], 0xCD9E8D57u);
        a[v] = (q >> 32) ^ b[v] ^ key0;
        c[v] = (p >> 32) ^ d[v] ^ key1;
        b[v] = q;
        d[v] = p;
      }
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    for (int v = 0; v < kVectors; ++v) {
      const Words low = (a[v] & 0xffffffffu) | (b[v] << 32), high = (c[v] & 0xffffffffu) | (d[v] << 32);
      const Words first = __builtin_shuffle(low, high, Words{0, 8, 1, 9, 2, 10, 3, 11});
      const Words second = __builtin_shuffle(low, high, Words{4, 12, 5, 13, 6, 14, 7, 15});
      std::memcpy(out + v * 32, &first, sizeof first);
      std::memcpy(out + v * 32 + 16, &second, sizeof second);
    }
  }

  // Words [first, first + n) of the sequence that starts with counter `offset`.
  void words(uint64_t offset, int64_t first, int64_t n, uint32_t* out) const {
    constexpr int kWords = 4 * kLanes;
    uint32_t made[kWords];
    int64_t skip = first % 4;
    for (uint64_t counter = offset + static_cast<uint64_t>(first / 4); n > 0; counter += kLanes) {
      if (skip == 0 && n >= kWords) {
        block(counter, out);
        out += kWords;
        n -= kWords;
        continue;
      }
      block(counter, made);
      const int64_t count = std::min(n, kWords - skip);
      std::copy_n(made + skip, count, out);
      out += count;
      n -= count;
      skip = 0;
    }
  }

 private:
  typedef uint64_t Words __attribute__((vector_size(64)));
  static constexpr int kVectors = kLanes / 8;

  // The lower half of each lane times a constant.
  static Words multiply(Words x, uint32_t by) {
#if defined(__AVX512F__)
    return (Words)_mm512_maskz_mul_epu32(0xff, (__m512i)x, _mm512_set1_epi64(by));
#else
    return (x & 0xffffffffu) * by;
#endif
  }

  uint64_t key_;
};

// 24 random bits as a float in [0, 1); 53 bits of two words, the high one first, as a double.
inline float unit_float(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f; }
inline uint64_t joined(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }
inline double unit_double(uint32_t high, uint32_t low) {
  return static_cast<double>(static_cast<int64_t>(joined(high, low) >> 11)) * 0x1p-53;
}

}  // namespace ng
