// Streams and events: order, waiting across streams and adapters, pools, pinned memory tied to streams, threads.
#include <cstring>
#include <set>
#include <thread>

#include "fixture.h"

using namespace fixture;
using namespace fl;

namespace {

fl_memory at(void* address) { return fl_memory{address, nullptr, 0}; }

void fill(Stream& stream, char& place, int value) {
  stream.device->adapter->fill(stream.handle, at(&place), static_cast<uint8_t>(value), 1);
}
void copy(Stream& stream, char& dst, char& src) {
  stream.device->adapter->copy_d2d(stream.handle, at(&dst), at(&src), 1);
}

}  // namespace

TEST(stream_ids_and_pool) {
  Device& one = open();
  CHECK_EQ(default_stream(one.index).id, 0);
  CHECK_EQ(&default_stream(one.index), &stream_from_id(one.index, 0));
  std::set<int64_t> ids;
  for (int i = 0; i < kStreamsPerPriority; ++i) ids.insert(pool_stream(one.index, 0).id);
  CHECK_EQ(ids.size(), static_cast<size_t>(kStreamsPerPriority));
  CHECK_EQ(*ids.begin(), 1);
  CHECK_EQ(pool_stream(one.index, 0).id, 1);  // round
  Stream& urgent = pool_stream(one.index, -1);
  CHECK_EQ(urgent.priority, -1);
  CHECK(ids.count(urgent.id) == 0);
  CHECK_EQ(pool_stream(one.index, -100).priority, kMostUrgent);
  CHECK_EQ(pool_stream(one.index, 5).priority, 0);
  CHECK_EQ(&stream_from_id(one.index, urgent.id), &urgent);
  CHECK_RAISES(stream_from_id(one.index, 1000), FL_STATUS_NOT_FOUND, "has no stream 1000");
  CHECK_RAISES(stream_from_id(one.index, -1), FL_STATUS_NOT_FOUND, "has no stream -1");
  CHECK_EQ(all_streams(one.index).size(), 1u + kStreamsPerPriority + 2u);
}

TEST(stream_current_is_per_thread_and_device) {
  Device& one = open();
  Device& two = open();
  Stream& side = pool_stream(one.index, 0);
  set_current_stream(side);
  CHECK_EQ(&current_stream(one.index), &side);
  CHECK_EQ(&current_stream(two.index), &default_stream(two.index));
  std::thread([&] { CHECK_EQ(&current_stream(one.index), &default_stream(one.index)); }).join();
  set_current_stream(default_stream(one.index));
  CHECK_RAISES(current_stream(-1), FL_STATUS_NOT_FOUND, "fl:-1 does not exist");
  CHECK_RAISES(current_stream(1000), FL_STATUS_NOT_FOUND, "fl:1000 does not exist");
}

TEST(stream_query_and_synchronize) {
  Device& one = open();
  Stream& stream = default_stream(one.index);
  char place = 0;
  steer().hold(stream.handle);
  fill(stream, place, 7);
  CHECK(!stream.query());
  CHECK_EQ(int{place}, 0);
  stream.synchronize();
  CHECK_EQ(int{place}, 7);
  CHECK(stream.query());
  steer().release(stream.handle);
}

TEST(stream_failure_names_the_last_launches) {
  Device& one = open();
  Stream& stream = pool_stream(one.index, 0);
  for (int i = 0; i < 20; ++i) stream.note(kMatmul);
  stream.note(kAdd);
  stream.note(kEq);
  CHECK_EQ(stream.recent(), "eq, add, matmul, matmul, matmul, matmul, matmul, matmul");
  steer().with([](test_control& control) { control.sync_status = FL_STATUS_ABORTED; });
  CHECK_RAISES(stream.query(), FL_STATUS_ABORTED, "newest first: eq, add, matmul");
  steer().with([](test_control& control) { control.sync_status = 4096; });
  CHECK_RAISES(stream.synchronize(), FL_STATUS_INTERNAL, "synchronize of stream 1 (last UniOps launched on it");
  stream.synchronize();
}

TEST(stream_device_synchronize_waits_for_all) {
  Device& one = open();
  char places[2] = {0, 0};
  Stream& a = default_stream(one.index);
  Stream& b = pool_stream(one.index, 0);
  steer().hold(a.handle);
  steer().hold(b.handle);
  fill(a, places[0], 1);
  fill(b, places[1], 2);
  steer().with([](test_control& control) { control.sync_status = FL_STATUS_ABORTED; });
  CHECK_RAISES(synchronize(one.index), FL_STATUS_ABORTED, "stream 0");
  CHECK_EQ(int{places[0]}, 1);
  CHECK_EQ(int{places[1]}, 2);
  steer().release(a.handle);
  steer().release(b.handle);
}

