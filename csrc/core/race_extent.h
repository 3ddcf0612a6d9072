// The bytes that one operand touches, and whether two operands touch the same ones. Knows no streams; see race.h.
#pragma once
#include <cstdint>

namespace fl {

// Dense runs of bytes at regular distances: dims from the largest stride to the smallest, the last one the dense run
// itself. Strides and sizes are such that no dim can be joined with its neighbour.
struct Extent {
  static constexpr int kMaxDims = 8;
  struct Dim {
    int64_t size;
    int64_t stride;  // bytes
  };
  uintptr_t begin = 0, end = 0;  // end: one past the last byte
  int ndim = 0;                  // dims outside the run; 0: all of begin … end
  int64_t run = 0;               // bytes
  Dim dims[kMaxDims];

  static Extent range(const void* address, uint64_t bytes);
  // strides in elements, never negative. Empty where a size is 0. More dims than kMaxDims after joining: the whole range.
  static Extent tensor(const void* address, int64_t itemsize, int ndim, const int64_t* sizes, const int64_t* strides);
  // The same, then one more dim (index kernels reach along dims that their operand does not show).
  void add_dim(int64_t size, int64_t stride_bytes);

  bool empty() const { return begin == end; }
  bool dense() const { return ndim == 0; }
};

bool meet(const Extent& a, const Extent& b);          // exact, unless both span more than 64 MiB in an irregular pattern
bool covers(const Extent& outer, const Extent& part);  // may be false where the pattern is hard to tell
bool same(const Extent& a, const Extent& b);

}  // namespace fl
