// The values behind the bits of the two 16-bit float types, on the host.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace ocl {

inline float half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double mantissa = bits & 1023;
  const double magnitude = exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024.0 + mantissa, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

inline float bfloat_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

}  // namespace ocl
