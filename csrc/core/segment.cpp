// Segments from the adapter and the arena; see segment.h.
#include "segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "race.h"

namespace fl {
namespace {

char* aligned_up(void* address, uint64_t alignment) {
  return reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(address), alignment));
}

}  // namespace

uint64_t SegmentSource::capacity() const {
  uint64_t free = 0, total = 0;
  if (device_.adapter->memory_info(device_.ordinal, &free, &total) != FL_STATUS_OK) return device_.total_memory;
  const uint64_t limit = device_.spec->memory_limit_bytes;
  return limit != 0 ? std::min(limit, total) : total;
}

// OK with memory, or OUT_OF_MEMORY; raises anything else.
fl_status SegmentSource::ask(uint64_t bytes, fl_memory& out) {
  check_usable(device_);
  const fl_status status = device_.adapter->memory_alloc(device_.ordinal, bytes, &out);
  if (status == FL_STATUS_OUT_OF_MEMORY) return status;
  const std::string what = "memory_alloc of " + std::to_string(bytes) + " bytes";
  if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, what.c_str());
  const bool pointers = device_.has(FL_CAP_POINTERS);
  if (pointers ? out.address == nullptr : out.handle == nullptr) {
    raise(FL_STATUS_INTERNAL, what + " on " + device_label(device_) + " succeeded but gave a NULL " +
                                  (pointers ? "address." : "handle (the device does not declare FL_CAP_POINTERS)."));
  }
  if (pointers) {
    out.handle = nullptr;  // memory_at() tells the two kinds apart by it
    out.offset = 0;
  }
  return status;
}

bool SegmentSource::take(uint64_t bytes, bool small, DeviceMemory& out) {
  if (bytes > max_segment() || !fits(bytes)) return false;
  uint64_t asked = bytes;
  if (ask(asked, out.raw) != FL_STATUS_OK) return false;
  out.base = out.raw;
  if (!device_.has(FL_CAP_POINTERS)) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    out.range_bytes = round_up(bytes, page) + (device_.alignment > page ? device_.alignment : 0);
    out.range = mmap(nullptr, out.range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (out.range == MAP_FAILED) {
      device_.adapter->memory_free(device_.ordinal, out.raw);
      raise(FL_STATUS_INTERNAL, "cannot reserve " + std::to_string(bytes) + " bytes of address space for a buffer of " +
                                    device_label(device_) + ". Raise the limit on address space (ulimit -v).");
    }
    out.base.address = aligned_up(out.range, device_.alignment);
  } else if (aligned_up(out.raw.address, device_.alignment) != out.raw.address) {
    // The profile wants more than the chip gives by itself: take room to move to an aligned place.
    device_.adapter->memory_free(device_.ordinal, out.raw);
    asked = bytes + device_.alignment;
    if (asked > max_segment() || !fits(asked)) return false;
    if (ask(asked, out.raw) != FL_STATUS_OK) return false;
    out.base = out.raw;
  }
  out.begin = aligned_up(out.base.address, device_.alignment);
  out.bytes = bytes;
  out.asked = asked;
  out.small = small;
  reserved_ += asked;
  ++ledger_.num_device_alloc;
  ledger_.increase(Ledger::kSegment, small, 1);
  if (bytes >= oversize_) ledger_.increase(Ledger::kOversizeSegment, false, 1);
  ledger_.increase(Ledger::kReservedBytes, small, static_cast<int64_t>(asked));
  return true;
}

void SegmentSource::give_back(const DeviceMemory& memory) {
  if (debugging(kRaceCheck)) race_returned(device_.index, memory.begin, memory.bytes);
  if (!device_.lost()) {
    const fl_status status = device_.adapter->memory_free(device_.ordinal, memory.raw);
    if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "memory_free");
  }
  if (memory.range_bytes != 0) munmap(memory.range, memory.range_bytes);
  reserved_ -= memory.asked;
  ++ledger_.num_device_free;
  ledger_.decrease(Ledger::kSegment, memory.small, 1);
  if (memory.bytes >= oversize_) ledger_.decrease(Ledger::kOversizeSegment, false, 1);
  ledger_.decrease(Ledger::kReservedBytes, memory.small, static_cast<int64_t>(memory.asked));
}

