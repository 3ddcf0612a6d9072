// Work splitting over the chip's cores. One place decides when threads pay.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ng {

int cores();  // NINGUANG_THREADS, or the machine's

// body(begin, end) over [0, n); `cost` is rough nanoseconds per item. Below about 20 us of work it runs serially.
template <class Body>
void parallel_for(int64_t n, double cost, const Body& body) {
  if (n <= 0) return;
  const int threads = cores();
  const int64_t useful = static_cast<int64_t>(static_cast<double>(n) * cost / 10000.0);
  const int used = static_cast<int>(std::min<int64_t>({threads, useful, n}));
  if (used <= 1) {
    body(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(used)
  {
    const int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
    const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
    if (begin < end) body(begin, end);
  }
}

}  // namespace ng
