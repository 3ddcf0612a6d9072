// What the caching allocator tells of itself: statistics and a snapshot of its segments. Kept apart from allocator.h,
// which every operator includes.
#pragma once
#include <cstdint>
#include <vector>

namespace fl {

struct MemoryStat { int64_t current = 0, peak = 0, allocated = 0, freed = 0; };

struct PoolStats {  // counts and bytes; what each means: c10::CachingDeviceAllocator::DeviceStats
  MemoryStat allocation, segment, active, inactive_split;
  MemoryStat allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
};

struct AllocatorStats : PoolStats {  // of both pools together
  using Stat = MemoryStat;
  PoolStats small_pool, large_pool;  // memory preallocated and in no pool yet counts as the large one's
  Stat oversize_allocations, oversize_segments;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0, num_device_alloc = 0, num_device_free = 0;
  int64_t max_split_size = 0;  // 0: no limit
};

struct SegmentInfo {
  void* address; uint64_t size; int64_t stream_id;
  struct BlockInfo { void* address; uint64_t size, requested; bool allocated; };
  std::vector<BlockInfo> blocks;
};

}  // namespace fl
