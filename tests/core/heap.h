// The allocator of a fresh device and one stream of it, for the tests of the allocator.
#pragma once
#include "fixture.h"

namespace fixture {

using namespace fl;

struct Heap {
  explicit Heap(const fl::AdapterSpec& from = spec()) : device(open(from)), stream(default_stream(device.index)) {}
  Block* get(uint64_t bytes) { return device.allocator->allocate(bytes, stream); }
  void put(Block* block) { device.allocator->free(block); }
  AllocatorStats stats() { return device.allocator->stats(); }
  Device& device;
  Stream& stream;
};

inline void check_consistent(Device& device) {
  int64_t allocated = 0, reserved = 0, count = 0;
  for (const SegmentInfo& segment : device.allocator->snapshot()) {
    uint64_t sum = 0;
    char* at = static_cast<char*>(segment.address);
    for (const auto& block : segment.blocks) {
      CHECK_EQ(block.address, static_cast<void*>(at));
      at += block.size;
      sum += block.size;
      if (block.allocated) {
        allocated += static_cast<int64_t>(block.size);
        ++count;
      }
    }
    CHECK_EQ(sum, segment.size);
    reserved += static_cast<int64_t>(segment.size);
  }
  const AllocatorStats stats = device.allocator->stats();
  CHECK_EQ(stats.active_bytes.current, allocated);
  CHECK_EQ(stats.active.current, count);
  CHECK_EQ(stats.reserved_bytes.current, reserved);
}

}  // namespace fixture