TEST(event_orders_streams) {
  Device& one = open();
  Stream& producer = pool_stream(one.index, 0);
  Stream& consumer = pool_stream(one.index, 0);
  char source = 0, result = 0;
  steer().hold(producer.handle);
  Event event;
  CHECK(event.query());
  CHECK_EQ(event.device_index(), -1);
  event.wait(consumer);  // never recorded: nothing to wait for
  fill(producer, source, 9);
  event.record(producer);
  CHECK_EQ(event.device_index(), one.index);
  CHECK(!event.query());
  event.wait(consumer);
  copy(consumer, result, source);
  consumer.synchronize();
  CHECK_EQ(int{result}, 9);
  CHECK(event.query());
  event.synchronize();
  steer().release(producer.handle);
}

TEST(event_waits_for_what_was_recorded_then) {
  Device& one = open();
  Stream& a = pool_stream(one.index, 0);
  Stream& b = pool_stream(one.index, 0);
  steer().hold(a.handle);
  char place = 0;
  Event event;
  event.record(a);
  event.wait(b);
  fill(a, place, 1);
  event.record(a);  // again: the wait above keeps its meaning
  b.synchronize();
  CHECK_EQ(int{place}, 0);
  CHECK(!event.query());
  steer().release(a.handle);
  CHECK(event.query());
}

TEST(event_belongs_to_one_device) {
  Device& one = open();
  Device& two = open();
  Event event;
  event.record(default_stream(one.index));
  CHECK_RAISES(event.record(default_stream(two.index)), FL_STATUS_INVALID_ARGUMENT, "Make one event per device");
}

TEST(event_across_adapters_waits_on_the_host) {
  Device& one = open();
  Device& other = open("opaque");
  Stream& producer = default_stream(one.index);
  steer().hold(producer.handle);
  char place = 0;
  fill(producer, place, 3);
  Event event;
  event.record(producer);
  event.wait(default_stream(other.index));
  CHECK_EQ(int{place}, 3);
  steer().release(producer.handle);
}

TEST(event_of_a_device_that_the_stream_does_not_know) {
  Device& one = open();
  Device& two = open();
  Stream& producer = default_stream(one.index);
  steer().hold(producer.handle);
  char place = 0;
  fill(producer, place, 3);
  Event event;
  event.record(producer);
  steer().with([](test_control& control) { control.wait_status = FL_STATUS_UNIMPLEMENTED; });
  event.wait(default_stream(two.index));
  CHECK_EQ(int{place}, 3);  // the host has waited
  steer().with([](test_control& control) { control.wait_status = FL_STATUS_INVALID_ARGUMENT; });
  CHECK_RAISES(event.wait(default_stream(two.index)), FL_STATUS_INVALID_ARGUMENT, "stream_wait_event");
  steer().with([](test_control& control) { control.wait_status = 0; });
  steer().release(producer.handle);
}

TEST(event_without_adapter_events) {
  Device& plain = open("plain");
  Stream& stream = default_stream(plain.index);
  char place = 0;
  fill(stream, place, 4);
  CHECK(stream.query());  // waits, as there is no query
  fill(stream, place, 5);
  Event start(true), end(true);
  start.record(stream);
  CHECK_EQ(int{place}, 5);
  CHECK(start.query());
  start.wait(pool_stream(plain.index, 0));
  end.record(stream);
  CHECK(start.elapsed_ms(end) >= 0);
}

TEST(event_elapsed) {
  Device& one = open();
  Stream& stream = default_stream(one.index);
  Event start(true), end(true), untimed, never(true);
  start.record(stream);
  keep_busy(stream);
  keep_busy(stream);
  steer().hold(stream.handle);
  end.record(stream);
  CHECK_RAISES(start.elapsed_ms(end), FL_STATUS_FAILED_PRECONDITION, "needs complete events");
  steer().release(stream.handle);
  CHECK_EQ(start.elapsed_ms(end), 2.0);
  untimed.record(stream);
  CHECK_RAISES(start.elapsed_ms(untimed), FL_STATUS_INVALID_ARGUMENT, "enable_timing=True");
  CHECK_RAISES(start.elapsed_ms(never), FL_STATUS_INVALID_ARGUMENT, "two recorded events");
}

TEST(event_objects_are_reused) {
  Device& one = open();
  {
    Event event;
    event.record(default_stream(one.index));
  }
  const int64_t before = steer().state().events_made;
  for (int i = 0; i < 100; ++i) {
    Event event;
    event.record(default_stream(one.index));
  }
  CHECK_EQ(steer().state().events_made, before);
}

// ---------------------------------------------------------------- pinned memory

