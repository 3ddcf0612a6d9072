// The caching allocator: reuse, splitting, joining, limits, out-of-memory, other streams, statistics.
#include <set>

#include "heap.h"

using namespace fixture;
using namespace fl;

TEST(allocator_reuses_the_same_size) {
  Heap heap;
  Block* a = heap.get(1000);
  CHECK_EQ(a->size, 1024u);
  CHECK_EQ(a->requested, 1000u);
  CHECK(a->device == &heap.device && a->stream == &heap.stream);
  void* ptr = a->ptr;
  heap.put(a);
  Block* b = heap.get(900);
  CHECK_EQ(b->ptr, ptr);
  CHECK_EQ(heap.stats().num_device_alloc, 1);
  heap.put(b);
  check_consistent(heap.device);
}

TEST(allocator_splits_and_joins) {
  Heap heap;
  Block* a = heap.get(512 * kKiB);
  Block* b = heap.get(512 * kKiB);
  Block* c = heap.get(512 * kKiB);
  CHECK_EQ(heap.stats().num_device_alloc, 1);
  CHECK_EQ(static_cast<char*>(b->ptr) - static_cast<char*>(a->ptr), static_cast<ptrdiff_t>(512 * kKiB));
  check_consistent(heap.device);
  void* first = a->ptr;
  heap.put(b);
  heap.put(a);
  Block* whole = heap.get(1 * kMiB);  // the two joined
  CHECK_EQ(whole->ptr, first);
  CHECK_EQ(heap.stats().num_device_alloc, 1);
  heap.put(c);
  heap.put(whole);
  check_consistent(heap.device);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
  CHECK_EQ(heap.stats().inactive_split.current, 0);
  CHECK_EQ(heap.stats().inactive_split_bytes.current, 0);
}

TEST(allocator_large_requests_share_a_segment) {
  Heap heap;
  Block* a = heap.get(3 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(20 * kMiB));
  Block* b = heap.get(5 * kMiB);
  CHECK_EQ(heap.stats().num_device_alloc, 1);
  Block* c = heap.get(11 * kMiB + 1);  // the rest of the segment would do
  CHECK_EQ(heap.stats().num_device_alloc, 1);
  Block* d = heap.get(33 * kMiB + 1);  // gets its own, in multiples of 2 MiB
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(54 * kMiB));
  check_consistent(heap.device);
  for (Block* block : {b, d, a, c}) heap.put(block);
  check_consistent(heap.device);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
}

TEST(allocator_takes_the_best_fit) {
  Heap heap;
  Block* large = heap.get(40 * kMiB);
  Block* small = heap.get(20 * kMiB);
  void* wanted = small->ptr;
  heap.put(large);
  heap.put(small);
  Block* again = heap.get(18 * kMiB);
  CHECK_EQ(again->ptr, wanted);
  heap.put(again);
}

TEST(allocator_streams_do_not_share) {
  Heap heap;
  Stream& other = pool_stream(heap.device.index, 0);
  Block* a = heap.get(4096);
  void* ptr = a->ptr;
  heap.put(a);
  Block* b = heap.device.allocator->allocate(4096, other);
  CHECK(b->ptr != ptr);
  heap.put(b);
  CHECK_EQ(heap.get(4096)->ptr, ptr);
  Device& elsewhere = open();
  CHECK_RAISES(elsewhere.allocator->allocate(8, heap.stream), FL_STATUS_INVALID_ARGUMENT, "on a stream of");
}

TEST(allocator_record_stream_delays_reuse) {
  Heap heap;
  Stream& other = pool_stream(heap.device.index, 0);
  steer().hold(other.handle);
  Block* a = heap.get(4096);
  void* ptr = a->ptr;
  keep_busy(other);
  heap.device.allocator->record_stream(a, other);
  heap.device.allocator->record_stream(a, other);
  heap.put(a);
  CHECK_EQ(heap.stats().allocation.current, 0);
  CHECK_EQ(heap.stats().active.current, 1);
  Block* b = heap.get(4096);
  CHECK(b->ptr != ptr);
  steer().release(other.handle);
  Block* c = heap.get(4096);
  CHECK_EQ(c->ptr, ptr);
  heap.put(b);
  heap.put(c);
  CHECK_EQ(heap.stats().active.current, 0);
  check_consistent(heap.device);
}

