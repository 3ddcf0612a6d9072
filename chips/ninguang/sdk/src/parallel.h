// Work splitting over the chip's cores. One place decides when threads pay; the threads are in parallel.cpp.
#pragma once
#include <algorithm>
#include <cstdint>

namespace ng {

int cores();  // NINGUANG_THREADS, or the machine's

namespace detail {
constexpr int kMaxParts = 1024;
using Part = void (*)(const void* body, int64_t begin, int64_t end);
// Runs `parts` equal parts of [0, n) on up to `threads` threads, the caller among them; returns when all are done.
void run_parts(int64_t n, int parts, int threads, Part part, const void* body);
bool in_part();  // the caller is running a part: no splitting within
}  // namespace detail

// body(begin, end) over [0, n), in disjoint parts that run at the same time; `cost` is rough nanoseconds per item.
// Below about 20 us of work it is one call by the caller. An exception, or a fail() message, of a part is the caller's.
template <class Body>
void parallel_for(int64_t n, double cost, const Body& body) {
  if (n <= 0) return;
  constexpr double kPartNanoseconds = 10000;
  constexpr int kPartsPerThread = 4;  // so that a core that others use too does not keep the rest waiting
  const double useful = static_cast<double>(n) * cost / kPartNanoseconds;
  if (useful < 2 || n < 2 || cores() < 2 || detail::in_part()) {
    body(int64_t{0}, n);
    return;
  }
  const double most = std::min(static_cast<double>(n), std::min(useful, 1.0 * detail::kMaxParts));
  const int parts = std::min(static_cast<int>(most), kPartsPerThread * cores());
  const detail::Part part = [](const void* body, int64_t begin, int64_t end) {
    (*static_cast<const Body*>(body))(begin, end);
  };
  detail::run_parts(n, parts, std::min(parts, cores()), part, &body);
}

}  // namespace ng
