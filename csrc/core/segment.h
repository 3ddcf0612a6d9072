// Where the allocator's segments come from: the adapter's memory_alloc, a piece of the preallocated arena, or pages
// mapped into an address range (expandable_segment.cpp). Knows the memory limit, reserves address ranges for opaque
// buffers, and counts what the adapter was asked.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "allocator.h"
#include "internal.h"
#include "ledger.h"
#include "memory_history.h"

struct fl_virtual_memory;

namespace fl {

inline uint64_t round_up(uint64_t value, uint64_t power_of_two) {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}

// One memory_alloc of the adapter.
struct DeviceMemory {
  fl_memory raw{};              // as the adapter gave it, for memory_free
  fl_memory base{};             // as kernels get it: an opaque buffer has the reserved range for an address
  char* begin = nullptr;        // first aligned place
  uint64_t bytes = 0;           // usable, from begin
  uint64_t asked = 0;           // of the adapter
  void* range = nullptr;        // PROT_NONE address space that stands for an opaque buffer
  uint64_t range_bytes = 0;
  bool small = false;  // the pool that it is counted in
};

// A range that blocks are cut from.
struct Segment {
  char* begin = nullptr;
  uint64_t bytes = 0;
  fl_memory base{};
  Stream* stream = nullptr;
  bool small = false;
  bool in_arena = false;
  bool expandable = false;  // an address range, of which only a part has memory
  DeviceMemory own;         // of the others
  void* first = nullptr;  // the allocator's chunk at begin
};

// The allocator's lock guards all calls.
class SegmentSource {
 public:
  // Segments of `oversize` bytes and more are counted as such.
  SegmentSource(Device& device, Ledger& ledger, MemoryHistory& history, uint64_t oversize)
      : device_(device), ledger_(ledger), history_(history), oversize_(oversize), limit_(device.total_memory) {}

  // Takes the profile's preallocation from the device, or as much of it as fits. Later calls do nothing.
  void preallocate();
  // nullptr: no memory, or the limit would be passed. Raises what else goes wrong.
  Segment* reserve(uint64_t bytes, Stream& stream, bool small);
  // No queued work may use it any more.
  void release(Segment* segment);
  // Gives the arena back if no segment lies in it.
  void release_idle_arena();

  uint64_t reserved() const { return reserved_; }
  // Most bytes that may be reserved. Set from any thread, with no lock.
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void set_limit(uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  // What the device has, within the profile's limit and whatever the fraction. Asks the adapter.
  uint64_t capacity() const;
  // Most bytes that the device gives at once.
  uint64_t max_segment() const { return device_.max_allocation != 0 ? device_.max_allocation : ~uint64_t{0}; }
  uint64_t largest_arena_hole() const;

  // Expandable segments (expandable_segment.cpp). page(): what they grow and shrink by; 0: the device has none.
  uint64_t page();
  Segment* reserve_range(Stream& stream, bool small);  // without memory; nullptr: no address space is left
  bool map(Segment& segment, char* begin, uint64_t bytes);  // false: no memory, or the limit would be passed
  void unmap(Segment& segment, char* begin, uint64_t bytes);
  void release_range(Segment* segment);
  // The arena's unused ranges, for the snapshot.
  std::vector<std::pair<char*, uint64_t>> arena_holes() const;

 private:
  bool fits(uint64_t bytes) const { return bytes <= limit() && reserved_ <= limit() - bytes; }
  bool take(uint64_t bytes, bool small, DeviceMemory& out);
  fl_status ask(uint64_t bytes, fl_memory& out);
  void give_back(const DeviceMemory& memory);
  bool carve(uint64_t bytes, Segment& segment);

  Device& device_;
  Ledger& ledger_;
  MemoryHistory& history_;
  const uint64_t oversize_;
  std::atomic<uint64_t> limit_;
  uint64_t reserved_ = 0;
  bool preallocated_ = false;
  bool asked_for_page_ = false;
  uint64_t page_ = 0;
  const fl_virtual_memory* virtual_memory_ = nullptr;
  DeviceMemory arena_;
  std::map<char*, uint64_t> holes_;  // of the arena, by address
};

}  // namespace fl
