// How a reduction is written. A Fold keeps accumulators for a run of up to kRun neighbouring outputs (structure of
// arrays, in one block of memory) and folds input into them either row by row (many inputs of one output lie dense) or
// by columns (neighbouring outputs lie dense). reduce() (reduce.cpp) finds which way suits the operands, splits the
// work over the cores and brings every layout and 16-bit float type into dense blocks of the computing type.
#pragma once
#include <limits>

#include "elementwise.h"

// Vectors of 64 bytes never cross a library border here.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace ng {

constexpr int64_t kRun = 512;       // most outputs in one run of accumulators
constexpr int64_t kGroup = 8;       // most rows that columns() folds at a time
constexpr int64_t kRowBlock = 4096;  // elements that row() may sum in the narrow type before widening

// All functions of one reduction for one computing type. `accs` is a block of acc_bytes bytes.
struct Fold {
  int64_t acc_bytes;
  ngDataType results[2];  // types that finish() writes
  void (*start)(void* accs, int64_t n);
  // Folds n dense elements into accumulator `slot`; the first has this position along the reduced dims.
  void (*row)(const void* x, int64_t n, int64_t position, void* accs, int64_t slot, const Params& params);
  // Folds rows x n elements, rows `stride` elements apart (at most kGroup of them, at consecutive positions).
  void (*columns)(const void* x, int64_t stride, int64_t rows, int64_t n, int64_t position, void* accs,
                  const Params& params);
  void (*combine)(void* accs, const void* others, int64_t n);  // `others` saw later positions
  // Merges accumulators [width, n) into those that are a multiple of width before them. nullptr: positions matter.
  void (*wrap)(void* accs, int64_t width, int64_t n);
  void (*finish)(const void* accs, int64_t n, int64_t reduced, void* const* results, const Params& params);
};
using Folds = std::array<const Fold*, NG_DATA_TYPE_COUNT>;  // by computing type

// Reduces args.in[0] into args.out[0] (and args.out[1] if there is one), converting results to the outputs' types.
// `cost`: rough nanoseconds per input element on one core.
ngResult reduce(const Args& args, const Folds& folds, double cost, Params& params);

// ---- vectors of the compiler, for float reductions that it may not reorder by itself ----

template <class T> struct Lanes {
  static constexpr int lanes = 64 / sizeof(T);
  typedef T type __attribute__((vector_size(64)));
  static type load(const T* p) {
    type v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
};
template <class T> using Vec = typename Lanes<T>::type;

// Folds n elements with `op` (on vectors and on scalars) starting from `first`; pairwise over 4 vectors of lanes.
template <class T, class Map, class Op> T fold_dense(const T* x, int64_t n, T first, const Map& map, const Op& op) {
  constexpr int L = Lanes<T>::lanes;
  int64_t i = 0;
  T result = first;
  if (n >= 4 * L) {
    Vec<T> a = map(Lanes<T>::load(x)), b = map(Lanes<T>::load(x + L));
    Vec<T> c = map(Lanes<T>::load(x + 2 * L)), d = map(Lanes<T>::load(x + 3 * L));
    for (i = 4 * L; i + 4 * L <= n; i += 4 * L) {
      a = op(a, map(Lanes<T>::load(x + i)));
      b = op(b, map(Lanes<T>::load(x + i + L)));
      c = op(c, map(Lanes<T>::load(x + i + 2 * L)));
      d = op(d, map(Lanes<T>::load(x + i + 3 * L)));
    }
    a = op(op(a, b), op(c, d));
    T lanes[L];
    __builtin_memcpy(lanes, &a, sizeof a);
    for (int width = L / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lanes[k] = op(lanes[k], lanes[k + width]);
    }
    result = op(result, lanes[0]);
  }
  for (; i < n; ++i) result = op(result, map(x[i]));
  return result;
}

// The largest or smallest of n dense floats; NaN if there is one. Two short chains of operations in place of the long
// one that a NaN-aware maximum would be.
template <bool largest, class T, class Map> T extreme_dense(const T* x, int64_t n, const Map& map) {
  constexpr int L = Lanes<T>::lanes;
  T result = map(x[0]);
  int64_t i = 0;
  const auto better = [](auto a, auto b) { return largest ? a > b : a < b; };
  if (n >= 4 * L) {
    Vec<T> best[4];
    for (int v = 0; v < 4; ++v) best[v] = map(Lanes<T>::load(x + v * L));
    auto bad = best[0] != best[0];
    for (i = 0; i + 4 * L <= n; i += 4 * L) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const Vec<T> value = map(Lanes<T>::load(x + i + v * L));
        best[v] = better(value, best[v]) ? value : best[v];
        bad |= value != value;
      }
    }
    for (int v = 1; v < 4; ++v) best[0] = better(best[v], best[0]) ? best[v] : best[0];
    for (int k = 0; k < L; ++k) {
      if (bad[k]) return std::numeric_limits<T>::quiet_NaN();
      result = better(best[0][k], result) ? best[0][k] : result;
    }
  }
  for (; i < n; ++i) {
    const T value = map(x[i]);
    if (value != value) return value;
    result = better(value, result) | (result != result) ? value : result;
  }
  return map(x[0]) != map(x[0]) ? map(x[0]) : result;
}

}  // namespace ng
