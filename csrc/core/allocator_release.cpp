// The slow side of the caching allocator: memory that waits for other streams, memory given back to the device,
// statistics, and the text of an out-of-memory error.
#include <algorithm>

#include "caching_allocator.h"
#include "memory_text.h"

namespace fl {

// ---------------------------------------------------------------- fences

void CachingAllocator::poll_fences() {
  if (fences_.empty()) return;
  polls_skipped_ = 0;
  std::exception_ptr failure;
  fences_.poll([this](Chunk* chunk) { stop_waiting(chunk); }, failure);
  if (failure) std::rethrow_exception(failure);
}

void CachingAllocator::drain_fences() {
  ++ledger_.num_sync_all_streams;
  if (fences_.empty()) return;
  std::exception_ptr failure;
  fences_.drain([this](Chunk* chunk) { stop_waiting(chunk); }, failure);
  if (failure) std::rethrow_exception(failure);
}

// ---------------------------------------------------------------- release

std::vector<Chunk*> CachingAllocator::whole_segments() {
  for (auto& heap : heaps_) {
    if (heap == nullptr) continue;
    flush_quick(*heap);
    flush_recent(*heap);
  }
  std::vector<Chunk*> whole;
  for (Segment* segment : segments_) {
    auto* chunk = static_cast<Chunk*>(segment->first);
    if (chunk->state == Chunk::State::Free && !chunk->is_split()) whole.push_back(chunk);
  }
  return whole;
}

void CachingAllocator::release_segments(const std::vector<Chunk*>& whole) {
  // Free blocks may still be used by work that was queued on their own stream.
  std::set<Stream*> streams;
  for (Chunk* chunk : whole)
    streams.insert(chunk->stream);
  for (Stream* stream : streams)
    stream->synchronize();
  for (Chunk* chunk : whole) {
    auto* segment = static_cast<Segment*>(chunk->segment);
    shelf_of(*heaps_[chunk->stream->id], chunk).erase(chunk);
    segments_.erase(segment);
    recycle_chunk(chunk);
    source_.release(segment);
  }
}

void CachingAllocator::release_cached() {
  release_segments(whole_segments());
  source_.release_idle_arena();
}

// Before the device is asked for more: gives back what has not been used for longest, down to the threshold.
void CachingAllocator::collect_garbage(uint64_t wanted) {
  const double threshold = device_.spec->garbage_collection_threshold;
  if (threshold <= 0.0) return;
  const auto most = static_cast<uint64_t>(threshold * static_cast<double>(source_.limit()));
  uint64_t reserved = source_.reserved();
  if (reserved + wanted <= most) return;
  std::vector<Chunk*> whole = whole_segments();
  std::sort(whole.begin(), whole.end(), [](const Chunk* a, const Chunk* b) { return a->freed_at < b->freed_at; });
  std::vector<Chunk*> oldest;
  for (Chunk* chunk : whole) {
    if (reserved + wanted <= most) break;
    if (static_cast<const Segment*>(chunk->segment)->in_arena) continue;  // stays reserved
    oldest.push_back(chunk);
    reserved -= chunk->size;
    history_.log("garbage collection gives back", chunk->size, chunk->stream);
  }
  release_segments(oldest);
}

void CachingAllocator::empty_cache() {
  check_usable(device_);
  const MemoryHistory::Call call(history_, StackLevel::All);
  fl_status status = FL_STATUS_OK;
  std::string reason;
  try {
    const PlainErrors plain;
    std::lock_guard<SpinLock> lock(lock_);
    drain_fences();
    release_cached();
    return;
  } catch (const Error& error) {
    status = error.status;
    reason = error.what();
  }
  raise(status, reason);
}

// ---------------------------------------------------------------- reports

AllocatorStats CachingAllocator::stats() {
  std::lock_guard<SpinLock> lock(lock_);
  AllocatorStats stats = ledger_.report();
  stats.max_split_size = static_cast<int64_t>(device_.spec->max_split_bytes);
  return stats;
}

void CachingAllocator::reset_accumulated_stats() {
  std::lock_guard<SpinLock> lock(lock_);
  ledger_.reset_accumulated();
}

void CachingAllocator::reset_peak_stats() {
  std::lock_guard<SpinLock> lock(lock_);
  ledger_.reset_peaks();
}

std::vector<SegmentInfo> CachingAllocator::snapshot() {
  std::vector<SegmentInfo> all;
  std::lock_guard<SpinLock> lock(lock_);
  for (const Segment* segment : segments_) {
    SegmentInfo info;
    info.address = segment->begin;
    info.size = segment->bytes;
    info.stream_id = segment->stream->id;
    info.small = segment->small;
    info.arena = segment->in_arena;
    info.stack = history_.stack_of_segment(segment->begin);
    for (const auto* chunk = static_cast<const Chunk*>(segment->first); chunk != nullptr; chunk = chunk->next) {
      const bool pending = chunk->state == Chunk::State::Pending;
      const bool used = pending || chunk->state == Chunk::State::Allocated;
      info.blocks.push_back({chunk->ptr, chunk->size, used ? chunk->requested : 0, used, pending,
                             used ? history_.stack_of(chunk->ptr) : nullptr});
    }
    all.push_back(std::move(info));
  }
  for (const auto& hole : source_.arena_holes()) {
    SegmentInfo info;
    info.address = hole.first;
    info.size = hole.second;
    info.arena = true;
    info.blocks.push_back({hole.first, hole.second, 0, false, false, nullptr});
    all.push_back(std::move(info));
  }
  std::sort(all.begin(), all.end(), [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return all;
}

fl_memory CachingAllocator::locate(void* address) {
  if (device_.has(FL_CAP_POINTERS)) return fl_memory{address, nullptr, 0};
  auto* place = static_cast<char*>(address);
  {
    std::lock_guard<SpinLock> lock(lock_);
    for (const Segment* segment : segments_) {
      if (place < segment->begin || place >= segment->begin + segment->bytes) continue;
      const auto offset = static_cast<uint64_t>(place - static_cast<char*>(segment->base.address));
      return fl_memory{address, segment->base.handle, segment->base.offset + offset};
    }
  }
  raise(FL_STATUS_INVALID_ARGUMENT,
        "an address outside all memory of " + device_label(device_) +
            ": its buffers have no addresses of their own, so tensors over foreign memory cannot be used on it. Copy "
            "the tensor to the device instead.");
}

std::string CachingAllocator::out_of_memory_text(uint64_t bytes, const Stream& stream) {
  uint64_t free = 0, total = device_.total_memory;
  const bool told = device_.adapter->memory_info(device_.ordinal, &free, &total) == FL_STATUS_OK;
  uint64_t largest = 0, allocated = 0, reserved = 0;
  {
    std::lock_guard<SpinLock> lock(lock_);
    history_.note_out_of_memory(bytes, free, stream);
    allocated = static_cast<uint64_t>(ledger_.current(Ledger::kAllocatedBytes));
    reserved = source_.reserved();
    largest = source_.largest_arena_hole();
    for (const Segment* segment : segments_) {
      for (const auto* chunk = static_cast<const Chunk*>(segment->first); chunk != nullptr; chunk = chunk->next) {
        if (chunk->state == Chunk::State::Free || chunk->state == Chunk::State::Quick)
          largest = std::max(largest, chunk->size);
      }
    }
  }
  observe_out_of_memory(device_.index, bytes, allocated, free);
  std::string text = device_label(device_) + " is out of memory. Tried to allocate " + bytes_text(bytes) + "; " +
                     bytes_text(allocated) + " is allocated and " + bytes_text(reserved) +
                     " reserved by this process, ";
  text += told ? bytes_text(free) + " is free of " + bytes_text(total) : "of " + bytes_text(total);
  if (device_.total_memory < total) text += " (this process may use " + bytes_text(device_.total_memory) + ")";
  text += "; the largest free block is " + bytes_text(largest);
  const bool too_large = bytes > source_.max_segment();
  if (device_.max_allocation != 0) text += "; the largest single allocation is " + bytes_text(device_.max_allocation);
  text += ". ";
  if (too_large) {
    text += "The device gives no more than that at once, however much is free: split the tensor.";
  } else if (bytes <= device_.total_memory && reserved - std::min(reserved, allocated) >= bytes) {
    text +=
        "What is reserved lies in pieces: set max_split_bytes, so that large blocks stay whole, or allocate large "
        "tensors first.";
  } else if (device_.total_memory < total) {
    text +=
        "Free tensors that are no longer needed, use a smaller batch, or raise memory_fraction or the memory limit.";
  } else {
    text +=
        "Free tensors that are no longer needed, or use a smaller batch; other processes may hold memory of this chip.";
  }
  return text;
}

}  // namespace fl
