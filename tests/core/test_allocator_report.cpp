// What the allocator tells of itself: statistics, memory information, what is held outside the pool; and its limit.
#include "heap.h"
#include "make_room.h"

using namespace fixture;
using namespace fl;

TEST(allocator_memory_that_others_hold_is_told) {
  Heap heap;
  const uint64_t capacity = steer().state().capacity, before = steer().state().used[2];
  steer().with([](test_control& control) { control.used[2] = control.capacity - 20 * kMiB; });
  Block* a = heap.get(12 * kMiB);
  const MemoryInfo info = memory_info(heap.device);
  CHECK_EQ(info.free, 8 * kMiB);
  CHECK_EQ(info.total, capacity);
  CHECK_EQ(info.reserved, 12 * kMiB);
  CHECK_EQ(info.outside(), capacity - 20 * kMiB);
  CHECK_RAISES(heap.get(100 * kMiB), FL_STATUS_OUT_OF_MEMORY,
               "; 1004.00 MiB is held outside the pool, by the chip's own libraries and by other processes; the largest "
               "free block is 0 bytes. Use a smaller batch, end other processes");
  steer().with([&](test_control& control) { control.used[2] = before + 12 * kMiB; });
  heap.put(a);
}

TEST(allocator_memory_fraction_at_run_time) {
  AdapterSpec limited = spec();
  limited.memory_limit_bytes = 64 * kMiB;
  limited.memory_fraction = 0.5;
  Heap heap(limited);
  CHECK_EQ(memory_fraction(heap.device), 0.5);
  Block* a = heap.get(32 * kMiB);
  CHECK_EQ(memory_info(heap.device).free, 0u);
  set_memory_fraction(heap.device, 1.0);
  CHECK_EQ(memory_info(heap.device).free, 32 * kMiB);
  CHECK_EQ(memory_info(heap.device).total, 64 * kMiB);
  Block* b = heap.get(32 * kMiB);
  set_memory_fraction(heap.device, 0.25);
  CHECK_EQ(memory_info(heap.device).free, 0u);  // more is reserved than allowed
  heap.put(a);
  CHECK_EQ(heap.get(32 * kMiB), a);  // what is cached is still there
  heap.put(a);
  CHECK_RAISES(heap.get(17 * kMiB + (16 * kMiB)), FL_STATUS_OUT_OF_MEMORY, "this process may use 16.00 MiB");
  heap.put(b);
  heap.device.allocator->empty_cache();
  CHECK_RAISES(heap.get(17 * kMiB), FL_STATUS_OUT_OF_MEMORY, "raise this process's share of the memory");
  heap.put(heap.get(16 * kMiB));
  for (const double bad : {0.0, -1.0, 1.5, 0.0 / 0.0}) {
    CHECK_RAISES(set_memory_fraction(heap.device, bad), FL_STATUS_INVALID_ARGUMENT, "more than 0 and at most 1");
  }
  CHECK_EQ(memory_fraction(heap.device), 0.25);
}

TEST(allocator_makes_room_for_calls_of_the_vendor) {
  Heap heap;
  heap.put(heap.get(30 * kMiB));
  int calls = 0;
  const auto needs = [&](uint64_t most) {
    return [&calls, &heap, most]() -> fl_status {
      ++calls;
      return heap.stats().reserved_bytes.current <= static_cast<int64_t>(most) ? FL_STATUS_OK : FL_STATUS_OUT_OF_MEMORY;
    };
  };
  CHECK_EQ(with_room(heap.device, needs(30 * kMiB)), FL_STATUS_OK);
  CHECK_EQ(calls, 1);
  Block* kept = heap.get(4096);
  CHECK_EQ(with_room(heap.device, needs(29 * kMiB)), FL_STATUS_OK);  // the cache was given back
  CHECK_EQ(calls, 3);
  CHECK_EQ(with_room(heap.device, needs(1)), FL_STATUS_OUT_OF_MEMORY);  // what is in use was not
  CHECK_EQ(calls, 5);
  CHECK_RAISES(raise_status(*heap.device.adapter, heap.device.index, FL_STATUS_OUT_OF_MEMORY, "matmul"),
               FL_STATUS_OUT_OF_MEMORY, " is out of memory. 4.00 KiB is allocated and 2.00 MiB reserved");
  heap.put(kept);
}

TEST(allocator_statistics) {
  Heap heap;
  Block* a = heap.get(1000);
  Block* b = heap.get(3000);
  heap.put(a);
  AllocatorStats stats = heap.stats();
  CHECK_EQ(stats.allocation.current, 1);
  CHECK_EQ(stats.allocation.peak, 2);
  CHECK_EQ(stats.allocation.allocated, 2);
  CHECK_EQ(stats.allocation.freed, 1);
  CHECK_EQ(stats.allocated_bytes.current, 3072);
  CHECK_EQ(stats.allocated_bytes.peak, 4096);
  CHECK_EQ(stats.requested_bytes.current, 3000);
  CHECK_EQ(stats.segment.current, 1);
  CHECK_EQ(stats.inactive_split.current, 2);  // the freed 1024 and the rest of the segment
  CHECK_EQ(stats.inactive_split_bytes.current, static_cast<int64_t>(2 * kMiB - 3072));
  heap.device.allocator->reset_peak_stats();
  heap.device.allocator->reset_accumulated_stats();
  stats = heap.stats();
  CHECK_EQ(stats.allocation.peak, 1);
  CHECK_EQ(stats.allocation.allocated, 0);
  CHECK_EQ(stats.allocation.current, 1);
  heap.put(b);
}