TEST(allocator_busy_stream_does_not_hold_up_others) {
  Heap heap;
  Stream& busy = pool_stream(heap.device.index, 0);
  Stream& quick = pool_stream(heap.device.index, 0);
  steer().hold(busy.handle);
  keep_busy(busy);
  Block* a = heap.get(4096);
  Block* b = heap.get(8192);
  void* ptr = b->ptr;
  heap.device.allocator->record_stream(a, busy);
  heap.device.allocator->record_stream(b, quick);
  heap.put(a);
  heap.put(b);
  CHECK_EQ(heap.get(8192)->ptr, ptr);
  CHECK_EQ(heap.stats().active.current, 2);
  steer().release(busy.handle);
}

TEST(allocator_waits_for_all_streams_of_a_block) {
  Heap heap;
  Stream& one = pool_stream(heap.device.index, 0);
  Stream& two = pool_stream(heap.device.index, 0);
  for (Stream* stream : {&one, &two}) {
    steer().hold(stream->handle);
    keep_busy(*stream);
  }
  Block* a = heap.get(4096);
  void* ptr = a->ptr;
  heap.device.allocator->record_stream(a, one);
  heap.device.allocator->record_stream(a, two);
  heap.put(a);
  steer().release(one.handle);
  CHECK(heap.get(4096)->ptr != ptr);
  steer().release(two.handle);
  CHECK_EQ(heap.get(4096)->ptr, ptr);
}

TEST(allocator_polls_fences_although_quick_blocks_exist) {
  Heap heap;
  Stream& other = pool_stream(heap.device.index, 0);
  Block* a = heap.get(4096);
  heap.device.allocator->record_stream(a, other);
  Block* b = heap.get(512);
  heap.put(b);
  heap.put(a);
  for (int i = 0; i < 20; ++i) heap.put(heap.get(512));
  CHECK_EQ(heap.stats().active.current, 0);
}

TEST(allocator_record_stream_without_events) {
  Heap heap(spec("plain"));
  Stream& other = pool_stream(heap.device.index, 0);
  Block* a = heap.get(4096);
  void* ptr = a->ptr;
  keep_busy(other);
  heap.device.allocator->record_stream(a, other);
  heap.put(a);
  CHECK_EQ(heap.get(4096)->ptr, ptr);  // by way of waiting for the stream
}

TEST(allocator_out_of_memory_text) {
  AdapterSpec limited = spec();
  limited.memory_limit_bytes = 64 * kMiB;
  limited.memory_fraction = 0.5;
  Heap heap(limited);
  CHECK_EQ(heap.device.total_memory, 32 * kMiB);
  Block* a = heap.get(12 * kMiB);
  CHECK_RAISES(heap.get(24 * kMiB), FL_STATUS_OUT_OF_MEMORY,
               " is out of memory. Tried to allocate 24.00 MiB; 12.00 MiB is "
               "allocated and 12.00 MiB reserved by this process");
  CHECK_RAISES(heap.get(24 * kMiB), FL_STATUS_OUT_OF_MEMORY, "this process may use 32.00 MiB");
  CHECK_RAISES(heap.get(UINT64_MAX - 5), FL_STATUS_OUT_OF_MEMORY, " out of memory.");
  CHECK_RAISES(heap.get(uint64_t{1} << 63), FL_STATUS_OUT_OF_MEMORY, " out of memory.");
  const AllocatorStats stats = heap.stats();
  CHECK_EQ(stats.num_ooms, 4);
  CHECK_EQ(stats.num_alloc_retries, 2);
  CHECK_EQ(stats.reserved_bytes.current, static_cast<int64_t>(12 * kMiB));
  heap.put(a);
  Block* b = heap.get(24 * kMiB);  // releases the 12
  heap.put(b);
  check_consistent(heap.device);
}

TEST(allocator_retry_waits_for_other_streams) {
  AdapterSpec limited = spec();
  limited.memory_limit_bytes = 32 * kMiB;
  Heap heap(limited);
  Stream& other = pool_stream(heap.device.index, 0);
  steer().hold(other.handle);
  Block* a = heap.get(24 * kMiB);
  keep_busy(other);
  heap.device.allocator->record_stream(a, other);
  heap.put(a);
  Block* b = heap.get(24 * kMiB);  // not the first answer: waits for the held stream
  CHECK_EQ(heap.stats().num_alloc_retries, 1);
  heap.put(b);
  steer().release(other.handle);
}

TEST(allocator_frugal_where_a_whole_segment_does_not_fit) {
  AdapterSpec limited = spec();
  limited.memory_limit_bytes = 7 * kMiB + 512;
  Heap heap(limited);
  Block* a = heap.get(3 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(4 * kMiB));
  Block* b = heap.get(3 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(7 * kMiB));
  Block* c = heap.get(1);
  CHECK_RAISES(heap.get(512), FL_STATUS_OUT_OF_MEMORY, " out of memory.");
  for (Block* block : {a, b, c}) heap.put(block);
  check_consistent(heap.device);
}

