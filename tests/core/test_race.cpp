// The race finder: overlap of strided operands against counting bytes, and order through events, host and freed memory.
#include "race.h"

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "fixture.h"

using namespace fixture;
using namespace fl;

namespace {

struct Shape {
  uintptr_t begin;
  int64_t itemsize;
  std::vector<int64_t> sizes, strides;
};

std::set<uintptr_t> bytes_of(const Shape& shape) {
  std::set<uintptr_t> starts{shape.begin};
  for (size_t d = 0; d < shape.sizes.size(); ++d) {
    std::set<uintptr_t> next;
    for (const uintptr_t start : starts) {
      for (int64_t i = 0; i < shape.sizes[d]; ++i)
        next.insert(start + static_cast<uintptr_t>(i * shape.strides[d] * shape.itemsize));
    }
    starts = next;
  }
  std::set<uintptr_t> bytes;
  for (const uintptr_t start : starts) {
    for (int64_t i = 0; i < shape.itemsize; ++i)
      bytes.insert(start + static_cast<uintptr_t>(i));
  }
  return bytes;
}

Extent extent_of(const Shape& shape) {
  return Extent::tensor(reinterpret_cast<void*>(shape.begin), shape.itemsize, static_cast<int>(shape.sizes.size()),
                        shape.sizes.data(), shape.strides.data());
}

std::shared_ptr<const RaceWork> work(const char* op, const Stream* stream) {
  return std::make_shared<const RaceWork>(RaceWork{op, stream, nullptr});
}

// What races with op's access to `bytes` bytes at `place`.
std::vector<RaceReport> use(const char* op, const Stream* stream, const Block& block, bool writes, uint64_t bytes = 64,
                            uint64_t offset = 0) {
  return race_access(work(op, stream), {{block.device->index,
                                         Extent::range(static_cast<char*>(block.ptr) + offset, bytes), writes}});
}

struct Checking {
  Checking() { race_start(); }
  ~Checking() { race_stop(); }
};

}  // namespace

TEST(race_extents_meet_where_bytes_do) {
  std::mt19937 random(7);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(random() % (to - from + 1)); };
  int met = 0, apart_inside = 0;
  for (int round = 0; round < 20000; ++round) {
    Shape shapes[2];
    for (Shape& shape : shapes) {
      shape.begin = 4096 + static_cast<uintptr_t>(pick(0, 40));
      shape.itemsize = 1 << pick(0, 2);
      for (int d = pick(0, 3); d > 0; --d) {
        shape.sizes.push_back(pick(1, 4));
        shape.strides.push_back(pick(0, 12));
      }
    }
    const Extent a = extent_of(shapes[0]), b = extent_of(shapes[1]);
    const std::set<uintptr_t> first = bytes_of(shapes[0]), second = bytes_of(shapes[1]);
    bool truth = false, inside = true;
    for (const uintptr_t byte : first) truth = truth || second.count(byte) != 0;
    for (const uintptr_t byte : second) inside = inside && first.count(byte) != 0;
    CHECK_EQ(a.begin, *first.begin());
    CHECK_EQ(a.end, *first.rbegin() + 1);
    CHECK_EQ(meet(a, b), truth);
    CHECK_EQ(meet(b, a), truth);
    CHECK(!covers(a, b) || inside);
    met += truth;
    apart_inside += !truth && a.begin < b.end && b.begin < a.end;
  }
  CHECK(met > 1000 && apart_inside > 1000);  // both answers are really asked for
  const int64_t none[] = {0, 4}, strides[] = {4, 1};
  CHECK(Extent::tensor(&met, 4, 2, none, strides).empty());
}

TEST(race_needs_an_event_between) {
  Device& one = open();
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0), &c = pool_stream(one.index, 0);
  Block* block = one.allocator->allocate(256, a);
  const Checking checking;
  CHECK(use("write", &a, *block, true).empty());
  CHECK(use("write again", &a, *block, true).empty());
  const auto found = use("read", &b, *block, false);
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].first->op, "write again");
  CHECK_EQ(found[0].second->op, "read");
  CHECK(found[0].cause == RaceReport::Cause::Unordered && found[0].first_writes && !found[0].second_writes);
  CHECK_EQ(found[0].block, reinterpret_cast<uintptr_t>(block->ptr));
  CHECK_EQ(found[0].block_bytes, block->size);
  CHECK_EQ(found[0].owner, &a);
  CHECK_EQ(found[0].end - found[0].begin, 64u);
  CHECK(use("elsewhere", &b, *block, true, 64, 64).empty());

  Event event, next;  // through a third stream: order is transitive
  event.record(a);
  event.wait(c);
  next.record(c);
  CHECK_EQ(use("read early", &b, *block, false).size(), 1u);
  next.wait(b);
  CHECK(use("read late", &b, *block, false).empty());
  CHECK(use("read beside", &c, *block, false).empty());
  const auto overwritten = use("overwrite", &a, *block, true);
  CHECK_EQ(overwritten.size(), 1u);
  CHECK_EQ(overwritten[0].first->op, "read beside");
  event.record(b);  // an event of its own by now: what it stood for is replaced
  event.wait(c);
  CHECK_EQ(use("overwritten, not waited for", &c, *block, false).size(), 1u);
  one.allocator->free(block);
}

