// One reserved address range that is handed out in blocks: a device's memory, or the pinned host memory.
// Isolated: the addresses given out are mapped PROT_NONE, so the host faults if it touches them, and the chip computes
// through a second range at a fixed distance. Pages are committed when they are first written.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace ng {

class Arena {
 public:
  static constexpr uint64_t kGranularity = 512;

  // Reserves `bytes` of address space. False if the system refuses. Once.
  bool reserve(uint64_t bytes, bool isolated);
  bool reserved() const { return size() != 0; }

  void* allocate(uint64_t bytes);  // nullptr if no block is large enough
  bool release(void* address);     // false if `address` was not allocated
  uint64_t used() const;
  uint64_t largest_free() const;

  // Lock-free: the range is fixed once reserved.
  bool contains(const void* address, uint64_t bytes) const {
    const uint64_t size = this->size(), offset = reinterpret_cast<uintptr_t>(address) - base_;
    return offset < size && bytes <= size - offset;
  }
  // True if the bytes lie inside one allocated block. Takes the lock.
  bool allocated(const void* address, uint64_t bytes) const;

  template <class T> T* to_chip(T* address) const {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) + distance_);
  }
  uintptr_t base() const { return base_; }
  uint64_t size() const { return size_.load(std::memory_order_acquire); }

 private:
  using Block = std::pair<uint64_t, uint64_t>;  // (size, offset): ordered by size, then by place

  void add_free(uint64_t offset, uint64_t size);

  uintptr_t base_ = 0;
  uintptr_t distance_ = 0;
  std::atomic<uint64_t> size_{0};  // set last: the other two are read only after it

  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> allocated_;       // offset -> size
  std::map<uint64_t, uint64_t> free_by_offset_;  // offset -> size
  std::set<Block> free_by_size_;
  uint64_t used_ = 0;
};

}  // namespace ng