TEST(host_memory_is_found_by_address_and_reused) {
  Device& one = open();
  void* address = nullptr;
  CHECK(host_find(&address) == nullptr);
  HostBlock* block = host_allocate(10000, one.index, &address);
  memset(address, 1, 10000);
  CHECK_EQ(host_find(address), block);
  CHECK_EQ(host_find(static_cast<char*>(address) + 9999), block);
  CHECK(host_find(static_cast<char*>(address) + 12288) != block);
  CHECK(host_find(static_cast<char*>(address) - 1) != block);
  CHECK(is_pinned(address) && !is_pinned(&block));
  host_free(block);
  CHECK(host_find(address) == nullptr);
  void* again = nullptr;
  HostBlock* second = host_allocate(9000, one.index, &again);
  CHECK_EQ(again, address);
  host_free(second);
  host_empty_cache();
  const test_control state = steer().state();
  CHECK_EQ(state.host_allocs, state.host_frees);
}

TEST(host_memory_waits_for_recorded_streams) {
  Device& one = open();
  Stream& busy = pool_stream(one.index, 0);
  steer().hold(busy.handle);
  void *first = nullptr, *second = nullptr, *third = nullptr;
  HostBlock* block = host_allocate(5000, one.index, &first);
  keep_busy(busy);
  host_record(block, busy);
  host_record(block, busy);
  host_free(block);
  HostBlock* other = host_allocate(5000, one.index, &second);
  CHECK(second != first);
  steer().release(busy.handle);
  HostBlock* reused = host_allocate(5000, one.index, &third);
  CHECK_EQ(third, first);
  host_free(other);
  host_free(reused);
  host_empty_cache();
}

TEST(host_memory_without_the_adapters_help) {
  Device& plain = open("plain");
  void* address = nullptr;
  HostBlock* block = host_allocate(100, plain.index, &address);
  CHECK_EQ(reinterpret_cast<uintptr_t>(address) % 4096, 0u);
  CHECK_EQ(host_find(address), block);
  CHECK(!is_pinned(address));
  host_free(block);
  host_empty_cache();
  CHECK_RAISES(host_allocate(UINT64_MAX, plain.index, &address), FL_STATUS_OUT_OF_MEMORY, "out of memory.");
}

// ---------------------------------------------------------------- threads

TEST(threads_allocate_and_free) {
  AdapterSpec limited = spec();
  limited.memory_limit_bytes = 400 * kMiB;
  Device& one = open(limited);
  std::thread threads[4];
  std::atomic<Block*> exchange{nullptr};  // blocks freed by another thread than allocated them
  for (int t = 0; t < 4; ++t) {
    threads[t] = std::thread([&, t] {
      Stream& stream = t % 2 == 0 ? default_stream(one.index) : pool_stream(one.index, 0);
      for (int i = 0; i < 3000; ++i) {
        const uint64_t bytes = static_cast<uint64_t>(1 + (i * 7919 + t * 31) % 300000) * (i % 50 == 0 ? 20 : 1);
        Block* block = one.allocator->allocate(bytes, stream);
        *static_cast<volatile char*>(block->ptr) = static_cast<char>(t);
        if (i % 10 == 0) one.allocator->record_stream(block, default_stream(one.index));
        block = exchange.exchange(block);
        if (block != nullptr) one.allocator->free(block);
        if (i % 1000 == 999) one.allocator->empty_cache();
        if (i % 100 == 0) one.allocator->stats(), one.allocator->snapshot();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  one.allocator->free(exchange.load());
  one.allocator->empty_cache();
  CHECK_EQ(one.allocator->stats().reserved_bytes.current, 0);
  CHECK_EQ(one.allocator->stats().active.current, 0);
}

TEST(threads_streams_events_kernels_host_memory) {
  Device& one = open();
  std::thread threads[4];
  for (int t = 0; t < 4; ++t) {
    threads[t] = std::thread([&, t] {
      for (int i = 0; i < 300; ++i) {
        Stream& stream = pool_stream(one.index, -(i % 3));
        {
          std::lock_guard<std::mutex> lock(stream.mutex);
          keep_busy(stream);
        }
        stream.note(kAdd);
        Event event;
        event.record(stream);
        event.wait(default_stream(one.index));
        if (!event.query()) event.synchronize();
        CHECK(one.kernel(kAdd, DType::Float32, DType::Float32) != nullptr);
        if (i % 50 == 0) one.reset_kernels();
        void* address = nullptr;
        HostBlock* block = host_allocate(4096 * static_cast<uint64_t>(1 + i % 5), one.index, &address);
        *static_cast<char*>(address) = 1;
        CHECK(host_find(address) == block);
        host_record(block, stream);
        host_free(block);
        if (i % 100 == t) fl::synchronize(one.index);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  host_empty_cache();
}