TEST(allocator_retries_when_the_adapter_is_full) {
  Heap heap;
  Block* cached = heap.get(30 * kMiB);
  heap.put(cached);
  steer().with([](test_control& control) {
    control.fail_alloc_in = 1;
    control.fail_alloc_count = 1;
  });
  Block* a = heap.get(50 * kMiB);
  CHECK_EQ(heap.stats().num_alloc_retries, 1);
  CHECK_EQ(heap.stats().num_device_free, 1);
  heap.put(a);
  steer().with([](test_control& control) {
    control.fail_alloc_in = 1;
    control.fail_alloc_count = 1000;
  });
  CHECK_RAISES(heap.get(70 * kMiB), FL_STATUS_OUT_OF_MEMORY, " out of memory.");
  steer().with([](test_control& control) { control.fail_alloc_in = control.fail_alloc_count = 0; });
  check_consistent(heap.device);
}

TEST(allocator_gives_back_only_what_no_work_uses) {
  Heap heap;
  steer().hold(heap.stream.handle);
  Block* a = heap.get(30 * kMiB);
  heap.device.adapter->fill(heap.stream.handle, memory_at(*a, a->ptr), 1, 30 * kMiB);
  heap.put(a);
  CHECK(!heap.stream.query());
  heap.device.allocator->empty_cache();
  CHECK(heap.stream.query());  // it was waited for although it is held
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
  steer().release(heap.stream.handle);
}

TEST(allocator_other_failures_keep_the_vendors_words) {
  Heap heap;
  steer().with([](test_control& control) { control.alloc_status = 4099; });
  CHECK_RAISES(heap.get(64), FL_STATUS_INTERNAL, "VENDOR(4099) (TEST_ALLOC): the test wants it");
  steer().with([](test_control& control) { control.alloc_status = 0; });
  heap.put(heap.get(64));
}

TEST(allocator_alignment_and_block_size) {
  AdapterSpec aligned = spec();
  aligned.alignment = 4096;
  aligned.min_block_bytes = 3000;
  steer().with([](test_control& control) { control.misalign = 1; });
  Heap heap(aligned);
  for (const uint64_t bytes : {uint64_t{1}, 5000 * uint64_t{1}, 3 * kMiB, 30 * kMiB}) {
    Block* block = heap.get(bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(block->ptr) % 4096, 0u);
    CHECK_EQ(block->size % 4096, 0u);
  }
  steer().with([](test_control& control) { control.misalign = 0; });
}

TEST(allocator_preallocation_serves_both_pools_and_all_streams) {
  AdapterSpec prealloc = spec();
  prealloc.prealloc_bytes = 64 * kMiB;
  Heap heap(prealloc);
  Stream& other = pool_stream(heap.device.index, 0);
  Block* a = heap.get(100);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(64 * kMiB));
  Block* b = heap.device.allocator->allocate(5 * kMiB, other);
  Block* c = heap.get(30 * kMiB);
  CHECK_EQ(heap.stats().num_device_alloc, 1);
  check_consistent(heap.device);
  for (Block* block : {a, b, c}) heap.put(block);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
  check_consistent(heap.device);
}

TEST(allocator_preallocation_larger_than_the_chip) {
  AdapterSpec prealloc = spec();
  prealloc.prealloc_bytes = uint64_t{8} << 40;
  prealloc.memory_limit_bytes = 100 * kMiB;
  Heap heap(prealloc);
  Block* a = heap.get(90 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(100 * kMiB));
  Block* b = heap.get(100);
  heap.put(a);
  heap.put(b);
  Block* c = heap.get(100 * kMiB);  // all of it: caches are given back first
  heap.put(c);
  check_consistent(heap.device);
}

TEST(allocator_max_split_keeps_large_blocks_whole) {
  AdapterSpec limited = spec();
  limited.max_split_bytes = 40 * kMiB;
  Heap heap(limited);
  Block* large = heap.get(60 * kMiB);
  void* ptr = large->ptr;
  heap.put(large);
  Block* a = heap.get(30 * kMiB);
  CHECK(a->ptr != ptr);
  Block* b = heap.get(50 * kMiB);
  CHECK_EQ(b->ptr, ptr);
  CHECK_EQ(b->size, 60 * kMiB);
  CHECK_EQ(heap.stats().max_split_size, static_cast<int64_t>(40 * kMiB));
  heap.put(a);
  heap.put(b);
}

