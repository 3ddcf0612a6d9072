// Expandable segments: growing, holes, shrinking, limits, and doing without them.
#include <set>

#include "heap.h"

using namespace fixture;
using namespace fl;

namespace {

constexpr int64_t kPageBytes = 2 << 20;  // the allocator's; the adapter's is 1 MiB

// Writes to all of it: memory that is not mapped faults.
void touch(Heap& heap, Block* block) {
  heap.device.adapter->fill(block->stream->handle, memory_at(*block, block->ptr), 1, block->size);
  block->stream->synchronize();
}

AdapterSpec limited(uint64_t bytes) {
  AdapterSpec made = spec("ranges");
  made.memory_limit_bytes = bytes;
  return made;
}

uint64_t used() { return steer("ranges").state().used[2]; }

}  // namespace

TEST(expandable_one_segment_grows) {
  Heap heap(spec("ranges"));
  const uint64_t before = used();
  Block* a = heap.get(3 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, 2 * kPageBytes);
  Block* b = heap.get(11 * kMiB);
  CHECK_EQ(static_cast<char*>(b->ptr), static_cast<char*>(a->ptr) + 3 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, 7 * kPageBytes);
  CHECK_EQ(used() - before, 14 * kMiB);
  CHECK_EQ(heap.stats().segment.current, 1);
  Block* small = heap.get(700);
  CHECK_EQ(heap.stats().segment.current, 2);  // the small pool has its own
  CHECK_EQ(heap.stats().small_pool.reserved_bytes.current, kPageBytes);
  for (Block* block : {a, b, small}) touch(heap, block);
  check_consistent(heap.device);
  void* first = a->ptr;
  heap.put(a);
  heap.put(b);
  Block* all = heap.get(14 * kMiB + 1);  // both and a little more
  CHECK_EQ(all->ptr, first);
  CHECK_EQ(heap.stats().reserved_bytes.current, 9 * kPageBytes);
  touch(heap, all);
  heap.put(all);
  heap.put(small);
  check_consistent(heap.device);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
  CHECK_EQ(heap.stats().segment.current, 0);
  CHECK_EQ(heap.stats().inactive_split.current, 0);
  CHECK_EQ(heap.stats().inactive_split_bytes.current, 0);
  CHECK_EQ(used(), before);
  const test_control state = steer("ranges").state();
  CHECK_EQ(state.ranges_made, state.ranges_freed);
}

TEST(expandable_holes_are_given_back_and_filled_again) {
  Heap heap(spec("ranges"));
  const uint64_t before = used();
  Block* blocks[5];
  for (Block*& block : blocks) block = heap.get(5 * kMiB);
  heap.put(blocks[1]);
  heap.put(blocks[2]);
  heap.device.allocator->empty_cache();
  CHECK_EQ(used() - before, 18 * kMiB);  // whole pages between 5 and 15 MiB: from 6 to 14
  check_consistent(heap.device);
  CHECK_EQ(heap.device.allocator->snapshot().size(), 2u);  // what has memory, before and behind the hole
  Block* again = heap.get(9 * kMiB);
  CHECK_EQ(static_cast<char*>(again->ptr), static_cast<char*>(blocks[0]->ptr) + 5 * kMiB);
  CHECK_EQ(used() - before, 26 * kMiB);
  touch(heap, again);
  check_consistent(heap.device);
  for (Block* block : {blocks[0], blocks[3], blocks[4], again}) heap.put(block);
  heap.device.allocator->empty_cache();
  CHECK_EQ(used(), before);
}

TEST(expandable_prefers_blocks_that_do_not_stand_in_the_way) {
  Heap heap(spec("ranges"));
  Block* a = heap.get(8 * kMiB);
  Block* b = heap.get(2 * kMiB);
  Block* c = heap.get(6 * kMiB);
  Block* d = heap.get(2 * kMiB);
  void *front = a->ptr, *middle = c->ptr;
  heap.put(d);  // joins nothing: c lies before it
  Block* e = heap.get(4 * kMiB);
  CHECK_EQ(e->ptr, d->ptr);  // grew by 2 MiB
  heap.put(e);
  heap.put(a);
  Block* f = heap.get(3 * kMiB);
  CHECK_EQ(f->ptr, front);  // 8 MiB, although 4 MiB at the end would fit better
  CHECK(f->ptr != middle);
  for (Block* block : {b, c, f}) heap.put(block);
  check_consistent(heap.device);
}

TEST(expandable_streams_have_their_own) {
  Heap heap(spec("ranges"));
  Stream& other = pool_stream(heap.device.index, 0);
  Block* a = heap.get(3 * kMiB);
  Block* b = heap.device.allocator->allocate(3 * kMiB, other);
  CHECK_EQ(heap.stats().segment.current, 2);
  steer("ranges").hold(other.handle);
  heap.device.adapter->fill(other.handle, memory_at(*b, b->ptr), 1, 3 * kMiB);
  heap.put(a);
  heap.put(b);
  heap.device.allocator->empty_cache();  // waits for the work on `other`, else its fill would fault
  CHECK(other.query());
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
  steer("ranges").release(other.handle);
}

