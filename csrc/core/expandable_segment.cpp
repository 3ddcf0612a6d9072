// Segments that grow and shrink page by page, where the adapter has virtual memory (ext_virtual_memory.h): one for each
// stream and pool. Its chunks cover its whole range; those in state Unmapped have no memory.
#include "caching_allocator.h"
#include "race.h"
#include "torch_fl/ext_virtual_memory.h"

namespace fl {
namespace {

constexpr uint64_t kLeastPage = 2u << 20;  // smaller ones are not worth a call of the vendor's driver

const fl_virtual_memory* virtual_memory_of(const fl_adapter& adapter) {
  if (!FL_HAS(&adapter, extensions)) return nullptr;
  for (const fl_extension* each = adapter.extensions; each != nullptr; each = each->next) {
    if (each->type != FL_EXTENSION_VIRTUAL_MEMORY || each->struct_size < sizeof(fl_virtual_memory)) continue;
    const auto* table = reinterpret_cast<const fl_virtual_memory*>(each);
    const bool complete = table->granularity != nullptr && table->range_reserve != nullptr &&
                          table->range_free != nullptr && table->range_map != nullptr && table->range_unmap != nullptr;
    if (complete) return table;
  }
  return nullptr;
}

}  // namespace

// ---------------------------------------------------------------- source

uint64_t SegmentSource::page() {
  if (asked_for_page_) return page_;
  asked_for_page_ = true;
  if (!device_.spec->expandable_segments || !device_.has(FL_CAP_POINTERS)) return 0;
  const fl_virtual_memory* table = virtual_memory_of(*device_.adapter);
  uint64_t granularity = 0;
  if (table == nullptr || table->granularity(device_.ordinal, &granularity) != FL_STATUS_OK) return 0;
  const uint64_t page = std::max({granularity, kLeastPage, uint64_t{device_.alignment}});
  if (granularity == 0 || (page & (page - 1)) != 0) return 0;
  virtual_memory_ = table;
  return page_ = page;
}

Segment* SegmentSource::reserve_range(Stream& stream, bool small) {
  check_usable(device_);
  const uint64_t capacity = this->capacity();
  auto segment = std::make_unique<Segment>();
  segment->stream = &stream;
  segment->small = small;
  segment->expandable = true;
  // Memory may be mapped at both ends of what is in use: a little more than all of it.
  segment->bytes = round_up(capacity + capacity / 8, page());
  void* address = nullptr;
  const fl_status status = virtual_memory_->range_reserve(device_.ordinal, segment->bytes, &address);
  if (status == FL_STATUS_OUT_OF_MEMORY) return nullptr;
  if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "range_reserve");
  segment->begin = static_cast<char*>(address);
  segment->base.address = address;
  ledger_.increase(Ledger::kSegment, small, 1);
  return segment.release();
}

bool SegmentSource::map(Segment& segment, char* begin, uint64_t bytes) {
  if (!fits(bytes)) return false;
  check_usable(device_);
  const fl_status status = virtual_memory_->range_map(device_.ordinal, begin, bytes);
  if (status == FL_STATUS_OUT_OF_MEMORY) return false;
  if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "range_map");
  reserved_ += bytes;
  ++ledger_.num_device_alloc;
  ledger_.increase(Ledger::kReservedBytes, segment.small, static_cast<int64_t>(bytes));
  history_.note(MemoryAction::SegmentMap, begin, bytes, segment.stream);
  return true;
}

void SegmentSource::unmap(Segment& segment, char* begin, uint64_t bytes) {
  if (debugging(kRaceCheck)) race_returned(device_.index, begin, bytes);
  if (!device_.lost()) {
    const fl_status status = virtual_memory_->range_unmap(device_.ordinal, begin, bytes);
    if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "range_unmap");
  }
  reserved_ -= bytes;
  ++ledger_.num_device_free;
  ledger_.decrease(Ledger::kReservedBytes, segment.small, static_cast<int64_t>(bytes));
  history_.note(MemoryAction::SegmentUnmap, begin, bytes, segment.stream);
}

void SegmentSource::release_range(Segment* segment) {
  if (!device_.lost()) {
    const fl_status status = virtual_memory_->range_free(device_.ordinal, segment->begin, segment->bytes);
    if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "range_free");
  }
  ledger_.decrease(Ledger::kSegment, segment->small, 1);
  delete segment;
}

// ---------------------------------------------------------------- allocator

Segment*& CachingAllocator::range_of(Heap& heap, bool small) { return small ? heap.small_range : heap.large_range; }

