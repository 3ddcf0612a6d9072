// Best-fit blocks with coalescing in one reserved range. The counterpart is arena.h.
#include "arena.h"

#include <sys/mman.h>

#include <iterator>

namespace ng {
namespace {

// Freed blocks from this size up tell the kernel that their pages may be taken when memory is short (MADV_FREE).
// Giving them back at once would cost a page fault for each page of the next allocation.
constexpr uint64_t kLazyReleaseBytes = 2u << 20;

void* map_range(uint64_t bytes, int protection) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* address = mmap(nullptr, bytes, protection, flags, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

}  // namespace

// Private anonymous memory and not one memfd mapped twice: a range that nobody may read needs nothing behind it, and
// shared memory has no huge pages on most systems, which makes its first touch about ten times slower.
bool Arena::reserve(uint64_t bytes, bool isolated) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reserved()) return true;
  bytes = bytes / kGranularity * kGranularity;
  void* memory = map_range(bytes, PROT_READ | PROT_WRITE);
  if (memory == nullptr) return false;
  madvise(memory, bytes, MADV_HUGEPAGE);
  madvise(memory, bytes, MADV_DONTDUMP);
  void* shown = memory;
  if (isolated) {
    // A forked child may not use the chip: without the pages, fork is cheap and the parent pays no copy-on-write.
    madvise(memory, bytes, MADV_DONTFORK);
    shown = map_range(bytes, PROT_NONE);
    if (shown == nullptr) {
      munmap(memory, bytes);
      return false;
    }
  }
  add_free(0, bytes);
  base_ = reinterpret_cast<uintptr_t>(shown);
  distance_ = reinterpret_cast<uintptr_t>(memory) - base_;
  size_.store(bytes, std::memory_order_release);
  return true;
}

void Arena::add_free(uint64_t offset, uint64_t size) {
  free_by_size_.emplace(size, offset);
  free_by_offset_.emplace(offset, size);
}

void* Arena::allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > size()) return nullptr;
  bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto best = free_by_size_.lower_bound(Block(bytes, 0));
  if (best == free_by_size_.end()) return nullptr;
  const auto [size, offset] = *best;
  allocated_.emplace(offset, bytes);
  free_by_size_.erase(best);
  free_by_offset_.erase(offset);
  if (size > bytes) add_free(offset + bytes, size - bytes);
  used_ += bytes;
  return reinterpret_cast<void*>(base_ + offset);
}

bool Arena::release(void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocated_.find(reinterpret_cast<uintptr_t>(address) - base_);
  if (found == allocated_.end()) return false;
  uint64_t offset = found->first, size = found->second;
  allocated_.erase(found);
  used_ -= size;
  if (size >= kLazyReleaseBytes) {
    constexpr uint64_t page = 4096;
    const uint64_t begin = (offset + page - 1) / page * page, end = (offset + size) / page * page;
    madvise(reinterpret_cast<void*>(base_ + distance_ + begin), end - begin, MADV_FREE);
  }
  const auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_by_size_.erase(Block(before->second, before->first));
      free_by_offset_.erase(before);
    }
  }
  if (next != free_by_offset_.end() && offset + size == next->first) {
    size += next->second;
    free_by_size_.erase(Block(next->second, next->first));
    free_by_offset_.erase(next);
  }
  add_free(offset, size);
  return true;
}

uint64_t Arena::used() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

uint64_t Arena::largest_free() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

bool Arena::allocated(const void* address, uint64_t bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t offset = reinterpret_cast<uintptr_t>(address) - base_;
  auto after = allocated_.upper_bound(offset);
  if (after == allocated_.begin()) return false;
  --after;
  return offset - after->first <= after->second && bytes <= after->second - (offset - after->first);
}

}  // namespace ng
