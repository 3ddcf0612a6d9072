// The slow side of the caching allocator: memory that waits for other streams, memory given back to the device, and
// statistics.
#include <algorithm>

#include "caching_allocator.h"

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

// Free blocks that are whole segments, or hold whole pages of an expandable one.
std::vector<Chunk*> CachingAllocator::releasable() {
  for (auto& heap : heaps_) {
    if (heap == nullptr) continue;
    flush_quick(*heap);
    flush_recent(*heap);
  }
  std::vector<Chunk*> found;
  for (Segment* segment : segments_) {
    for (auto* chunk = static_cast<Chunk*>(segment->first); chunk != nullptr; chunk = chunk->next) {
      if (releasable_bytes(chunk) != 0) found.push_back(chunk);
      if (!segment->expandable) break;
    }
  }
  return found;
}

uint64_t CachingAllocator::releasable_bytes(const Chunk* chunk) {
  if (chunk->state != Chunk::State::Free) return 0;
  if (static_cast<const Segment*>(chunk->segment)->expandable) return pages_of(chunk).bytes;
  return chunk->is_split() ? 0 : chunk->size;
}

void CachingAllocator::release(const std::vector<Chunk*>& chunks) {
  // Free blocks may still be used by work that was queued on their own stream.
  std::set<Stream*> streams;
  for (Chunk* chunk : chunks)
    streams.insert(chunk->stream);
  for (Stream* stream : streams)
    stream->synchronize();
  for (Chunk* chunk : chunks) {
    auto* segment = static_cast<Segment*>(chunk->segment);
    Heap& heap = *heaps_[chunk->stream->id];
    if (segment->expandable) {
      unmap_pages(heap, chunk);
      release_empty_range(heap, segment);
      continue;
    }
    shelf_of(heap, chunk).erase(chunk);
    segments_.erase(segment);
    recycle_chunk(chunk);
    source_.release(segment);
  }
}

void CachingAllocator::release_cached() {
  release(releasable());
  source_.release_idle_arena();
}

// Before the device is asked for more: gives back what has not been used for longest, down to the threshold.
void CachingAllocator::collect_garbage(uint64_t wanted) {
  const double threshold = device_.spec->garbage_collection_threshold;
  if (threshold <= 0.0) return;
  const auto most = static_cast<uint64_t>(threshold * static_cast<double>(source_.limit()));
  uint64_t reserved = source_.reserved();
  if (reserved + wanted <= most) return;
  std::vector<Chunk*> all = releasable();
  std::sort(all.begin(), all.end(), [](const Chunk* a, const Chunk* b) { return a->freed_at < b->freed_at; });
  std::vector<Chunk*> oldest;
  for (Chunk* chunk : all) {
    if (reserved + wanted <= most) break;
    if (static_cast<const Segment*>(chunk->segment)->in_arena) continue;  // stays reserved
    oldest.push_back(chunk);
    history_.log("garbage collection gives back", releasable_bytes(chunk), chunk->stream);
    reserved -= releasable_bytes(chunk);
  }
  release(oldest);
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

SegmentInfo CachingAllocator::describe(const Segment& segment, void* begin) {
  SegmentInfo info;
  info.address = begin;
  info.stream_id = segment.stream->id;
  info.small = segment.small;
  info.arena = segment.in_arena;
  info.expandable = segment.expandable;
  info.stack = history_.stack_of_segment(begin);
  return info;
}

std::vector<SegmentInfo> CachingAllocator::snapshot() {
  std::vector<SegmentInfo> all;
  std::lock_guard<SpinLock> lock(lock_);
  for (const Segment* segment : segments_) {
    bool open = false;  // of an expandable segment, each part with memory is shown as a segment
    for (const auto* chunk = static_cast<const Chunk*>(segment->first); chunk != nullptr; chunk = chunk->next) {
      if (chunk->state == Chunk::State::Unmapped) {
        open = false;
        continue;
      }
      if (!open) all.push_back(describe(*segment, chunk->ptr));
      open = true;
      const bool pending = chunk->state == Chunk::State::Pending;
      const bool used = pending || chunk->state == Chunk::State::Allocated;
      all.back().blocks.push_back({chunk->ptr, chunk->size, used ? chunk->requested : 0, used, pending,
                                   used ? history_.stack_of(chunk->ptr) : nullptr});
      all.back().size += chunk->size;
    }
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

}  // namespace fl
