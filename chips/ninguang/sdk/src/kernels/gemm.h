// Blocked matrix product over three pluggable parts: how to pack a, how to pack b, and what to do with a finished
// tile. Matrix multiplication, convolution and attention are all instances. The register tile is gemm_kernel.h.
// The element T is what is packed: float, double, unsigned integers, or BFloat16Pair, whose depth counts pairs.
#pragma once
#include <algorithm>
#include <cstdint>

#include "gemm_kernel.h"
#include "half.h"
#include "parallel.h"
#include "scratch.h"
#include "transpose.h"

namespace ng {

// The element that a storage type is multiplied in.
template <class S>
struct GemmElementOf {
  using type = Compute<S>;
};
template <>
struct GemmElementOf<BFloat16> {
  using type = std::conditional_t<kHasBFloat16, BFloat16Pair, float>;
};
template <class S>
using GemmElement = typename GemmElementOf<S>::type;

// Units of T in a depth of `depth` numbers.
template <class T>
int64_t depth_in(int64_t depth) {
  return std::is_same_v<T, BFloat16Pair> ? (depth + 1) / 2 : depth;
}

struct GemmShape {
  int64_t rows, columns, depth;
};

constexpr int64_t kGemmDepth = 384;      // k per block: a panel of a is 21 KiB and stays in the first-level cache
constexpr int64_t kGemmRowBlock = 1024;  // rows per task, bounds the partial sums
constexpr int64_t kGemmColumnBytes = 1536;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// k is cut in equal blocks of at most kGemmDepth.
inline int64_t gemm_depth_block(int64_t depth) { return divide_up(depth, divide_up(depth, kGemmDepth)); }

// Elements of a packed a: blocks of k, in each the row panels one after the other.
inline int64_t packed_a_size(int64_t rows, int64_t depth) { return rows * depth; }

// pack(dst, row, rows, k, depth): dst[i * rows + r] = a[row + r][k + i].
template <class T, class PackA>
void pack_a(T* packed, int64_t rows, int64_t depth, const PackA& pack, bool parallel) {
  const int64_t block = gemm_depth_block(depth), panels = divide_up(rows, kGemmRows);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * kGemmRows, count = std::min<int64_t>(kGemmRows, rows - row);
      for (int64_t k = 0; k < depth; k += block) {
        const int64_t size = std::min(block, depth - k);
        pack(packed + rows * k + row * size, row, count, k, size);
      }
    }
  };
  if (parallel) {
    parallel_for(panels, 0.5 * kGemmRows * depth, body);
  } else {
    body(0, panels);
  }
}

namespace detail {

// One task: rows [row0, row1) x columns [col0, col1) of the product.
// pack_b(dst, column, columns, k, depth): panels of kGemmColumns columns one after the other, in each
// dst[i * kGemmColumns + c] = b[k + i][column + c], zero for the columns that fill up the last panel.
// finish(row, rows, column, columns, tile, ld_tile): the tile's sums are complete.
template <class T, class PackB, class Finish>
void gemm_task(const T* packed_a, const GemmShape& shape, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
               const PackB& pack_b, const Finish& finish) {
  constexpr int64_t kColumns = kGemmColumns<T>;
  const int64_t block = gemm_depth_block(shape.depth), blocks = divide_up(shape.depth, block);
  const int64_t width = round_up(col1 - col0, kColumns);
  T* panels_b = scratch<T>(kScratchPackB, width * block);
  Sum<T>* sums = blocks > 1 ? scratch<Sum<T>>(kScratchSum, (row1 - row0) * width) : nullptr;
  alignas(64) Sum<T> tile[kGemmRows * kColumns];
  for (int64_t k = 0; k < shape.depth; k += block) {
    const int64_t depth = std::min(block, shape.depth - k);
    pack_b(panels_b, col0, col1 - col0, k, depth);
    const bool first = k == 0, last = k + depth == shape.depth;
    for (int64_t r = row0; r < row1; r += kGemmRows) {
      const int64_t rows = std::min<int64_t>(kGemmRows, shape.rows - r);
      const T* panel_a = packed_a + shape.rows * k + r * depth;
      for (int64_t c = col0; c < col1; c += kColumns) {
        const int64_t columns = std::min(kColumns, col1 - c);
        const int vectors = columns > kLanes<T> ? 2 : 1;
        gemm_kernel<T>(static_cast<int>(rows), vectors, true)(depth, panel_a, 1, rows, panels_b + (c - col0) * depth,
                                                              kColumns, tile, kColumns);
        if (first && last) {
          finish(r, rows, c, columns, tile, kColumns);
          continue;
        }
        Sum<T>* partial = sums + (r - row0) * width + (c - col0) * rows;
        if (!first) {
          for (int64_t i = 0; i < rows * kColumns; i += kLanes<T>) store(tile + i, load(tile + i) + load(partial + i));
        }
        if (last) {
          finish(r, rows, c, columns, tile, kColumns);
        } else {
          std::memcpy(partial, tile, rows * kColumns * sizeof(Sum<T>));
        }
      }
    }
  }
}

}  // namespace detail

