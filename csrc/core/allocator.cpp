// Allocation and freeing of device memory; see caching_allocator.h. What releases memory to the device and what reports
// is in allocator_release.cpp.
#include "caching_allocator.h"

namespace fl {
namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kSmallRequest = 1 * kMiB;  // up to here: small pool
constexpr uint64_t kSmallSegment = 2 * kMiB;
constexpr uint64_t kLargeSegment = 20 * kMiB;   // for requests below kMinOwnSegment
constexpr uint64_t kMinOwnSegment = 10 * kMiB;  // from here: a segment of the request's size
constexpr uint64_t kSegmentRounding = 2 * kMiB;
constexpr uint64_t kMinLargeRest = 1 * kMiB;  // a smaller rest of a large block is not worth a block
constexpr uint32_t kPollEvery = 16;           // allocations served by blocks of the same size
constexpr uint64_t kMostBytes = uint64_t{1} << 62;  // so that rounding does not overflow

uint64_t unit_of(const Device& device) {
  uint64_t unit = 1;
  const uint64_t least = std::max<uint64_t>(device.spec->min_block_bytes, device.alignment);
  while (unit < least)
    unit <<= 1;
  return unit;
}

}  // namespace

Allocator* make_allocator(Device& device) { return new CachingAllocator(device); }

CachingAllocator::CachingAllocator(Device& device)
    : device_(device),
      unit_(unit_of(device)),
      unit_shift_(__builtin_ctzll(unit_)),
      quick_limit_(std::min<uint64_t>(kSmallRequest, kQuickClasses * unit_)),
      history_(device, ledger_),
      oversize_(device.spec->max_split_bytes != 0 ? device.spec->max_split_bytes : ~uint64_t{0}),
      heaps_(kMaxStreams),
      fraction_(device.spec->memory_fraction),
      source_(device, ledger_, history_, oversize_) {}

// ---------------------------------------------------------------- allocate

Block* CachingAllocator::allocate(uint64_t bytes, Stream& stream) {
  check_usable(device_);
  if (stream.device != &device_) {
    raise(FL_STATUS_INVALID_ARGUMENT,
          "memory of " + device_label(device_) + " was asked for on a stream of " + device_label(*stream.device) + ".");
  }
  const bool watched = history_.on() || debugging(kRaceCheck);
  return __builtin_expect(watched, 0) ? allocate_watched(bytes, stream) : allocate_block(bytes, stream);
}

Block* CachingAllocator::allocate_watched(uint64_t bytes, Stream& stream) {
  const MemoryHistory::Call call(history_, StackLevel::State);
  Block* block = allocate_block(bytes, stream);
  history_.note(MemoryAction::Alloc, block->ptr, bytes, block->stream);
  if (debugging(kRaceCheck)) race_allocated(device_.index, block->ptr, block->size, block->stream);
  return block;
}

inline Block* CachingAllocator::allocate_block(uint64_t bytes, Stream& stream) {
  if (bytes - 1 < kMostBytes) {
    std::lock_guard<SpinLock> lock(lock_);
    Heap* heap = heaps_[stream.id].get();
    if (heap != nullptr && (fences_.empty() || ++polls_skipped_ < kPollEvery)) {
      if (Chunk* chunk = take_same(*heap, round_up(bytes, unit_))) return hand_out(chunk, bytes);
    }
  }
  fl_status status = FL_STATUS_OUT_OF_MEMORY;
  std::string reason;
  try {
    const PlainErrors plain;  // the bridge's exception is made after the lock is left
    std::lock_guard<SpinLock> lock(lock_);
    const bool possible =
        bytes <= source_.limit() && (round_up(bytes, unit_) <= source_.max_segment() || source_.page() != 0);
    Chunk* chunk = possible ? allocate_slow(round_up(std::max<uint64_t>(bytes, 1), unit_), stream) : nullptr;
    if (chunk != nullptr) return hand_out(chunk, bytes);
    ++ledger_.num_ooms;
  } catch (const Error& error) {
    status = error.status;
    reason = error.what();
  }
  if (reason.empty()) reason = out_of_memory_text(bytes, stream);
  raise(status, reason);
}

Chunk* CachingAllocator::allocate_slow(uint64_t size, Stream& stream) {
  source_.preallocate();
  poll_fences();
  Heap& heap = heap_of(stream);
  if (Chunk* chunk = take_same(heap, size)) return chunk;
  if (size > quick_limit_) flush_recent(heap);
  if (Chunk* chunk = take_fitting(heap, size)) return chunk;
  if (is_small(size) && heap.num_quick != 0) {
    flush_quick(heap);
    if (Chunk* chunk = take_fitting(heap, size)) return chunk;
  }
  collect_garbage(segment_bytes(size));
  if (Chunk* chunk = take_from_new_segment(segment_bytes(size), size, stream, heap)) return chunk;
  return retry_after_release(size, stream, heap);
}