// A free block of at least this size at a place where the segment has to grow; nullptr: no memory, or no address space.
Chunk* CachingAllocator::take_from_range(uint64_t size, Stream& stream, Heap& heap) {
  Segment*& segment = range_of(heap, is_small(size));
  if (segment == nullptr) {
    segment = source_.reserve_range(stream, is_small(size));
    if (segment == nullptr) return nullptr;
    segments_.insert(segment);
    Chunk* whole = new_chunk(segment, segment->begin, segment->bytes);
    whole->state = Chunk::State::Unmapped;
    segment->first = whole;
  }
  Chunk* chunk = place_to_grow(*segment, size);
  if (chunk != nullptr) chunk = map_from(heap, *segment, chunk, size);
  if (chunk == nullptr) {
    release_empty_range(heap, segment);
    return nullptr;
  }
  shelf_of(heap, chunk).erase(chunk);
  note_split_used(chunk);
  split(heap, chunk, size);
  return chunk;
}

// The chunk from which on `size` bytes are free or without memory, with the least memory missing; then the first.
Chunk* CachingAllocator::place_to_grow(const Segment& segment, uint64_t size) {
  const auto open = [](const Chunk* chunk) {
    return chunk != nullptr && (chunk->state == Chunk::State::Free || chunk->state == Chunk::State::Unmapped);
  };
  Chunk* best = nullptr;
  uint64_t least = ~uint64_t{0};
  for (auto* start = static_cast<Chunk*>(segment.first); start != nullptr; start = start->next) {
    uint64_t found = 0, missing = 0;
    for (const Chunk* chunk = start; open(chunk) && found < size; chunk = chunk->next) {
      if (chunk->state == Chunk::State::Unmapped) {
        missing += std::min(chunk->size, round_up(size - found, source_.page()));
      }
      found += chunk->size;
    }
    if (found < size || missing >= least) continue;
    best = start;
    least = missing;
  }
  return best;
}

// Maps what is missing, and returns the free block that it all has become. What was mapped before memory ran out stays.
Chunk* CachingAllocator::map_from(Heap& heap, Segment& segment, Chunk* chunk, uint64_t size) {
  while (chunk->state == Chunk::State::Unmapped || chunk->size < size) {
    Chunk* empty = chunk->state == Chunk::State::Unmapped ? chunk : chunk->next;
    const uint64_t before = static_cast<uint64_t>(static_cast<char*>(empty->ptr) - static_cast<char*>(chunk->ptr));
    const uint64_t bytes = std::min(empty->size, round_up(size - before, source_.page()));
    if (!source_.map(segment, static_cast<char*>(empty->ptr), bytes)) return nullptr;
    if (bytes < empty->size) cut(empty, bytes)->state = Chunk::State::Unmapped;
    chunk = join_and_shelve(heap, empty);
  }
  return chunk;
}

// The whole pages of a free block.
CachingAllocator::Pages CachingAllocator::pages_of(const Chunk* chunk) {
  char* const origin = static_cast<const Segment*>(chunk->segment)->begin;  // pages are counted from here
  const uint64_t page = source_.page();
  const auto begin = static_cast<uint64_t>(static_cast<char*>(chunk->ptr) - origin);
  const uint64_t first = round_up(begin, page), last = (begin + chunk->size) & ~(page - 1);
  return first < last ? Pages{origin + first, last - first} : Pages{nullptr, 0};
}

// Takes the memory of a free block's whole pages away; no queued work may use them any more.
void CachingAllocator::unmap_pages(Heap& heap, Chunk* chunk) {
  const Pages pages = pages_of(chunk);
  source_.unmap(*static_cast<Segment*>(chunk->segment), pages.begin, pages.bytes);
  shelf_of(heap, chunk).erase(chunk);
  note_split_used(chunk);
  const auto put_back = [&](Chunk* rest) {
    rest->state = Chunk::State::Free;
    rest->freed_at = chunk->freed_at;
    shelf_of(heap, rest).insert(rest);
    note_split_free(rest);
  };
  Chunk* empty = chunk;
  if (pages.begin != chunk->ptr) {
    empty = cut(chunk, static_cast<uint64_t>(pages.begin - static_cast<char*>(chunk->ptr)));
    put_back(chunk);
  }
  if (pages.bytes != empty->size) put_back(cut(empty, pages.bytes));
  empty->state = Chunk::State::Unmapped;
  if (empty->prev != nullptr && empty->prev->state == Chunk::State::Unmapped) empty = absorb(heap, empty->prev, empty);
  if (empty->next != nullptr && empty->next->state == Chunk::State::Unmapped) absorb(heap, empty, empty->next);
}

// Gives the address range back if no memory is left in it.
void CachingAllocator::release_empty_range(Heap& heap, Segment* segment) {
  auto* chunk = static_cast<Chunk*>(segment->first);
  if (chunk->state != Chunk::State::Unmapped || chunk->is_split()) return;
  const bool small = segment->small;
  source_.release_range(segment);  // raises before anything has changed
  range_of(heap, small) = nullptr;
  segments_.erase(segment);
  recycle_chunk(chunk);
}

}  // namespace fl
