// Philox4x32-10, the counter-based random generator of Salmon et al. (SC 2011): word w of counter c is a function of
// (key, c, w) alone, so any part of a random tensor can be made anywhere. The counter is (c, 0) as two 64-bit numbers.
#pragma once
#include <algorithm>
#include <cstdint>

namespace ng {

class Philox {
 public:
  explicit Philox(uint64_t key) : key_(key) {}

  // The 4 words of each of kLanes counters from `counter` on: out[4 * k + w].
  static constexpr int kLanes = 16;
  __attribute__((noinline)) void block(uint64_t counter, uint32_t* out) const {
    uint32_t a[kLanes], b[kLanes], c[kLanes], d[kLanes];
    for (int k = 0; k < kLanes; ++k) {
      const uint64_t position = counter + static_cast<uint64_t>(k);
      a[k] = static_cast<uint32_t>(position);
      b[k] = static_cast<uint32_t>(position >> 32);
      c[k] = d[k] = 0;
    }
    uint32_t key0 = static_cast<uint32_t>(key_), key1 = static_cast<uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int k = 0; k < kLanes; ++k) {
        const uint64_t p = uint64_t{0xD2511F53u} * a[k], q = uint64_t{0xCD9E8D57u} * c[k];
        a[k] = static_cast<uint32_t>(q >> 32) ^ b[k] ^ key0;
        c[k] = static_cast<uint32_t>(p >> 32) ^ d[k] ^ key1;
        b[k] = static_cast<uint32_t>(q);
        d[k] = static_cast<uint32_t>(p);
      }
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    for (int k = 0; k < kLanes; ++k) {
      out[4 * k] = a[k];
      out[4 * k + 1] = b[k];
      out[4 * k + 2] = c[k];
      out[4 * k + 3] = d[k];
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
  uint64_t key_;
};

// 24 random bits as a float in [0, 1); 53 bits of two words, the high one first, as a double.
inline float unit_float(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f; }
inline uint64_t joined(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }
inline double unit_double(uint32_t high, uint32_t low) {
  return static_cast<double>(static_cast<int64_t>(joined(high, low) >> 11)) * 0x1p-53;
}

}  // namespace ng
