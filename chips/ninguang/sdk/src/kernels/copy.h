// Moving and converting elements: what the drivers of elementwise ops and reductions need of copy.cpp and copy_row.cpp.
#pragma once
#include "elementwise.h"

namespace ng {

inline bool is_16_bit_float(ngDataType type) { return type == NG_FLOAT16 || type == NG_BFLOAT16; }

// Rows of elements in memory; strides in elements, 0: repeated. In a buffer they lie dense.
struct Rows {
  int64_t count, columns, row_stride, stride;
};
// Elements are of `size` bytes: 1, 2, 4, 8 or 16.
void gather_rows(int size, const char* src, const Rows& rows, void* dst);
void scatter_rows(int size, const void* src, char* dst, const Rows& rows);

// memcpy past the caches, for results too large to stay there: saves reading the lines that are overwritten. dst is
// best aligned to 64 bytes. After the last one, stream_end() makes the writes visible to other cores.
void stream_row(const void* src, void* dst, int64_t bytes);
void stream_end();

// Dense rows of a 16-bit float type from and to float.
void widen(ngDataType type, const void* src, float* dst, int64_t n);
void narrow(ngDataType type, const float* src, void* dst, int64_t n);

// Copies if src, of the same type and sizes, lies transposed to dst and is worth copying tile by tile. True if done.
bool try_transpose(const Tensor& src, const Tensor& dst);

// The dense loop that converts; 16-bit floats are float on both sides.
Loop conversion(ngDataType to, ngDataType from);

}  // namespace ng
