// One reserved address range that is handed out in blocks: a device's memory, or the pinned host memory.
// Isolated: the addresses given out are mapped PROT_NONE, so the host faults if it touches them, and the chip computes
// through a second range at a fixed distance. Pages are committed when they are first written.
// Behind the blocks there may be more address space, for ranges that memory is mapped into page by page; blocks and
// mapped pages together are never more than the arena's bytes.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace ng {

class Arena {
 public:
  static constexpr uint64_t kGranularity = 512;
  static constexpr uint64_t kPage = 2u << 20;  // of ranges
  enum class Mapping { kDone, kNoMemory, kNotMapped, kMapped, kNoRange };

  // Reserves `bytes` of address space, and up to `more` for ranges, as the system allows. False if it refuses. Once.
  bool reserve(uint64_t bytes, bool isolated, uint64_t more = 0);
  bool reserved() const { return size() != 0; }

  void* allocate(uint64_t bytes);  // nullptr if no block is large enough
  bool release(void* address);     // false if `address` was not allocated
  uint64_t used() const;
  uint64_t largest_free() const;

  // Ranges: addresses and bytes are multiples of kPage.
  void* reserve_range(uint64_t bytes);                // nullptr: no address space is left
  bool release_range(void* address, uint64_t bytes);  // false: no such range, or memory is mapped in it
  Mapping map(void* address, uint64_t bytes);
  Mapping unmap(void* address, uint64_t bytes);

  // Lock-free: the range of the blocks is fixed once reserved, and pages have a flag each.
  bool contains(const void* address, uint64_t bytes) const {
    const uint64_t size = this->size(), offset = reinterpret_cast<uintptr_t>(address) - base_;
    return offset < size ? bytes <= size - offset : size != 0 && mapped(offset, bytes);
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
  bool mapped(uint64_t offset, uint64_t bytes) const;
  Mapping check_pages(uint64_t offset, uint64_t bytes, bool mapped) const;
  std::atomic<bool>& page(uint64_t offset) const { return pages_[(offset - ranges_begin_) / kPage]; }

  uintptr_t base_ = 0;
  uintptr_t distance_ = 0;
  uint64_t ranges_begin_ = 0, ranges_end_ = 0;   // offsets
  std::unique_ptr<std::atomic<bool>[]> pages_;  // between them: mapped
  std::atomic<uint64_t> size_{0};               // set last: what is above is read only after it

  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> allocated_;       // offset -> size
  std::map<uint64_t, uint64_t> free_by_offset_;  // offset -> size
  std::set<Block> free_by_size_;
  std::map<uint64_t, uint64_t> ranges_;          // offset -> size
  uint64_t used_ = 0;                            // blocks and mapped pages
};

}  // namespace ng