TEST(allocator_garbage_collection) {
  AdapterSpec limited = spec();
  limited.memory_limit_bytes = 100 * kMiB;
  limited.garbage_collection_threshold = 0.5;
  Heap heap(limited);
  Block* a = heap.get(20 * kMiB);
  Block* b = heap.get(22 * kMiB);
  void* young = a->ptr;
  heap.put(b);
  heap.put(a);
  Block* c = heap.get(24 * kMiB);  // 20 + 22 + 24 > 50: the one freed first goes
  CHECK_EQ(heap.stats().num_device_free, 1);
  CHECK_EQ(heap.get(20 * kMiB)->ptr, young);
  CHECK_EQ(heap.stats().num_alloc_retries, 0);
  heap.put(c);
}

TEST(allocator_opaque_buffers_have_addresses) {
  Heap heap(spec("opaque"));
  Block* a = heap.get(1000);
  Block* b = heap.get(1000);
  CHECK(a->base.handle != nullptr);
  CHECK_EQ(a->base.handle, b->base.handle);
  const fl_memory place = memory_at(*b, static_cast<char*>(b->ptr) + 40);
  CHECK_EQ(place.handle, b->base.handle);
  CHECK_EQ(place.offset, 1024u + 40u);
  // The handle's own memory can be written, at that offset.
  fl_memory first = memory_at(*a, a->ptr), second = memory_at(*b, b->ptr);
  heap.device.adapter->fill(heap.stream.handle, first, 1, 1000);
  heap.device.adapter->fill(heap.stream.handle, second, 2, 1000);
  char got[2];
  heap.device.adapter->copy_d2h(heap.stream.handle, got, memory_at(*a, static_cast<char*>(a->ptr) + 999), 1);
  heap.device.adapter->copy_d2h(heap.stream.handle, got + 1, second, 1);
  heap.stream.synchronize();
  CHECK_EQ(int{got[0]}, 1);
  CHECK_EQ(int{got[1]}, 2);
  heap.put(a);
  heap.put(b);
  heap.device.allocator->empty_cache();
  CHECK_EQ(steer("opaque").state().used[2], 0u);
}

TEST(allocator_opaque_buffers_are_found_by_address) {
  AdapterSpec wide = spec("opaque");
  wide.alignment = 1u << 14;  // more than a page
  Heap heap(wide);
  Block* a = heap.get(1000);
  Block* b = heap.get(5u << 20);
  for (Block* block : {a, b}) {
    CHECK_EQ(reinterpret_cast<uintptr_t>(block->ptr) % wide.alignment, 0u);
    char* place = static_cast<char*>(block->ptr) + 77;
    const fl_memory expected = memory_at(*block, place), found = heap.device.allocator->locate(place);
    CHECK_EQ(found.handle, expected.handle);
    CHECK_EQ(found.offset, expected.offset);
    CHECK_EQ(found.address, expected.address);
  }
  char elsewhere = 0;
  CHECK_RAISES(heap.device.allocator->locate(&elsewhere), FL_STATUS_INVALID_ARGUMENT, "Copy the tensor to the device");
  heap.put(a);
  heap.put(b);
  heap.device.allocator->empty_cache();
}

TEST(allocator_asks_no_more_than_the_device_gives_at_once) {
  steer().with([](test_control& control) { control.max_allocation = 6 * kMiB + 100; });
  AdapterSpec from = spec();
  from.prealloc_bytes = 32 * kMiB;
  Heap heap(from);
  steer().with([](test_control& control) { control.max_allocation = 0; });
  CHECK_EQ(heap.device.max_allocation, 6 * kMiB + 100);
  Block* a = heap.get(2 * kMiB);  // the usual 20 MiB for it are too much
  Block* b = heap.get(6 * kMiB);
  CHECK(a->ptr != b->ptr);
  for (const SegmentInfo& segment : heap.device.allocator->snapshot()) CHECK(segment.size <= 6 * kMiB + 100);
  CHECK_RAISES(heap.get(7 * kMiB), FL_STATUS_OUT_OF_MEMORY,
               "; the largest single allocation is 6.00 MiB. The device gives no more than that at once");
  CHECK_EQ(heap.stats().num_alloc_retries, 0);  // there was nothing to gain
  heap.put(a);
  heap.put(b);
  heap.device.allocator->empty_cache();
  check_consistent(heap.device);
}

TEST(allocator_pointer_blocks_use_addresses) {
  Heap heap;
  Block* a = heap.get(1000);
  const fl_memory place = memory_at(*a, static_cast<char*>(a->ptr) + 8);
  CHECK(place.handle == nullptr && place.address == static_cast<char*>(a->ptr) + 8 && place.offset == 0);
}