TEST(expandable_keeps_the_limit) {
  Heap heap(limited(32 * kMiB));
  Block* a = heap.get(20 * kMiB);
  CHECK_RAISES(heap.get(14 * kMiB), FL_STATUS_OUT_OF_MEMORY, "Tried to allocate 14.00 MiB; 20.00 MiB is allocated");
  Block* b = heap.get(12 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(32 * kMiB));
  heap.put(a);
  heap.put(b);
  Block* all = heap.get(32 * kMiB);
  touch(heap, all);
  heap.put(all);
  Stream& other = pool_stream(heap.device.index, 0);
  Block* elsewhere = heap.device.allocator->allocate(30 * kMiB, other);  // the other stream's memory is given back
  CHECK_EQ(heap.stats().num_alloc_retries, 2);
  heap.put(elsewhere);
  check_consistent(heap.device);
}

TEST(expandable_survives_failed_maps) {
  Heap heap(spec("ranges"));
  Block* blocks[4];
  for (Block*& block : blocks) block = heap.get(4 * kMiB);
  heap.put(blocks[1]);
  heap.device.allocator->empty_cache();
  heap.put(blocks[2]);
  // What fails is tried again when the cache has been given back.
  steer("ranges").with([](test_control& control) { control.fail_alloc_in = 1; });
  Block* a = heap.get(40 * kMiB);
  CHECK_EQ(heap.stats().num_alloc_retries, 1);
  touch(heap, a);
  check_consistent(heap.device);
  for (Block* block : {blocks[0], blocks[3], a}) heap.put(block);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
}

TEST(expandable_garbage_collection) {
  AdapterSpec from = limited(100 * kMiB);
  from.garbage_collection_threshold = 0.5;
  Heap heap(from);
  Block* a = heap.get(20 * kMiB);
  Block* kept = heap.get(4 * kMiB);
  Block* b = heap.get(22 * kMiB);
  void* young = b->ptr;
  heap.put(a);
  heap.put(b);
  Block* c = heap.get(24 * kMiB);  // 46 + 24 > 50: a, freed first, goes; b is at the end, and grows
  CHECK_EQ(c->ptr, young);
  CHECK_EQ(heap.stats().num_device_free, 1);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(28 * kMiB));
  heap.put(c);
  heap.put(kept);
}

TEST(expandable_is_done_without) {
  AdapterSpec off = spec("ranges");
  off.expandable_segments = false;
  const int64_t made = steer("ranges").state().ranges_made;
  Heap heap(off);
  Block* a = heap.get(3 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(20 * kMiB));
  CHECK_EQ(steer("ranges").state().ranges_made, made);
  heap.put(a);
  // No address space is left: as without the extension.
  steer("ranges").with([](test_control& control) { control.no_ranges = 1; });
  Heap poor(spec("ranges"));
  Block* b = poor.get(3 * kMiB);
  CHECK_EQ(poor.stats().reserved_bytes.current, static_cast<int64_t>(20 * kMiB));
  steer("ranges").with([](test_control& control) { control.no_ranges = 0; });
  poor.put(b);
  check_consistent(poor.device);
}

TEST(expandable_comes_after_the_preallocation) {
  AdapterSpec prealloc = spec("ranges");
  prealloc.prealloc_bytes = 32 * kMiB;
  Heap heap(prealloc);
  Block* a = heap.get(30 * kMiB);
  Block* b = heap.get(30 * kMiB);
  CHECK_EQ(heap.stats().reserved_bytes.current, static_cast<int64_t>(62 * kMiB));
  check_consistent(heap.device);
  heap.put(a);
  heap.put(b);
  heap.device.allocator->empty_cache();
  CHECK_EQ(heap.stats().reserved_bytes.current, 0);
}

TEST(expandable_random_walk_stays_consistent) {
  Heap heap(limited(200 * kMiB));
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
      Block* block = heap.device.allocator->allocate(kinds[random() % 3], *streams[random() % 3]);
      held.push_back(block);
      if (step % 16 == 0) touch(heap, block);
    }
    if (step % 500 == 0) check_consistent(heap.device);
    if (step % 3000 == 0) heap.device.allocator->empty_cache();
  }
  std::set<void*> distinct;
  for (Block* block : held) CHECK(distinct.insert(block->ptr).second);
  for (Block* block : held) heap.put(block);
  heap.device.allocator->empty_cache();
  const AllocatorStats stats = heap.stats();
  CHECK_EQ(stats.reserved_bytes.current, 0);
  CHECK_EQ(stats.segment.current, 0);
  CHECK_EQ(stats.inactive_split.current, 0);
  CHECK_EQ(stats.active_bytes.current, 0);
}
