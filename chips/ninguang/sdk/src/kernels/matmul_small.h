// Matrix products where packing both sides would cost more than multiplying: tiny ones, and a handful of rows against
// a large matrix, which run at the speed of memory.
#pragma once
#include "gemm.h"
#include "vector_math.h"

namespace ng {

constexpr int64_t kSmallProduct = 64 * 64 * 64;
constexpr int64_t kSkinnyRows = 4;

// Only b is packed; a is read in place. depth <= kGemmDepth.
template <class T, class Finish>
void multiply_small(const MatrixView<T>& a, const MatrixView<T>& b, const GemmShape& s, const Finish& finish) {
  constexpr int64_t kColumns = kGemmColumns<T>;
  T* panel = scratch<T>(kScratchPackB, s.depth * kColumns);
  alignas(64) T tile[kGemmRows * kColumns];
  const auto pack = make_pack_b<T>(b);
  for (int64_t c = 0; c < s.columns; c += kColumns) {
    const int64_t columns = std::min(kColumns, s.columns - c);
    const T* right = panel;
    int64_t ld_right = kColumns;
    if (columns == kColumns && b.column_stride == 1) {
      right = b.at(0, c);
      ld_right = b.row_stride;
    } else {
      pack(panel, c, columns, 0, s.depth);
    }
    for (int64_t r = 0; r < s.rows; r += kGemmRows) {
      const int64_t rows = std::min<int64_t>(kGemmRows, s.rows - r);
      gemm_kernel<T>(static_cast<int>(rows), columns > kLanes<T> ? 2 : 1, false)(
          s.depth, a.at(r, 0), a.row_stride, a.column_stride, right, ld_right, tile, kColumns);
      finish(r, rows, c, columns, tile, kColumns);
    }
  }
}

namespace detail {

// out[r][c] = a[r] . columns[c] for two columns of b that are dense in k; a is dense, [rows][depth].
template <class T, class S, int kRows>
void dot_columns(const T* a, int64_t ld_a, const S* const* columns, int64_t depth, T* out, int64_t ld_out) {
  constexpr int kCount = 2, kLane = kLanes<T>;
  Vector<T> sum[kRows][kCount][2] = {};
  int64_t k = 0;
  const auto step = [&](int64_t at, int part) {
#pragma GCC unroll 2
    for (int c = 0; c < kCount; ++c) {
      const Vector<T> right = load_as(columns[c] + at);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][c][part] += load(a + r * ld_a + at) * right;
    }
  };
  for (; k + 2 * kLane <= depth; k += 2 * kLane) {
    step(k, 0);
    step(k + kLane, 1);
  }
  for (; k + kLane <= depth; k += kLane) step(k, 0);
  if (k < depth) {  // the tail in one step: short rows, as of small linear layers, are all tail
    for (int c = 0; c < kCount; ++c) {
      const Vector<T> right = load_some(columns[c] + k, depth - k);
      for (int r = 0; r < kRows; ++r) sum[r][c][1] += load_some(a + r * ld_a + k, depth - k) * right;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCount; ++c) out[r * ld_out + c] = horizontal_sum<T>(sum[r][c][0] + sum[r][c][1]);
  }
}

template <class T, class S>
void dot_columns(int64_t rows, const T* a, int64_t ld_a, const S* const* columns, int64_t depth, T* out,
                 int64_t ld_out) {
  switch (rows) {
    case 1:
      return dot_columns<T, S, 1>(a, ld_a, columns, depth, out, ld_out);
    case 2:
      return dot_columns<T, S, 2>(a, ld_a, columns, depth, out, ld_out);
    case 3:
      return dot_columns<T, S, 3>(a, ld_a, columns, depth, out, ld_out);
    default:
      return dot_columns<T, S, 4>(a, ld_a, columns, depth, out, ld_out);
  }
}

// sums[r][0 … width) = sum over k of a[r][k] * b[k][…], four rows of b per sweep.
template <class T, class S>
void add_rows(int64_t rows, const T* a, int64_t ld_a, const S* b, int64_t ld_b, int64_t depth, int64_t width, T* sums) {
  constexpr int64_t kSweep = 4;
  std::fill_n(sums, rows * width, T(0));
  for (int64_t k = 0; k < depth; k += kSweep) {
    const int64_t lines = std::min(kSweep, depth - k);
    for (int64_t c = 0; c < width; c += kLanes<T>) {
      const int64_t count = std::min<int64_t>(kLanes<T>, width - c);
      Vector<T> right[kSweep];
      for (int64_t i = 0; i < kSweep; ++i)
        right[i] = i < lines ? load_some(b + (k + i) * ld_b + c, count) : Vector<T>{};
      for (int64_t r = 0; r < rows; ++r) {
        Vector<T> sum = load_some(sums + r * width + c, count);
        for (int64_t i = 0; i < kSweep; ++i) {
          if (i < lines) sum += right[i] * a[r * ld_a + k + i];
        }
        store_some(sums + r * width + c, sum, count);
      }
    }
  }
}

}  // namespace detail

