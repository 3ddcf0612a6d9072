// Best-fit blocks with coalescing in one reserved range. The counterpart is arena.h.
#include "arena.h"

#include <sys/mman.h>

#include <iterator>

namespace ng {
namespace {

// Freed blocks from this size up tell the kernel that their pages may be taken when memory is short (MADV_FREE).
// Giving them back at once would cost a page fault for each page of the next allocation.
constexpr uint64_t kLazyReleaseBytes = 2u << 20;

// At a multiple of Arena::kPage.
char* map_range(uint64_t bytes, int protection) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* address = mmap(nullptr, bytes + Arena::kPage, protection, flags, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(address) + Arena::kPage - 1) / Arena::kPage * Arena::kPage);
}

}  // namespace

// Private anonymous memory and not one memfd mapped twice: a range that nobody may read needs nothing behind it, and
// shared memory has no huge pages on most systems, which makes its first touch about ten times slower.
bool Arena::reserve(uint64_t bytes, bool isolated, uint64_t more) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reserved()) return true;
  bytes = bytes / kGranularity * kGranularity;
  const uint64_t begin = (bytes + kPage - 1) / kPage * kPage;
  // Limits on address space (ulimit -v, sanitizers) leave less for ranges, or nothing.
  for (more = more / kPage * kPage;; more = more / 2 / kPage * kPage) {
    char* memory = map_range(begin + more, PROT_READ | PROT_WRITE);
    char* shown = memory != nullptr && isolated ? map_range(begin + more, PROT_NONE) : memory;
    if (shown == nullptr) {
      if (memory != nullptr) munmap(memory, begin + more);
      if (more == 0) return false;
      continue;
    }
    madvise(memory, begin + more, MADV_HUGEPAGE);
    madvise(memory, begin + more, MADV_DONTDUMP);
    // A forked child may not use the chip: without the pages, fork is cheap and the parent pays no copy-on-write.
    if (isolated) madvise(memory, begin + more, MADV_DONTFORK);
    base_ = reinterpret_cast<uintptr_t>(shown);
    distance_ = reinterpret_cast<uintptr_t>(memory) - base_;
    break;
  }
  add_free(0, bytes);
  ranges_begin_ = begin;
  ranges_end_ = begin + more;
  pages_.reset(new std::atomic<bool>[more / kPage]());
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
  if (bytes > size() - used_) return nullptr;
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

// ---------------------------------------------------------------- ranges

void* Arena::reserve_range(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t offset = ranges_begin_;
  for (const auto& range : ranges_) {  // the first gap that is large enough
    if (range.first - offset >= bytes) break;
    offset = range.first + range.second;
  }
  if (bytes == 0 || bytes > ranges_end_ - offset) return nullptr;
  ranges_.emplace(offset, bytes);
  return reinterpret_cast<void*>(base_ + offset);
}

bool Arena::release_range(void* address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(address) - base_);
  if (found == ranges_.end() || found->second != bytes) return false;
  if (check_pages(found->first, bytes, false) != Mapping::kDone) return false;
  ranges_.erase(found);
  return true;
}

// Done if the pages lie in one reserved range and all are mapped, or all are not.
Arena::Mapping Arena::check_pages(uint64_t offset, uint64_t bytes, bool mapped) const {
  auto range = ranges_.upper_bound(offset);
  if (range == ranges_.begin() || bytes == 0 || offset % kPage != 0 || bytes % kPage != 0) return Mapping::kNoRange;
  --range;
  const uint64_t inside = offset - range->first;
  if (inside >= range->second || bytes > range->second - inside) return Mapping::kNoRange;
  for (uint64_t at = offset; at != offset + bytes; at += kPage) {
    if (page(at).load(std::memory_order_relaxed) != mapped) return mapped ? Mapping::kNotMapped : Mapping::kMapped;
  }
  return Mapping::kDone;
}

Arena::Mapping Arena::map(void* address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t offset = reinterpret_cast<uintptr_t>(address) - base_;
  const Mapping possible = check_pages(offset, bytes, false);
  if (possible != Mapping::kDone) return possible;
  if (bytes > size() - used_) return Mapping::kNoMemory;
  used_ += bytes;
  for (uint64_t at = offset; at != offset + bytes; at += kPage)
    page(at).store(true, std::memory_order_relaxed);
  return Mapping::kDone;
}

Arena::Mapping Arena::unmap(void* address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t offset = reinterpret_cast<uintptr_t>(address) - base_;
  const Mapping possible = check_pages(offset, bytes, true);
  if (possible != Mapping::kDone) return possible;
  used_ -= bytes;
  for (uint64_t at = offset; at != offset + bytes; at += kPage)
    page(at).store(false, std::memory_order_relaxed);
  madvise(reinterpret_cast<void*>(base_ + distance_ + offset), bytes, MADV_DONTNEED);
  return Mapping::kDone;
}

bool Arena::mapped(uint64_t offset, uint64_t bytes) const {
  if (offset < ranges_begin_ || offset >= ranges_end_ || bytes > ranges_end_ - offset) return false;
  for (uint64_t at = offset / kPage * kPage; at < offset + bytes; at += kPage) {
    if (!page(at).load(std::memory_order_relaxed)) return false;
  }
  return bytes != 0 || page(offset).load(std::memory_order_relaxed);
}

// ---------------------------------------------------------------- reports

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
  if (offset >= ranges_begin_) return mapped(offset, bytes);
  auto after = allocated_.upper_bound(offset);
  if (after == allocated_.begin()) return false;
  --after;
  return offset - after->first <= after->second && bytes <= after->second - (offset - after->first);
}

}  // namespace ng
