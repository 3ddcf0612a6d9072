// The history of the allocator's events: what is kept, whose stacks, how many; the log; the observer of out of memory.
#include <cstring>
#include <thread>

#include "fixture.h"
#include "memory_history.h"

using namespace fixture;
using namespace fl;

namespace {

thread_local int captures = 0;

CapturedStack numbered_stack(bool) { return std::make_shared<int>(++captures); }
int number(const CapturedStack& stack) { return stack == nullptr ? 0 : *static_cast<int*>(stack.get()); }

// History on for a scope.
struct Recording {
  explicit Recording(StackLevel stacks, uint64_t max_events = 1000) {
    captures = 0;
    set_stack_capture(&numbered_stack);
    HistoryOptions options;
    options.enabled = options.events = true;
    options.stacks = stacks;
    options.max_events = max_events;
    record_memory_history(options);
  }
  ~Recording() {
    record_memory_history({});
    set_memory_log(nullptr);
    set_out_of_memory_observer(nullptr);
  }
};

std::string actions(const Device& device) {
  std::string all;
  for (const MemoryEvent& event : memory_history(device.index)->events())
    all += std::string(all.empty() ? "" : " ") + memory_action_name(event.action);
  return all;
}

std::vector<std::string>& lines() {
  static std::vector<std::string> all;
  return all;
}

int observed[4];

}  // namespace

TEST(history_keeps_events_in_order) {
  Device& one = open();
  const Recording recording(StackLevel::All);
  Block* block = one.allocator->allocate(3 * kMiB, default_stream(one.index));
  one.allocator->free(block);
  one.allocator->empty_cache();
  CHECK_EQ(actions(one), "segment_alloc alloc free_requested free_completed segment_free");
  const std::vector<MemoryEvent> events = memory_history(one.index)->events();
  const int wanted[] = {1, 1, 2, 2, 3};
  for (int i = 0; i < 5; ++i)
    CHECK_EQ(number(events[i].stack), wanted[i]);
  CHECK_EQ(events[1].bytes, 3 * kMiB);
  CHECK(events[0].bytes >= events[1].bytes && events[0].time_us > 0);
}

TEST(history_keeps_the_stacks_of_its_level) {
  const StackLevel levels[] = {StackLevel::Never, StackLevel::State, StackLevel::Alloc};
  for (const StackLevel level : levels) {
    Device& one = open();
    const Recording recording(level);
    Block* block = one.allocator->allocate(1000, default_stream(one.index));
    MemoryHistory& history = *memory_history(one.index);
    CHECK_EQ(number(history.stack_of(block->ptr)), level == StackLevel::Never ? 0 : 1);
    CHECK_EQ(number(one.allocator->snapshot().front().stack), level == StackLevel::Never ? 0 : 1);
    void* ptr = block->ptr;
    one.allocator->free(block);
    CHECK(history.stack_of(ptr) == nullptr);
    for (const MemoryEvent& event : history.events())
      CHECK_EQ(number(event.stack), level == StackLevel::Alloc ? 1 : 0);  // of the allocation, for frees too
  }
}

TEST(history_is_a_ring) {
  Device& one = open();
  const Recording recording(StackLevel::Never, 4);
  for (uint64_t bytes = 1; bytes <= 5; ++bytes)
    one.allocator->free(one.allocator->allocate(bytes, default_stream(one.index)));
  CHECK_EQ(actions(one), "free_completed alloc free_requested free_completed");
  CHECK_EQ(memory_history(one.index)->events().front().bytes, 4u);
  CHECK(memory_history(one.index)->overflowed());
}

TEST(history_off_keeps_nothing) {
  Device& one = open();
  {
    const Recording recording(StackLevel::All);
    one.allocator->allocate(1000, default_stream(one.index));
  }
  CHECK_EQ(actions(one), "");
  one.allocator->free(one.allocator->allocate(1000, default_stream(one.index)));
  CHECK_EQ(actions(one), "");
  CHECK(!memory_history(one.index)->on());
  CHECK(memory_history(10000) == nullptr);
}

TEST(history_shows_memory_that_waits) {
  Device& one = open();
  const Recording recording(StackLevel::Never);
  Stream& busy = pool_stream(one.index, 0);
  steer().hold(busy.handle);
  Block* block = one.allocator->allocate(3 * kMiB, default_stream(one.index));
  one.allocator->record_stream(block, busy);
  one.allocator->free(block);
  CHECK_EQ(actions(one), "segment_alloc alloc free_requested");
  CHECK(one.allocator->snapshot().front().blocks.front().pending);
  steer().release(busy.handle);
  one.allocator->empty_cache();
  CHECK_EQ(actions(one), "segment_alloc alloc free_requested free_completed segment_free");
}

TEST(history_of_the_arena_is_one_segment) {
  AdapterSpec large = spec();
  large.prealloc_bytes = 8 * kMiB;
  Device& one = open(large);
  const Recording recording(StackLevel::Never);
  one.allocator->free(one.allocator->allocate(1000, default_stream(one.index)));
  one.allocator->empty_cache();
  CHECK_EQ(actions(one), "segment_alloc alloc free_requested free_completed segment_free");
  CHECK_EQ(memory_history(one.index)->events().front().bytes, 8 * kMiB);
}

TEST(history_tells_of_out_of_memory) {
  AdapterSpec small = spec();
  small.memory_limit_bytes = 8 * kMiB;
  Device& one = open(small);
  const Recording recording(StackLevel::Alloc);
  set_memory_log([](const std::string& line) { lines().push_back(line); });
  set_out_of_memory_observer([](int device, uint64_t asked, uint64_t allocated, uint64_t) {
    ++observed[0];
    observed[1] = device;
    observed[2] = static_cast<int>(asked / kMiB);
    observed[3] = static_cast<int>(allocated / kMiB);
  });
  lines().clear();
  Block* block = one.allocator->allocate(4 * kMiB, default_stream(one.index));
  CHECK_RAISES(one.allocator->allocate(6 * kMiB, default_stream(one.index)), FL_STATUS_OUT_OF_MEMORY, "out of memory");
  CHECK(observed[0] == 1 && observed[1] == one.index && observed[2] == 6 && observed[3] == 4);
  CHECK_EQ(memory_history(one.index)->events().back().bytes, 6 * kMiB);
  CHECK(number(memory_history(one.index)->events().back().stack) != 0);
  const std::string all = [] {
    std::string joined;
    for (const std::string& line : lines())
      joined += line + "\n";
    return joined;
  }();
  for (const char* words : {": segment_alloc 4.00 MiB on stream 0; reserved 4.00 MiB in 1 segments, allocated 0 bytes",
                            ": releasing the cache to retry 6.00 MiB", ": oom 6.00 MiB"})
    CHECK(all.find(words) != std::string::npos);
  one.allocator->free(block);
  one.allocator->empty_cache();
  CHECK(lines().back().find(": segment_free 4.00 MiB") != std::string::npos);
}

TEST(history_with_threads) {
  Device& one = open();
  const Recording recording(StackLevel::All, 100);
  std::thread threads[3];
  for (std::thread& thread : threads) {
    thread = std::thread([&one] {
      for (int i = 0; i < 500; ++i)
        one.allocator->free(one.allocator->allocate(static_cast<uint64_t>(1 + i * 1000), default_stream(one.index)));
    });
  }
  for (int i = 0; i < 50; ++i) {
    CHECK(memory_history(one.index)->events().size() <= 100);
    one.allocator->snapshot();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(memory_history(one.index)->events().size(), 100u);
}