TEST(allocator_large_blocks_wait_to_be_joined) {
  Heap heap;
  Block* a = heap.get(3 * kMiB);
  Block* b = heap.get(3 * kMiB);
  Block* c = heap.get(14 * kMiB);
  void* first = a->ptr;
  heap.put(a);
  heap.put(b);
  CHECK(heap.get(3 * kMiB) == b);  // the last one freed
  heap.put(b);
  Block* whole = heap.get(6 * kMiB);
  CHECK_EQ(whole->ptr, first);
  CHECK_EQ(heap.stats().num_device_alloc, 1);
  heap.put(whole);
  heap.put(c);
  std::vector<Block*> many;
  for (uint64_t i = 0; i < 20; ++i) many.push_back(heap.get((2 + i) * kMiB));
  for (Block* block : many) heap.put(block);
  check_consistent(heap.device);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
  CHECK_EQ(heap.stats().inactive_split.current, 0);
}

TEST(allocator_survives_a_lost_device) {
  AdapterSpec own = spec("plain");  // its adapter is not shared with tests that need it alive
  Heap heap(own);
  Stream& other = pool_stream(heap.device.index, 0);
  Block* a = heap.get(100);
  Block* b = heap.get(100);
  heap.device.allocator->record_stream(b, other);
  steer("plain").with([](test_control& control) { control.lost = 1; });
  CHECK_RAISES(heap.get(64 * kMiB), FL_STATUS_DEVICE_LOST, "Device lost (TEST_LOST): the test took it away");
  steer("plain").with([](test_control& control) { control.lost = 0; });
  CHECK_RAISES(heap.get(100), FL_STATUS_DEVICE_LOST, "is lost (Device lost (TEST_LOST): the test took it away)");
  CHECK_RAISES(heap.device.allocator->empty_cache(), FL_STATUS_DEVICE_LOST, "is lost");
  CHECK_RAISES(heap.stream.synchronize(), FL_STATUS_DEVICE_LOST, "is lost");
  CHECK_RAISES(fl::synchronize(heap.device.index), FL_STATUS_DEVICE_LOST, "is lost");
  CHECK_RAISES(pool_stream(heap.device.index, 0), FL_STATUS_DEVICE_LOST, "is lost");
  CHECK_RAISES(heap.device.kernel(kAdd, DType::Float32, DType::Float32), FL_STATUS_DEVICE_LOST, "is lost");
  heap.put(a);
  heap.put(b);
}

TEST(allocator_asynchronous_failure_surfaces) {
  Heap heap;
  Stream& other = pool_stream(heap.device.index, 0);
  other.note(kMatmul);
  Block* a = heap.get(4096);
  heap.device.allocator->record_stream(a, other);
  heap.put(a);
  steer().with([](test_control& control) { control.sync_status = FL_STATUS_ABORTED; });
  CHECK_RAISES(heap.get(700 * kKiB), FL_STATUS_ABORTED, "newest first: matmul");
  heap.put(heap.get(700 * kKiB));
  CHECK_EQ(heap.stats().active.current, 0);
}

TEST(allocator_random_walk_stays_consistent) {
  AdapterSpec limited = spec();
  limited.memory_limit_bytes = 200 * kMiB;
  Heap heap(limited);
  Stream* streams[] = {&heap.stream, &pool_stream(heap.device.index, 0), &pool_stream(heap.device.index, -1)};
  std::vector<Block*> held;
  uint64_t seed = 88172645463325252ull;
  const auto random = [&seed] {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
  };
  for (int step = 0; step < 20000; ++step) {
    if (held.size() > 60 || (!held.empty() && random() % 2 == 0)) {
      const size_t at = random() % held.size();
      if (random() % 4 == 0) heap.device.allocator->record_stream(held[at], *streams[random() % 3]);
      heap.put(held[at]);
      held[at] = held.back();
      held.pop_back();
    } else {
      const uint64_t kinds[] = {1 + random() % 4096, 1 + random() % (900 * kKiB), 1 + random() % (4 * kMiB)};
      held.push_back(heap.device.allocator->allocate(kinds[random() % 3], *streams[random() % 3]));
    }
    if (step % 500 == 0) check_consistent(heap.device);
    if (step % 7000 == 0) heap.device.allocator->empty_cache();
  }
  std::set<void*> distinct;
  for (Block* block : held) CHECK(distinct.insert(block->ptr).second);
  for (Block* block : held) heap.put(block);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
  CHECK_EQ(heap.stats().inactive_split.current, 0);
  CHECK_EQ(heap.stats().active_bytes.current, 0);
}
