// What the caching allocator tells of itself: statistics and a snapshot of its segments. Kept apart from allocator.h,
// which every operator includes.
#pragma once
#include <cstdint>
#include <memory>
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

// Within what this process may use: the device's memory, less a limit of the profile, less memory_fraction.
struct MemoryInfo {
  uint64_t free = 0, total = 0;                // free: what could still be reserved
  uint64_t allocated = 0, reserved = 0;        // by the caching allocator
  uint64_t device_free = 0, device_total = 0;  // as the adapter says, whoever uses it
  // Used on the device and not by the pool: what the chip's own libraries keep, and other processes.
  uint64_t outside() const {
    const uint64_t known = device_free + reserved;
    return device_total > known ? device_total - known : 0;
  }
};
class Device;
MemoryInfo memory_info(Device& device);  // raises what the adapter fails with
// The share of the device's memory that this process may use, above 0 up to 1. Counts from the next allocation on.
double memory_fraction(Device& device);
void set_memory_fraction(Device& device, double fraction);

// What the allocator goes by, after the profile's memory_pool and what the adapter can.
struct AllocatorSettings {
  uint64_t prealloc_bytes = 0;   // asked for by the profile
  uint64_t min_block_bytes = 0;  // sizes of blocks are multiples of it
  uint64_t page_bytes = 0;       // that expandable segments grow and shrink by; 0: there are none
};
AllocatorSettings allocator_settings(Device& device);

struct SegmentInfo {
  struct BlockInfo {
    void* address;
    uint64_t size, requested;
    bool allocated;  // in use: by a tensor, or
    bool pending;    // freed, and waiting for another stream
    std::shared_ptr<void> stack;  // of who allocated it; see memory_history.h
  };
  void* address = nullptr;
  uint64_t size = 0;
  int64_t stream_id = 0;
  bool small = false;
  bool arena = false;       // the profile's preallocation, or a part of it
  bool expandable = false;  // of address space that memory is mapped into
  std::vector<BlockInfo> blocks;
  std::shared_ptr<void> stack;
};

// The cache of pinned host memory, of all devices together; what each means: at::HostStats.
struct HostMemoryStats {
  struct Duration { int64_t total = 0, max = 0, min = 0, count = 0; };  // microseconds
  MemoryStat active_requests, active_bytes;  // handed out, until work that was queued with it has passed
  MemoryStat allocations, allocated_bytes;   // cached ones too
  Duration alloc_time, free_time;            // in the adapter
  int64_t num_host_alloc = 0, num_host_free = 0;
};
HostMemoryStats host_memory_stats();
void reset_accumulated_host_memory_stats();
void reset_peak_host_memory_stats();

}  // namespace fl