Chunk* CachingAllocator::retry_after_release(uint64_t size, Stream& stream, Heap& heap) {
  ++ledger_.num_alloc_retries;
  history_.log("releasing the cache to retry", size, &stream);
  drain_fences();
  flush_quick(heap);
  flush_recent(heap);
  if (Chunk* chunk = take_fitting(heap, size)) return chunk;
  release_cached();
  if (Chunk* chunk = take_from_new_segment(segment_bytes(size), size, stream, heap)) return chunk;
  // Where a whole segment does not fit, its smallest form still may.
  const uint64_t less = round_up(size, std::max(kSegmentRounding, unit_));
  if (less < segment_bytes(size)) {
    if (Chunk* chunk = take_from_new_segment(less, size, stream, heap)) return chunk;
  }
  return take_from_new_segment(size, size, stream, heap);
}

// A block that had exactly this size before.
Chunk* CachingAllocator::take_same(Heap& heap, uint64_t size) {
  Chunk* chunk = nullptr;
  if (size <= quick_limit_) {
    Chunk*& head = heap.quick[size >> unit_shift_];
    chunk = head;
    if (chunk == nullptr) return nullptr;
    head = chunk->link;
    --heap.num_quick;
  } else {
    int at = heap.num_recent;
    do {
      if (at == 0) return nullptr;
      chunk = heap.recent[--at];
    } while (chunk->size != size);
    std::copy(heap.recent + at + 1, heap.recent + heap.num_recent, heap.recent + at);
    --heap.num_recent;
  }
  note_split_used(chunk);
  return chunk;
}

Chunk* CachingAllocator::take_fitting(Heap& heap, uint64_t size) {
  Shelf& shelf = is_small(size) ? heap.small : heap.large;
  auto found = shelf.lower_bound(SizeKey{size});
  // The block behind which an expandable segment can grow is the best start of a large one: it comes last.
  const auto can_grow = [](const Chunk* chunk) {
    return chunk->next != nullptr && chunk->next->state == Chunk::State::Unmapped;
  };
  for (auto other = found; other != shelf.end() && can_grow(*found); ++other) {
    if (!can_grow(*other)) found = other;
  }
  if (found == shelf.end()) return nullptr;
  Chunk* chunk = *found;
  const uint64_t max_split = device_.spec->max_split_bytes;
  if (max_split != 0 && !is_small(size) && !static_cast<const Segment*>(chunk->segment)->expandable) {
    // Blocks that may not be split are kept for requests of about their size.
    if (size < max_split && chunk->size >= max_split) return nullptr;
    if (size >= max_split && chunk->size >= size + kLargeSegment) return nullptr;
  }
  shelf.erase(found);
  note_split_used(chunk);
  split(heap, chunk, size);
  return chunk;
}

Chunk* CachingAllocator::take_from_new_segment(uint64_t segment_size, uint64_t size, Stream& stream, Heap& heap) {
  if (source_.page() != 0 && source_.largest_arena_hole() < segment_size) {
    Chunk* chunk = take_from_range(size, stream, heap);
    if (chunk != nullptr || range_of(heap, is_small(size)) != nullptr) return chunk;
  }
  Segment* segment = source_.reserve(segment_size, stream, is_small(size));
  if (segment == nullptr) return nullptr;
  segments_.insert(segment);
  Chunk* chunk = new_chunk(segment, segment->begin, segment->bytes);
  segment->first = chunk;
  split(heap, chunk, size);
  return chunk;
}

uint64_t CachingAllocator::segment_bytes(uint64_t size) const {
  const uint64_t wanted = is_small(size)          ? kSmallSegment
                          : size < kMinOwnSegment ? std::max(kLargeSegment, unit_)
                                                  : round_up(size, std::max(kSegmentRounding, unit_));
  return std::max(size, std::min(wanted, source_.max_segment() & ~(unit_ - 1)));
}

// Cuts the block to `size` if the rest is worth it; the rest becomes a free block.
void CachingAllocator::split(Heap& heap, Chunk* chunk, uint64_t size) {
  const uint64_t rest = chunk->size - size;
  const uint64_t max_split = device_.spec->max_split_bytes;
  const bool any_rest = is_small(size) || static_cast<const Segment*>(chunk->segment)->expandable;
  const bool worth = any_rest ? rest >= unit_ : rest > kMinLargeRest && (max_split == 0 || size < max_split);
  if (!worth) return;
  Chunk* tail = cut(chunk, size);
  tail->state = Chunk::State::Free;
  tail->freed_at = large_frees_;
  shelf_of(heap, tail).insert(tail);
  note_split_free(tail);
}

