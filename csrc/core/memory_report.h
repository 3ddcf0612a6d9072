// What the caching allocator tells of itself: statistics and a snapshot of its segments. Kept apart from allocator.h,
// which every operator includes.
#pragma once
#include <cstdint>
#include <vector>

namespace fl {

struct AllocatorStats {  // counts and bytes: current, peak, total allocated, total freed
  struct Stat { int64_t current = 0, peak = 0, allocated = 0, freed = 0; };
  Stat allocation, segment, active, inactive_split;
  Stat allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0, max_split_size = 0;
};

struct SegmentInfo {
  void* address; uint64_t size; int64_t stream_id;
  struct BlockInfo { void* address; uint64_t size, requested; bool allocated; };
  std::vector<BlockInfo> blocks;
};

}  // namespace fl
