// What memory a device has, what of it this process may use, and the words for an error where it is not enough.
#include "caching_allocator.h"
#include "make_room.h"
#include "memory_text.h"

namespace fl {
namespace {

// make_allocator() makes no other.
CachingAllocator& allocator_of(Device& device) { return static_cast<CachingAllocator&>(*device.allocator); }

}  // namespace

MemoryInfo memory_info(Device& device) {
  check_usable(device);
  const MemoryInfo info = allocator_of(device).memory_info();
  if (info.device_total != 0) return info;
  uint64_t free = 0, total = 0;
  const fl_status status = device.adapter->memory_info(device.ordinal, &free, &total);
  if (status != FL_STATUS_OK) raise_status(*device.adapter, device.index, status, "memory_info");
  return info;
}

AllocatorSettings allocator_settings(Device& device) { return allocator_of(device).settings(); }

double memory_fraction(Device& device) { return allocator_of(device).fraction(); }

void set_memory_fraction(Device& device, double fraction) {
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    raise(FL_STATUS_INVALID_ARGUMENT, "the memory fraction of " + device_label(device) + " cannot be " +
                                          std::to_string(fraction) + ": expected more than 0 and at most 1.");
  }
  check_usable(device);
  allocator_of(device).set_fraction(fraction);
}

void make_room(Device& device) { device.allocator->empty_cache(); }

std::string memory_words(Device& device) { return allocator_of(device).memory_words(); }

AllocatorSettings CachingAllocator::settings() {
  std::lock_guard<SpinLock> lock(lock_);
  return {device_.spec->prealloc_bytes, unit_, in_bad_fork() || device_.lost() ? 0 : source_.page()};
}

double CachingAllocator::fraction() {
  std::lock_guard<SpinLock> lock(lock_);
  return fraction_;
}

void CachingAllocator::set_fraction(double fraction) {
  const uint64_t capacity = source_.capacity();
  std::lock_guard<SpinLock> lock(lock_);
  fraction_ = fraction;
  source_.set_limit(fraction < 1.0 ? static_cast<uint64_t>(static_cast<double>(capacity) * fraction) : capacity);
}

MemoryInfo CachingAllocator::memory_info() {
  std::lock_guard<SpinLock> lock(lock_);
  return info_under_lock();
}

// device_total is 0 if the adapter does not tell.
MemoryInfo CachingAllocator::info_under_lock() {
  MemoryInfo info;
  uint64_t free = 0, total = 0;
  if (device_.adapter->memory_info(device_.ordinal, &free, &total) == FL_STATUS_OK) {
    info.device_free = free;
    info.device_total = total;
  }
  info.total = source_.limit();
  info.allocated = static_cast<uint64_t>(ledger_.current(Ledger::kAllocatedBytes));
  info.reserved = source_.reserved();
  info.free = std::min(info.device_free, info.total - std::min(info.reserved, info.total));
  return info;
}

std::string CachingAllocator::memory_words() {
  std::unique_lock<SpinLock> lock(lock_, std::defer_lock);
  for (int tries = 0; !lock.try_lock(); ++tries) {
    if (tries == 100) return "";
    std::this_thread::yield();
  }
  const MemoryInfo info = info_under_lock();
  std::string text = bytes_text(info.allocated) + " is allocated and " + bytes_text(info.reserved) +
                     " reserved by this process";
  if (info.device_total == 0) return text + ", of " + bytes_text(info.total);
  text += ", " + bytes_text(info.device_free) + " is free of " + bytes_text(info.device_total);
  if (info.total < info.device_total) text += " (this process may use " + bytes_text(info.total) + ")";
  text += "; " + bytes_text(info.outside()) + " is held outside the pool, by the chip's own libraries and by other "
          "processes";
  return text;
}

uint64_t CachingAllocator::largest_free() {
  std::lock_guard<SpinLock> lock(lock_);
  uint64_t largest = source_.largest_arena_hole();
  for (const Segment* segment : segments_) {
    for (const auto* chunk = static_cast<const Chunk*>(segment->first); chunk != nullptr; chunk = chunk->next) {
      if (chunk->state == Chunk::State::Free || chunk->state == Chunk::State::Quick)
        largest = std::max(largest, chunk->size);
    }
  }
  return largest;
}

std::string CachingAllocator::out_of_memory_text(uint64_t bytes, const Stream& stream) {
  MemoryInfo info;
  {
    std::lock_guard<SpinLock> lock(lock_);
    info = info_under_lock();
    history_.note_out_of_memory(bytes, info.device_free, stream);
  }
  observe_out_of_memory(device_.index, bytes, info.allocated, info.device_free);
  std::string text = device_label(device_) + " is out of memory. Tried to allocate " + bytes_text(bytes) + "; " +
                     memory_words() + "; the largest free block is " + bytes_text(largest_free());
  const bool expandable = source_.page() != 0;
  const bool too_large = bytes > source_.max_segment() && !expandable;
  if (device_.max_allocation != 0) text += "; the largest single allocation is " + bytes_text(device_.max_allocation);
  text += ". ";
  if (too_large) {
    text += "The device gives no more than that at once, however much is free: split the tensor.";
  } else if (bytes <= info.total && info.allocated <= info.total - bytes && info.reserved >= info.allocated + bytes) {
    text += expandable
                ? "What is free lies in pages that other tensors are still in: free those too, or allocate large tensors "
                  "first."
            : device_.spec->expandable_segments
                ? "What is reserved lies in pieces: set max_split_bytes, so that large blocks stay whole, or allocate "
                  "large tensors first."
                : "What is reserved lies in pieces: turn expandable_segments on, or set max_split_bytes, so that large "
                  "blocks stay whole.";
  } else if (info.device_total != 0 && info.outside() >= bytes && info.device_free < bytes) {
    text +=
        "Use a smaller batch, end other processes that use this chip, or lower what its libraries keep for themselves "
        "(the vendor's documentation says how).";
  } else if (info.device_total != 0 && info.total < info.device_total) {
    text +=
        "Free tensors that are no longer needed, use a smaller batch, or raise this process's share of the memory "
        "(memory_fraction, or memory_pool.total_mb of the profile).";
  } else {
    text += "Free tensors that are no longer needed, or use a smaller batch.";
  }
  return text;
}

}  // namespace fl