// ---------------------------------------------------------------- arena

void SegmentSource::preallocate() {
  if (preallocated_) return;
  preallocated_ = true;
  uint64_t wanted = std::min({device_.spec->prealloc_bytes, limit(), max_segment()});
  if (wanted == 0) return;
  uint64_t free = 0, total = 0;
  if (device_.adapter->memory_info(device_.ordinal, &free, &total) == FL_STATUS_OK) wanted = std::min(wanted, free);
  // A profile may ask for more than this machine has; a part of it is better than none.
  constexpr uint64_t kLeast = 2u << 20;
  for (; wanted >= kLeast; wanted /= 2) {
    if (!take(wanted & ~uint64_t{kLeast - 1}, false, arena_)) continue;
    holes_[arena_.begin] = arena_.bytes;
    history_.note(MemoryAction::SegmentAlloc, arena_.begin, arena_.bytes, nullptr);
    return;
  }
}

bool SegmentSource::carve(uint64_t bytes, Segment& segment) {
  auto best = holes_.end();
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->second >= bytes && (best == holes_.end() || hole->second < best->second)) best = hole;
  }
  if (best == holes_.end()) return false;
  segment.begin = best->first;
  segment.bytes = bytes;
  segment.base = arena_.base;
  segment.in_arena = true;
  if (segment.small) ledger_.move_reserved(true, static_cast<int64_t>(bytes));
  const uint64_t rest = best->second - bytes;
  holes_.erase(best);
  if (rest != 0) holes_[segment.begin + bytes] = rest;
  return true;
}

void SegmentSource::release_idle_arena() {
  if (arena_.bytes == 0 || holes_.size() != 1 || holes_.begin()->second != arena_.bytes) return;
  give_back(arena_);
  history_.note(MemoryAction::SegmentFree, arena_.begin, arena_.bytes, nullptr);
  arena_ = DeviceMemory{};
  holes_.clear();
}

uint64_t SegmentSource::largest_arena_hole() const {
  uint64_t largest = 0;
  for (const auto& hole : holes_)
    largest = std::max(largest, hole.second);
  return largest;
}

std::vector<std::pair<char*, uint64_t>> SegmentSource::arena_holes() const { return {holes_.begin(), holes_.end()}; }

// ---------------------------------------------------------------- segments

Segment* SegmentSource::reserve(uint64_t bytes, Stream& stream, bool small) {
  auto segment = std::make_unique<Segment>();
  segment->stream = &stream;
  segment->small = small;
  // Pieces of the arena keep their alignment only if all are multiples of it.
  const uint64_t whole = round_up(bytes, device_.alignment);
  if (!carve(whole, *segment)) {
    if (!take(bytes, small, segment->own)) return nullptr;
    segment->begin = segment->own.begin;
    segment->bytes = bytes;
    segment->base = segment->own.base;
    history_.note(MemoryAction::SegmentAlloc, segment->begin, bytes, &stream);
  }
  return segment.release();
}

void SegmentSource::release(Segment* segment) {
  if (segment->in_arena) {
    if (segment->small) ledger_.move_reserved(false, static_cast<int64_t>(segment->bytes));
    char* begin = segment->begin;
    uint64_t bytes = segment->bytes;
    auto next = holes_.lower_bound(begin);
    if (next != holes_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = holes_.erase(next);
    }
    if (next != holes_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        holes_.erase(before);
      }
    }
    holes_[begin] = bytes;
  } else {
    give_back(segment->own);
    history_.note(MemoryAction::SegmentFree, segment->begin, segment->bytes, segment->stream);
  }
  delete segment;
}

}  // namespace fl
