// Moves one row of elements between memory of any stride and a dense buffer. See copy.h.
#include <algorithm>
#include <cstring>

#include "copy.h"

namespace ng {
namespace {

template <class U> void gather(const char* src, int64_t stride, int64_t n, void* dst) {
  const U* from = reinterpret_cast<const U*>(src);
  U* to = static_cast<U*>(dst);
  if (stride == 0) {
    std::fill_n(to, n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
  }
}

template <class U> void scatter(const void* src, char* dst, int64_t stride, int64_t n) {
  const U* from = static_cast<const U*>(src);
  U* to = reinterpret_cast<U*>(dst);
  for (int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
}

struct Wide {
  uint64_t low, high;
};

}  // namespace

void gather_row(int size, const char* src, int64_t stride, int64_t n, void* dst) {
  if (stride == 1) {
    std::memcpy(dst, src, size * n);
    return;
  }
  switch (size) {
    case 1: return gather<uint8_t>(src, stride, n, dst);
    case 2: return gather<uint16_t>(src, stride, n, dst);
    case 4: return gather<uint32_t>(src, stride, n, dst);
    case 8: return gather<uint64_t>(src, stride, n, dst);
    default: return gather<Wide>(src, stride, n, dst);
  }
}

void scatter_row(int size, const void* src, char* dst, int64_t stride, int64_t n) {
  if (stride == 1) {
    std::memcpy(dst, src, size * n);
    return;
  }
  switch (size) {
    case 1: return scatter<uint8_t>(src, dst, stride, n);
    case 2: return scatter<uint16_t>(src, dst, stride, n);
    case 4: return scatter<uint32_t>(src, dst, stride, n);
    case 8: return scatter<uint64_t>(src, dst, stride, n);
    default: return scatter<Wide>(src, dst, stride, n);
  }
}

void widen(ngDataType type, const void* src, float* dst, int64_t n) {
  if (type == NG_FLOAT16) to_float(static_cast<const Half*>(src), dst, n);
  else to_float(static_cast<const BFloat16*>(src), dst, n);
}

void narrow(ngDataType type, const float* src, void* dst, int64_t n) {
  if (type == NG_FLOAT16) from_float(src, static_cast<Half*>(dst), n);
  else from_float(src, static_cast<BFloat16*>(dst), n);
}

}  // namespace ng
