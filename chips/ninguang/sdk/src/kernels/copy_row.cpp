// Moves rows of elements between memory of any stride and a dense buffer. See copy.h.
#include <algorithm>
#include <cstring>

#include "copy.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace ng {
namespace {

struct Wide {
  uint64_t low, high;
};

// Rows of a length known to the compiler, which are the short ones.
template <class U, int columns> void gather_short(const U* from, const Rows& rows, U* to) {
  for (int64_t r = 0; r < rows.count; ++r, from += rows.row_stride, to += columns) {
    for (int c = 0; c < columns; ++c) to[c] = from[c * rows.stride];
  }
}
template <class U, int columns> void scatter_short(const U* from, U* to, const Rows& rows) {
  for (int64_t r = 0; r < rows.count; ++r, to += rows.row_stride, from += columns) {
    for (int c = 0; c < columns; ++c) to[c * rows.stride] = from[c];
  }
}

template <class U> void gather(const char* src, const Rows& rows, void* dst) {
  const U* from = reinterpret_cast<const U*>(src);
  U* to = static_cast<U*>(dst);
  switch (rows.columns) {
    case 1: return gather_short<U, 1>(from, rows, to);
    case 2: return gather_short<U, 2>(from, rows, to);
    case 3: return gather_short<U, 3>(from, rows, to);
    case 4: return gather_short<U, 4>(from, rows, to);
  }
  for (int64_t r = 0; r < rows.count; ++r, from += rows.row_stride, to += rows.columns) {
    if (rows.stride == 0) std::fill_n(to, rows.columns, *from);
    else if (rows.stride == 1) std::memcpy(static_cast<void*>(to), from, rows.columns * sizeof(U));
    else for (int64_t i = 0; i < rows.columns; ++i) to[i] = from[i * rows.stride];
  }
}

template <class U> void scatter(const void* src, char* dst, const Rows& rows) {
  const U* from = static_cast<const U*>(src);
  U* to = reinterpret_cast<U*>(dst);
  switch (rows.columns) {
    case 1: return scatter_short<U, 1>(from, to, rows);
    case 2: return scatter_short<U, 2>(from, to, rows);
    case 3: return scatter_short<U, 3>(from, to, rows);
    case 4: return scatter_short<U, 4>(from, to, rows);
  }
  for (int64_t r = 0; r < rows.count; ++r, to += rows.row_stride, from += rows.columns) {
    if (rows.stride == 1) std::memcpy(static_cast<void*>(to), from, rows.columns * sizeof(U));
    else for (int64_t i = 0; i < rows.columns; ++i) to[i * rows.stride] = from[i];
  }
}

}  // namespace

void gather_rows(int size, const char* src, const Rows& rows, void* dst) {
  switch (size) {
    case 1: return gather<uint8_t>(src, rows, dst);
    case 2: return gather<uint16_t>(src, rows, dst);
    case 4: return gather<uint32_t>(src, rows, dst);
    case 8: return gather<uint64_t>(src, rows, dst);
    default: return gather<Wide>(src, rows, dst);
  }
}

void scatter_rows(int size, const void* src, char* dst, const Rows& rows) {
  switch (size) {
    case 1: return scatter<uint8_t>(src, dst, rows);
    case 2: return scatter<uint16_t>(src, dst, rows);
    case 4: return scatter<uint32_t>(src, dst, rows);
    case 8: return scatter<uint64_t>(src, dst, rows);
    default: return scatter<Wide>(src, dst, rows);
  }
}

#if defined(__AVX512F__)
void stream_row(const void* src, void* dst, int64_t bytes) {
  const char* from = static_cast<const char*>(src);
  char* to = static_cast<char*>(dst);
  const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(to) & 63);
  const int64_t body = (bytes - head) & ~int64_t{63};
  std::memcpy(to, from, head);
  for (int64_t i = head; i < head + body; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
}
void stream_end() { _mm_sfence(); }
#else
void stream_row(const void* src, void* dst, int64_t bytes) { std::memcpy(dst, src, bytes); }
void stream_end() {}
#endif

void widen(ngDataType type, const void* src, float* dst, int64_t n) {
  if (type == NG_FLOAT16) to_float(static_cast<const Half*>(src), dst, n);
  else to_float(static_cast<const BFloat16*>(src), dst, n);
}

void narrow(ngDataType type, const float* src, void* dst, int64_t n) {
  if (type == NG_FLOAT16) from_float(src, static_cast<Half*>(dst), n);
  else from_float(src, static_cast<BFloat16*>(dst), n);
}

}  // namespace ng
