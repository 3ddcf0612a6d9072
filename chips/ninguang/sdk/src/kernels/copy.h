// Moving and converting elements: what the drivers of elementwise ops and reductions need of copy.cpp and copy_row.cpp.
#pragma once
#include "elementwise.h"

namespace ng {

inline bool is_16_bit_float(ngDataType type) { return type == NG_FLOAT16 || type == NG_BFLOAT16; }

// n elements of `size` bytes (1, 2, 4, 8, 16), `stride` elements apart in memory (0: repeated), to or from a dense row.
void gather_row(int size, const char* src, int64_t stride, int64_t n, void* dst);
void scatter_row(int size, const void* src, char* dst, int64_t stride, int64_t n);

// Dense rows of a 16-bit float type from and to float.
void widen(ngDataType type, const void* src, float* dst, int64_t n);
void narrow(ngDataType type, const float* src, void* dst, int64_t n);

// The dense loop that converts; 16-bit floats are float on both sides.
Loop conversion(ngDataType to, ngDataType from);

}  // namespace ng