TEST(race_the_host_orders_what_it_waited_for) {
  Device& one = open();
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0);
  Block* block = one.allocator->allocate(256, a);
  const Checking checking;
  CHECK(use("write", &a, *block, true).empty());
  CHECK_EQ(use("the host reads", nullptr, *block, false).size(), 1u);
  a.synchronize();
  CHECK(use("the host reads", nullptr, *block, false).empty());
  CHECK(use("after a synchronization", &b, *block, true).empty());
  CHECK(b.query());
  CHECK(use("after a query", &a, *block, true).empty());
  Event event;
  event.record(a);
  event.synchronize();
  CHECK(use("after an event", &b, *block, true).empty());
  event.record(b);
  CHECK(use("more", &b, *block, true).empty());
  CHECK(event.query());
  CHECK_EQ(use("the event came before more", &a, *block, true).size(), 1u);
  fl::synchronize(one.index);
  CHECK(use("after all", &b, *block, true).empty());
  one.allocator->free(block);
}

TEST(race_memory_freed_while_used) {
  Device& one = open();
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0);
  const Checking checking;
  Block* block = one.allocator->allocate(256, a);
  void* const place = block->ptr;
  CHECK(use("write", &a, *block, true).empty());
  Event event;
  event.record(a);
  event.wait(b);
  CHECK(use("read", &b, *block, false).empty());
  one.allocator->free(block);
  block = one.allocator->allocate(256, a);
  CHECK_EQ(block->ptr, place);
  const auto freed = use("new owner", &a, *block, true);
  CHECK_EQ(freed.size(), 1u);
  CHECK(freed[0].cause == RaceReport::Cause::Freed && freed[0].first->stream == &b);

  fl::synchronize(one.index);
  CHECK(use("on its own stream", &a, *block, true).empty());
  one.allocator->free(block);
  block = one.allocator->allocate(256, a);
  CHECK_EQ(block->ptr, place);
  const auto reused = use("on another", &b, *block, true);
  CHECK_EQ(reused.size(), 1u);
  CHECK(reused[0].cause == RaceReport::Cause::Reused && reused[0].first->op == "on its own stream");
  one.allocator->free(block);
}

TEST(race_record_stream_is_order) {
  Device& one = open();
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0);
  const Checking checking;
  Block* block = one.allocator->allocate(5 * kMiB, a);
  void* const place = block->ptr;
  CHECK(use("read", &b, *block, false).empty());
  one.allocator->record_stream(block, b);
  one.allocator->free(block);
  one.allocator->empty_cache();
  block = one.allocator->allocate(5 * kMiB, a);
  CHECK(use(block->ptr == place ? "new owner" : "elsewhere", &a, *block, true).empty());
  one.allocator->free(block);
  one.allocator->empty_cache();
  CHECK(race_pending().empty());
}

TEST(race_memory_returned_while_used) {
  Device& one = open();
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0);
  const Checking checking;
  Block* block = one.allocator->allocate(64 * kMiB, a);
  CHECK(use("read", &b, *block, false).empty());
  one.allocator->free(block);
  one.allocator->empty_cache();
  const auto found = race_pending();
  CHECK_EQ(found.size(), 1u);
  CHECK(found[0].cause == RaceReport::Cause::Returned && found[0].first->op == "read" && found[0].second == nullptr);
}

TEST(race_knows_memory_from_before_it_was_switched_on) {
  Device& one = open();
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0);
  Block* block = one.allocator->allocate(256, a);
  const Checking checking;
  CHECK(use("write", &a, *block, true).empty());
  const auto found = use("read", &b, *block, false);
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].block_bytes, block->size);
  one.allocator->free(block);
}

TEST(race_memory_that_nobody_announced) {
  Device& one = open();
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0);
  const Checking checking;
  char place[256];
  const auto touch = [&](const char* op, Stream& stream, int begin, int bytes) {
    return race_access(work(op, &stream), {{one.index, Extent::range(place + begin, static_cast<uint64_t>(bytes)), true}});
  };
  CHECK(touch("left", a, 0, 64).empty());
  CHECK(touch("right", a, 128, 64).empty());
  const auto found = touch("all", b, 0, 256);
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].first->op, "right");
  CHECK_EQ(found[0].block_bytes, 256u);
}

TEST(race_without_events_of_the_adapter) {
  Device& one = open("plain");
  Stream &a = default_stream(one.index), &b = pool_stream(one.index, 0);
  Block* block = one.allocator->allocate(256, a);
  const Checking checking;
  CHECK(use("write", &a, *block, true).empty());
  CHECK_EQ(use("read", &b, *block, false).size(), 1u);
  Event event;
  event.record(a);  // synchronizes
  CHECK(use("read", &b, *block, false).empty());
  one.allocator->free(block);
}

TEST(race_from_many_threads) {
  Device& one = open();
  const Checking checking;
  std::vector<std::thread> threads;
  std::atomic<size_t> found{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Stream& stream = pool_stream(one.index, 0);
      for (int i = 0; i < 200; ++i) {
        Block* block = one.allocator->allocate(static_cast<uint64_t>(256 + 512 * (i % 5)), stream);
        found += use("write", &stream, *block, true).size();
        Event event;
        event.record(stream);
        event.query();
        one.allocator->free(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(found.load(), 0u);
}