// Makes two of a block that is on no shelf; returns the second.
Chunk* CachingAllocator::cut(Chunk* chunk, uint64_t size) {
  Chunk* tail = new_chunk(static_cast<Segment*>(chunk->segment), static_cast<char*>(chunk->ptr) + size,
                          chunk->size - size);
  tail->prev = chunk;
  tail->next = chunk->next;
  if (tail->next != nullptr) tail->next->prev = tail;
  chunk->next = tail;
  chunk->size = size;
  return tail;
}

Block* CachingAllocator::hand_out(Chunk* chunk, uint64_t bytes) {
  chunk->state = Chunk::State::Allocated;
  chunk->requested = bytes;
  ledger_.hand_out(chunk->small, static_cast<int64_t>(chunk->size), static_cast<int64_t>(bytes));
  if (__builtin_expect(chunk->size >= oversize_, 0)) ledger_.increase(Ledger::kOversizeAllocation, false, 1);
  return chunk;
}

// ---------------------------------------------------------------- free

void CachingAllocator::free(Block* block) noexcept {
  // In a forked child the lock may be held by a thread that is not here, and the memory is not ours.
  if (block == nullptr || in_bad_fork()) return;
  auto* chunk = static_cast<Chunk*>(block);
  if (__builtin_expect(history_.on() || debugging(kRaceCheck), 0)) {
    free_watched(chunk);
  } else {
    free_block(chunk, false);
  }
}

void CachingAllocator::free_watched(Chunk* chunk) {
  const MemoryHistory::Call call(history_, StackLevel::All);
  history_.note(MemoryAction::FreeRequested, chunk->ptr, chunk->requested, chunk->stream);
  if (debugging(kRaceCheck)) race_freed(device_.index, chunk->ptr);  // before another thread can be given it
  free_block(chunk, true);
}

inline void CachingAllocator::free_block(Chunk* chunk, bool watched) {
  std::lock_guard<SpinLock> lock(lock_);
  ledger_.take_back(chunk->small, static_cast<int64_t>(chunk->size), static_cast<int64_t>(chunk->requested));
  if (__builtin_expect(chunk->size >= oversize_, 0)) ledger_.decrease(Ledger::kOversizeAllocation, false, 1);
  if (__builtin_expect(chunk->uses.empty(), 1)) {
    if (watched) history_.note(MemoryAction::FreeCompleted, chunk->ptr, chunk->requested, chunk->stream);
    make_free(chunk);
  } else {
    defer(chunk);
  }
}

void CachingAllocator::make_free(Chunk* chunk) {
  Heap& heap = *heaps_[chunk->stream->id];
  chunk->state = Chunk::State::Quick;
  if (chunk->size <= quick_limit_) {
    Chunk*& head = heap.quick[chunk->size >> unit_shift_];
    chunk->link = head;
    head = chunk;
    ++heap.num_quick;
  } else {
    keep_recent(heap, chunk);
  }
  note_split_free(chunk);
}

void CachingAllocator::keep_recent(Heap& heap, Chunk* chunk) {
  if (heap.num_recent == kRecent) {
    Chunk* oldest = heap.recent[0];
    std::copy(heap.recent + 1, heap.recent + kRecent, heap.recent);
    --heap.num_recent;
    note_split_used(oldest);
    join_and_shelve(heap, oldest);
  }
  heap.recent[heap.num_recent++] = chunk;
}

// Freed while other streams use it: it stays active until they have passed.
void CachingAllocator::defer(Chunk* chunk) {
  chunk->state = Chunk::State::Pending;
  ledger_.increase(Ledger::kWaiting, chunk->small, 1);
  ledger_.increase(Ledger::kWaitingBytes, chunk->small, static_cast<int64_t>(chunk->size));
  if (exiting.load()) return;  // adapters may be gone, and nobody will want the block
  try {
    for (Stream* stream : chunk->uses)
      fences_.push(*stream, chunk);
  } catch (...) {
    // No host memory to remember what the block waits for: it stays in use for ever.
    ++chunk->fences;
  }
  chunk->uses.clear();
}

void CachingAllocator::stop_waiting(Chunk* chunk) {
  history_.note(MemoryAction::FreeCompleted, chunk->ptr, chunk->requested, chunk->stream);
  ledger_.decrease(Ledger::kWaiting, chunk->small, 1);
  ledger_.decrease(Ledger::kWaitingBytes, chunk->small, static_cast<int64_t>(chunk->size));
  make_free(chunk);
}

