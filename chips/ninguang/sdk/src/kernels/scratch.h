// Temporary memory of kernels: one growing buffer per thread and slot, kept between calls because fresh pages cost
// more than most kernels. A slot is taken by one function at a time; nested users take different slots.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace ng {

enum ScratchSlot {
  kScratchPackA,
  kScratchPackB,
  kScratchSum,      // gemm: partial sums between blocks of k
  kScratchOperand,  // an operand in another type or layout
  kScratchOperand2,
  kScratchOperand3,
  kScratchResult,  // a result before its last conversion
  kScratchResult2,
  kScratchRow,  // per row or per channel intermediates
  kScratchRow2,
  kScratchRow3,
  kScratchSlotCount
};

namespace detail {
class ScratchBuffer {
 public:
  ~ScratchBuffer() { std::free(data_); }
  void* get(size_t bytes) {
    if (bytes > capacity_) grow(bytes);
    return data_;
  }

 private:
  void grow(size_t bytes) {
    constexpr size_t kHuge = size_t{2} << 20;
    const size_t unit = bytes >= kHuge ? kHuge : 4096;
    bytes = (bytes + bytes / 4 + unit - 1) / unit * unit;
    std::free(data_);
    capacity_ = 0;
    data_ = std::aligned_alloc(unit, bytes);
    if (!data_) throw std::bad_alloc();
    if (unit == kHuge) madvise(data_, bytes, MADV_HUGEPAGE);
    capacity_ = bytes;
  }
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

inline void* scratch_bytes(ScratchSlot slot, size_t bytes) {
  static thread_local ScratchBuffer buffers[kScratchSlotCount];
  return buffers[slot].get(bytes);
}
}  // namespace detail

// `count` elements, uninitialised, 64-byte aligned, valid until this thread's next call for the same slot.
template <class T>
T* scratch(ScratchSlot slot, int64_t count) {
  return static_cast<T*>(detail::scratch_bytes(slot, static_cast<size_t>(count) * sizeof(T)));
}

}  // namespace ng