// At most kSkinnyRows rows. write(row, column, columns, sums).
template <class T, class S, class Write>
void multiply_skinny(const MatrixView<S>& a, const MatrixView<S>& b, const GemmShape& s, const Write& write,
                     bool parallel) {
  const int64_t ld = s.depth + 16;  // keeps the rows out of each other's cache sets
  T* left = scratch<T>(kScratchPackA, s.rows * ld);
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t k = 0; k < s.depth; ++k) left[r * ld + k] = static_cast<T>(*a.at(r, k));
  }
  const bool dots = b.row_stride == 1 && s.depth > 1;
  const int64_t block = dots ? 2 : std::min<int64_t>(512, std::max<int64_t>(64, divide_up(s.columns, cores())));
  const auto body = [&](int64_t begin, int64_t end) {
    constexpr int64_t kBuffer = 64;
    T sums_of_dots[kSkinnyRows * kBuffer];
    if (dots) {
      for (int64_t c0 = begin * block; c0 < std::min(end * block, s.columns); c0 += kBuffer) {
        const int64_t width = std::min(kBuffer, std::min(end * block, s.columns) - c0);
        for (int64_t c = 0; c < width; c += 2) {
          // An odd last column is computed twice.
          const int64_t at = c + 2 <= width ? c : std::max<int64_t>(0, width - 2);
          const S* columns[2] = {b.at(0, c0 + at), b.at(0, c0 + std::min(at + 1, width - 1))};
          T pair[kSkinnyRows * 2];
          detail::dot_columns(s.rows, left, ld, columns, s.depth, pair, 2);
          for (int64_t r = 0; r < s.rows; ++r) {
            sums_of_dots[r * kBuffer + at] = pair[r * 2];
            if (at + 1 < width) sums_of_dots[r * kBuffer + at + 1] = pair[r * 2 + 1];
          }
        }
        for (int64_t r = 0; r < s.rows; ++r) write(r, c0, width, sums_of_dots + r * kBuffer);
      }
      return;
    }
    T* sums = scratch<T>(kScratchSum, s.rows * block);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t c0 = i * block, width = std::min(block, s.columns - c0);
      if (b.column_stride == 1) {
        detail::add_rows(s.rows, left, ld, b.at(0, c0), b.row_stride, s.depth, width, sums);
      } else {
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t c = 0; c < width; ++c) {
            T total = 0;
            for (int64_t k = 0; k < s.depth; ++k) total += left[r * ld + k] * static_cast<T>(*b.at(k, c0 + c));
            sums[r * width + c] = total;
          }
        }
      }
      for (int64_t r = 0; r < s.rows; ++r) write(r, c0, width, sums + r * width);
    }
  };
  const int64_t blocks = divide_up(s.columns, block);
  if (!parallel) return body(0, blocks);
  parallel_for(blocks, 0.1 * block * s.depth, body);
}

}  // namespace ng