static void check_sum(const MemoryStat& all, const MemoryStat& small, const MemoryStat& large) {
  CHECK_EQ(all.current, small.current + large.current);
  CHECK_EQ(all.allocated, small.allocated + large.allocated);
  CHECK_EQ(all.freed, small.freed + large.freed);
  CHECK_EQ(all.current, all.allocated - all.freed);
  CHECK(all.peak <= small.peak + large.peak && all.peak >= std::max(small.peak, large.peak));
}

TEST(allocator_statistics_of_the_pools) {
  AdapterSpec prealloc = spec();
  prealloc.prealloc_bytes = 64 * kMiB;
  for (const AdapterSpec& from : {spec(), prealloc}) {
    Heap heap(from);
    Block* small = heap.get(1 * kMiB);
    Block* large = heap.get(1 * kMiB + 1);
    AllocatorStats stats = heap.stats();
    CHECK_EQ(stats.small_pool.allocation.current, 1);
    CHECK_EQ(stats.large_pool.allocation.current, 1);
    CHECK_EQ(stats.small_pool.reserved_bytes.current, static_cast<int64_t>(2 * kMiB));
    CHECK_EQ(stats.small_pool.inactive_split_bytes.current, static_cast<int64_t>(1 * kMiB));
    heap.put(small);
    heap.put(large);
    small = heap.get(700);
    stats = heap.stats();
    CHECK_EQ(stats.small_pool.allocated_bytes.current, 1024);
    CHECK_EQ(stats.small_pool.requested_bytes.current, 700);
    CHECK_EQ(stats.small_pool.allocated_bytes.peak, static_cast<int64_t>(1 * kMiB));
    CHECK_EQ(stats.large_pool.allocated_bytes.current, 0);
    CHECK_EQ(stats.allocated_bytes.peak, static_cast<int64_t>(2 * kMiB + 512));
    const PoolStats &s = stats.small_pool, &l = stats.large_pool;
    check_sum(stats.allocation, s.allocation, l.allocation);
    check_sum(stats.active, s.active, l.active);
    check_sum(stats.segment, s.segment, l.segment);
    check_sum(stats.inactive_split, s.inactive_split, l.inactive_split);
    check_sum(stats.allocated_bytes, s.allocated_bytes, l.allocated_bytes);
    check_sum(stats.reserved_bytes, s.reserved_bytes, l.reserved_bytes);
    check_sum(stats.active_bytes, s.active_bytes, l.active_bytes);
    check_sum(stats.inactive_split_bytes, s.inactive_split_bytes, l.inactive_split_bytes);
    check_sum(stats.requested_bytes, s.requested_bytes, l.requested_bytes);
    heap.put(small);
    CHECK_EQ(heap.stats().num_sync_all_streams, 0);
    heap.device.allocator->empty_cache();
    CHECK_EQ(heap.stats().num_sync_all_streams, 1);
    CHECK_EQ(heap.stats().small_pool.reserved_bytes.current, 0);
    CHECK_EQ(heap.stats().large_pool.reserved_bytes.current, 0);
  }
}

TEST(allocator_statistics_of_blocks_that_other_streams_use) {
  Heap heap;
  Stream& other = pool_stream(heap.device.index, 0);
  steer().hold(other.handle);
  Block* a = heap.get(4096);
  keep_busy(other);
  heap.device.allocator->record_stream(a, other);
  heap.put(a);
  Block* b = heap.get(8192);
  AllocatorStats stats = heap.stats();
  CHECK_EQ(stats.allocated_bytes.peak, 8192);
  CHECK_EQ(stats.active_bytes.peak, 4096 + 8192);
  CHECK_EQ(stats.active.freed, 0);
  CHECK_EQ(stats.allocation.freed, 1);
  heap.device.allocator->reset_accumulated_stats();
  heap.device.allocator->reset_peak_stats();
  steer().release(other.handle);
  heap.put(b);
  heap.put(heap.get(600));
  stats = heap.stats();
  CHECK_EQ(stats.active.freed, 3);  // the one that waited, too
  CHECK_EQ(stats.allocation.freed, 2);
  CHECK_EQ(stats.active_bytes.peak, 4096 + 8192);
  CHECK_EQ(stats.active_bytes.current, 0);
  heap.device.allocator->reset_peak_stats();
  CHECK_EQ(heap.stats().active_bytes.peak, 0);
}

TEST(allocator_counts_oversize_blocks) {
  AdapterSpec limited = spec();
  limited.max_split_bytes = 40 * kMiB;
  Heap heap(limited);
  Block* a = heap.get(40 * kMiB);
  Block* b = heap.get(30 * kMiB);
  CHECK_EQ(heap.stats().oversize_allocations.current, 1);
  CHECK_EQ(heap.stats().oversize_segments.current, 1);
  heap.put(a);
  heap.put(b);
  CHECK_EQ(heap.stats().oversize_allocations.current, 0);
  CHECK_EQ(heap.stats().oversize_segments.current, 1);  // still cached
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().oversize_segments.current, 0);
}