// The product with an already packed a.
template <class T, class PackB, class Finish>
void gemm_packed(const T* packed_a, const GemmShape& shape, const PackB& pack_b, const Finish& finish, bool parallel) {
  constexpr int64_t kColumns = kGemmColumns<T>;
  const int64_t threads = parallel ? cores() : 1;
  int64_t column_block = std::min<int64_t>(kGemmColumnBytes / sizeof(T), round_up(shape.columns, kColumns));
  int64_t column_tasks = divide_up(shape.columns, column_block);
  if (column_tasks % threads != 0) {
    column_tasks = round_up(column_tasks, threads);
    column_block = round_up(divide_up(shape.columns, column_tasks), kColumns);
    column_tasks = divide_up(shape.columns, column_block);
  }
  int64_t row_tasks = divide_up(shape.rows, kGemmRowBlock);
  if (column_tasks < threads) row_tasks = std::max(row_tasks, divide_up(threads, column_tasks));
  const int64_t row_block = round_up(divide_up(shape.rows, row_tasks), kGemmRows);
  row_tasks = divide_up(shape.rows, row_block);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % row_tasks * row_block, column = task / row_tasks * column_block;
      detail::gemm_task(packed_a, shape, row, std::min(shape.rows, row + row_block), column,
                        std::min(shape.columns, column + column_block), pack_b, finish);
    }
  };
  if (!parallel) return body(0, row_tasks * column_tasks);
  parallel_for(row_tasks * column_tasks, 0.01 * row_block * column_block * shape.depth, body);
}

template <class T, class PackA, class PackB, class Finish>
void gemm(const GemmShape& shape, const PackA& pack, const PackB& pack_b, const Finish& finish, bool parallel = true) {
  T* packed = scratch<T>(kScratchPackA, packed_a_size(shape.rows, shape.depth));
  pack_a(packed, shape.rows, shape.depth, pack, parallel);
  gemm_packed(packed, shape, pack_b, finish, parallel);
}

// A matrix in memory, of storage type S, read as computing type T.
template <class S>
struct MatrixView {
  const S* data;
  int64_t row_stride, column_stride;
  const S* at(int64_t row, int64_t column) const { return data + row * row_stride + column * column_stride; }
};

template <class T, class S>
auto make_pack_a(MatrixView<S> a) {
  return [a](T* dst, int64_t row, int64_t rows, int64_t k, int64_t depth) {
    const S* src = a.at(row, k);
    if (a.column_stride == 1) {
      transpose_block(src, a.row_stride, dst, rows, rows, depth);
      return;
    }
    for (int64_t i = 0; i < depth; ++i, src += a.column_stride) {
      for (int64_t r = 0; r < rows; ++r) dst[i * rows + r] = static_cast<T>(src[r * a.row_stride]);
    }
  };
}

template <class T, class S>
auto make_pack_b(MatrixView<S> b) {
  return [b](T* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    constexpr int64_t kColumns = kGemmColumns<T>;
    const int64_t rest = columns % kColumns, panel_size = depth * kColumns;
    if (rest != 0) std::memset(dst + columns / kColumns * panel_size, 0, panel_size * sizeof(T));
    if (b.column_stride != 1 && b.row_stride == 1) {
      for (int64_t c = 0; c < columns; c += kColumns, dst += panel_size) {
        transpose_block(b.at(k, column + c), b.column_stride, dst, kColumns, std::min(kColumns, columns - c), depth);
      }
      return;
    }
    // Row by row over all panels: memory is read in long runs.
    const S* src = b.at(k, column);
    for (int64_t i = 0; i < depth; ++i, src += b.row_stride, dst += kColumns) {
      T* to = dst;
      for (int64_t c = 0; c < columns; c += kColumns, to += panel_size) {
        const int64_t count = std::min(kColumns, columns - c);
        if (b.column_stride != 1) {
          for (int64_t j = 0; j < count; ++j) to[j] = static_cast<T>(src[(c + j) * b.column_stride]);
          continue;
        }
        if constexpr (std::is_same_v<T, std::remove_const_t<S>>) {
          if (count == kColumns) {
            store(to, load(src + c));
            store(to + kLanes<T>, load(src + c + kLanes<T>));
            continue;
          }
        } else if constexpr (is_half<std::remove_const_t<S>>) {
          to_float(src + c, to, count);
          continue;
        }
        for (int64_t j = 0; j < count; ++j) to[j] = static_cast<T>(src[c + j]);
      }
    }
  };
}

}  // namespace ng