Chunk* CachingAllocator::join_and_shelve(Heap& heap, Chunk* chunk) {
  if (chunk->prev != nullptr && chunk->prev->state == Chunk::State::Free) chunk = absorb(heap, chunk->prev, chunk);
  if (chunk->next != nullptr && chunk->next->state == Chunk::State::Free) chunk = absorb(heap, chunk, chunk->next);
  chunk->state = Chunk::State::Free;
  chunk->freed_at = ++large_frees_;
  shelf_of(heap, chunk).insert(chunk);
  note_split_free(chunk);
  return chunk;
}

// Makes one block of two neighbours, of which those in state Free lie on the shelf.
Chunk* CachingAllocator::absorb(Heap& heap, Chunk* left, Chunk* right) {
  for (Chunk* side : {left, right}) {
    if (side->state != Chunk::State::Free) continue;
    note_split_used(side);
    shelf_of(heap, side).erase(side);
    side->state = Chunk::State::Unused;
  }
  left->size += right->size;
  left->next = right->next;
  if (left->next != nullptr) left->next->prev = left;
  recycle_chunk(right);
  return left;
}

void CachingAllocator::flush_quick(Heap& heap) {
  const uint64_t classes = quick_limit_ >> unit_shift_;
  for (uint64_t index = 1; index <= classes && heap.num_quick != 0; ++index) {
    Chunk* chunk = heap.quick[index];
    heap.quick[index] = nullptr;
    while (chunk != nullptr) {
      Chunk* following = chunk->link;
      --heap.num_quick;
      note_split_used(chunk);
      join_and_shelve(heap, chunk);
      chunk = following;
    }
  }
}

void CachingAllocator::flush_recent(Heap& heap) {
  const int count = heap.num_recent;
  heap.num_recent = 0;
  for (int at = 0; at < count; ++at) {  // the oldest first: garbage collection goes by this order
    note_split_used(heap.recent[at]);
    join_and_shelve(heap, heap.recent[at]);
  }
}

void CachingAllocator::record_stream(Block* block, Stream& stream) {
  if (in_bad_fork()) raise_forked();
  auto* chunk = static_cast<Chunk*>(block);
  if (&stream == chunk->stream) return;
  std::lock_guard<SpinLock> lock(lock_);
  for (const Stream* known : chunk->uses) {
    if (known == &stream) return;
  }
  chunk->uses.push_back(&stream);
}

// ---------------------------------------------------------------- helpers

bool CachingAllocator::is_small(uint64_t size) const { return size <= kSmallRequest; }

CachingAllocator::Shelf& CachingAllocator::shelf_of(Heap& heap, const Chunk* chunk) {
  return chunk->small ? heap.small : heap.large;
}

CachingAllocator::Heap& CachingAllocator::heap_of(const Stream& stream) {
  std::unique_ptr<Heap>& heap = heaps_[stream.id];
  if (heap == nullptr) heap = std::make_unique<Heap>();
  return *heap;
}

Chunk* CachingAllocator::new_chunk(Segment* segment, char* begin, uint64_t size) {
  if (unused_chunks_ == nullptr) {
    constexpr int kSlab = 64;
    auto* slab = new Chunk[kSlab];  // for ever
    for (int i = 0; i < kSlab; ++i)
      recycle_chunk(slab + i);
  }
  Chunk* chunk = unused_chunks_;
  unused_chunks_ = chunk->link;
  chunk->ptr = begin;
  chunk->size = size;
  chunk->requested = 0;
  chunk->device = &device_;
  chunk->stream = segment->stream;
  chunk->base = segment->base;
  chunk->segment = segment;
  chunk->small = segment->small;
  chunk->prev = chunk->next = chunk->link = nullptr;
  chunk->fences = 0;
  chunk->freed_at = 0;
  return chunk;
}

void CachingAllocator::recycle_chunk(Chunk* chunk) {
  chunk->state = Chunk::State::Unused;
  chunk->link = unused_chunks_;
  unused_chunks_ = chunk;
}

// Statistics of free blocks that share their segment with others.
void CachingAllocator::note_split_free(const Chunk* chunk) {
  if (!chunk->is_split()) return;
  ledger_.increase(Ledger::kInactiveSplit, chunk->small, 1);
  ledger_.increase(Ledger::kInactiveSplitBytes, chunk->small, static_cast<int64_t>(chunk->size));
}

void CachingAllocator::note_split_used(const Chunk* chunk) {
  if (!chunk->is_split()) return;
  ledger_.decrease(Ledger::kInactiveSplit, chunk->small, 1);
  ledger_.decrease(Ledger::kInactiveSplitBytes, chunk->small, static_cast<int64_t>(chunk->size));
}

}  // namespace fl
