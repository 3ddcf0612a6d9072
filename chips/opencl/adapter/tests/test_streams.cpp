// Order within and between streams, queries, events and their times, from several threads.
#include <chrono>
#include <thread>

#include "driver.h"

namespace {

constexpr uint64_t kLarge = 64u << 20;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Done>
void wait_until(const Done& done) {
  const double limit = now_ms() + 60000;
  while (!done()) {
    CHECK(now_ms() < limit);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

fl_event new_event(int device, uint32_t flags = 0) {
  fl_event event;
  OK(a->event_create(device, flags, &event));
  return event;
}

// Work starts and is seen to end by queries alone.
void queries(const Bench& bench) {
  OK(a->stream_query(bench.stream));
  const fl_memory memory = bench.alloc(kLarge);
  for (int i = 0; i < 4; ++i) OK(a->fill(bench.stream, memory, static_cast<uint8_t>(i), kLarge));
  const fl_event event = new_event(bench.device);
  OK(a->event_query(event));  // never recorded
  OK(a->event_synchronize(event));
  OK(a->event_record(event, bench.stream));
  const double start = now_ms();
  const fl_status first = a->stream_query(bench.stream);
  CHECK(first == FL_STATUS_OK || first == FL_STATUS_NOT_READY);
  CHECK(now_ms() - start < 1000);
  wait_until([&] { return a->event_query(event) == FL_STATUS_OK; });
  wait_until([&] { return a->stream_query(bench.stream) == FL_STATUS_OK; });
  OK(a->stream_query(bench.stream));
  CHECK(bench.get<uint8_t>(memory, 9)[8] == 3);
  OK(a->event_destroy(event));
  bench.free(memory);
}

void across_streams(const Bench& bench) {
  const fl_stream other = bench.new_stream(-1);
  const fl_memory x = bench.alloc(kLarge), y = bench.alloc(kLarge);
  const fl_event event = new_event(bench.device);
  for (int round = 1; round <= 20; ++round) {
    OK(a->fill(bench.stream, x, static_cast<uint8_t>(round), kLarge));
    OK(a->event_record(event, bench.stream));
    OK(a->stream_wait_event(other, event));
    OK(a->copy_d2d(other, y, x, kLarge));
    OK(a->event_record(event, other));
    OK(a->stream_wait_event(bench.stream, event));  // x must not be filled before it was read
  }
  OK(a->stream_synchronize(other));
  const std::vector<uint8_t> values = bench.get<uint8_t>(y, kLarge);
  for (const uint8_t value : values) CHECK(value == 20);
  OK(a->device_synchronize(bench.device));
  OK(a->event_destroy(event));
  OK(a->stream_destroy(other));
  bench.free(x);
  bench.free(y);
}

void times(const Bench& bench) {
  const fl_event start = new_event(bench.device, FL_EVENT_TIMING), end = new_event(bench.device, FL_EVENT_TIMING);
  const fl_event plain = new_event(bench.device);
  double ms = -1;
  CHECK(a->event_elapsed(start, end, &ms) == FL_STATUS_FAILED_PRECONDITION);
  const fl_memory memory = bench.alloc(kLarge);
  OK(a->fill(bench.stream, memory, 0, kLarge));
  OK(a->stream_synchronize(bench.stream));
  const double before = now_ms();
  OK(a->event_record(start, bench.stream));
  for (int i = 0; i < 10; ++i) OK(a->fill(bench.stream, memory, static_cast<uint8_t>(i), kLarge));
  OK(a->event_record(end, bench.stream));
  OK(a->event_record(plain, bench.stream));
  OK(a->event_synchronize(end));
  const double taken = now_ms() - before;
  OK(a->event_elapsed(start, end, &ms));
  CHECK(ms > 0 && ms <= taken + 1);
  CHECK(ms > taken / 20);  // of the right size
  OK(a->event_synchronize(plain));
  CHECK(a->event_elapsed(start, plain, &ms) == FL_STATUS_FAILED_PRECONDITION);
  for (const fl_event event : {start, end, plain}) OK(a->event_destroy(event));
  bench.free(memory);
}

void threads(const Bench& bench) {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&bench, t] {
      const Bench mine(bench.device);
      for (int i = 0; i < 50; ++i) {
        const std::vector<int> values(1000 + i, t * 1000 + i);
        const fl_memory memory = mine.put(values);
        CHECK(mine.get<int>(memory, values.size()) == values);
        mine.free(memory);
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

void misuse(const Bench& bench) {
  CHECK(a->stream_synchronize(nullptr) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->event_query(nullptr) == FL_STATUS_INVALID_ARGUMENT);
  fl_stream stream;
  CHECK(a->stream_create(99, 0, &stream) == FL_STATUS_INVALID_ARGUMENT && stream == nullptr);
  for (int other = 0; other < num_devices(); ++other) {
    if (other == bench.device) continue;
    const Bench stranger(other);
    const fl_event event = new_event(bench.device);
    CHECK(a->event_record(event, stranger.stream) == FL_STATUS_INVALID_ARGUMENT);
    OK(a->event_record(event, bench.stream));
    const fl_status status = a->stream_wait_event(stranger.stream, event);  // the other platform's events are unknown
    CHECK(status == FL_STATUS_OK || status == FL_STATUS_UNIMPLEMENTED);
    OK(a->stream_synchronize(stranger.stream));
    OK(a->event_destroy(event));
  }
  // A stream may go with work on it, and an event outlives its stream.
  const fl_event event = new_event(bench.device);
  const fl_memory memory = bench.alloc(kLarge);
  const fl_stream brief = bench.new_stream();
  OK(a->fill(brief, memory, 1, kLarge));
  OK(a->event_record(event, brief));
  OK(a->stream_destroy(brief));
  OK(a->event_synchronize(event));
  OK(a->event_query(event));
  OK(a->event_destroy(event));
  bench.free(memory);
}

void all_streams() {
  for (int device = 0; device < num_devices(); ++device) {
    const Bench bench(device);
    queries(bench);
    across_streams(bench);
    times(bench);
    threads(bench);
    misuse(bench);
  }
}

}  // namespace

const std::vector<Scenario> stream_scenarios = {{"streams", all_streams}};
