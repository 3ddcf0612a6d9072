// Failures: of kernels, injected ones, lost devices, forked children and the end of the process.
// The last test loses device 1, so this file is linked after the others and keeps it at its end.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "check.h"

namespace {

ngResult launch(const char* name, ngStream stream) {
  const ngScalar attr = integer(42);
  return ngOperatorLaunch(find_operator(name), stream, nullptr, 0, nullptr, 0, &attr, 1);
}

bool said(const char* text) { return strstr(ngGetLastErrorString(), text) != nullptr; }

}  // namespace

TEST(a_failure_is_reported_once) {
  ngStream stream = create_stream();
  OK(launch("test_fail", stream));
  OK(launch("test_throw", stream));
  EXPECT(ngStreamSynchronize(stream), NG_ERROR_INDEX_OUT_OF_RANGE);
  CHECK(said("test_fail on device 0: index 42 is out of range"), "the first failure wins");
  OK(ngStreamSynchronize(stream));
  OK(launch("test_throw", stream));
  OK(launch("test_sleep", stream));  // later work still runs
  EXPECT(ngStreamSynchronize(stream), NG_ERROR_INTERNAL);
  CHECK(said("thrown by a kernel"), "message");
  OK(launch("test_fail_late", stream));
  EXPECT(ngDeviceSynchronize(0), NG_ERROR_LAUNCH_FAILED);
  OK(launch("test_fail", stream));
  ngResult result;
  while ((result = ngStreamQuery(stream)) == NG_ERROR_NOT_READY) usleep(10);
  CHECK(result == NG_ERROR_INDEX_OUT_OF_RANGE, "%s", ngErrorName(result));
  OK(ngStreamQuery(stream));
  OK(ngStreamDestroy(stream));
}

TEST(a_destroyed_stream_still_reports) {
  ngStream stream = create_stream();
  sleep_on(stream, 10000);
  OK(launch("test_fail", stream));
  OK(ngStreamDestroy(stream));
  EXPECT(ngDeviceSynchronize(0), NG_ERROR_INDEX_OUT_OF_RANGE);
  OK(ngDeviceSynchronize(0));
}

TEST(an_event_reports_what_failed_before_it) {
  ngStream stream = create_stream();
  ngEvent before = create_event(), after = create_event();
  OK(ngEventRecord(before, stream));
  OK(launch("test_fail", stream));
  OK(ngEventRecord(after, stream));
  sleep_on(stream, 1000);
  OK(ngEventSynchronize(before));
  EXPECT(ngEventSynchronize(after), NG_ERROR_INDEX_OUT_OF_RANGE);
  OK(ngStreamSynchronize(stream));
  OK(ngEventDestroy(before));
  OK(ngEventDestroy(after));
  OK(ngStreamDestroy(stream));
}

TEST(injected_faults_hit_when_told) {
  ngStream stream = create_stream();
  void *memory = nullptr, *place = allocate(0, 64);
  OK(ngFaultSet("oom:2@0,launch:3:every"));
  OK(ngMalloc(1, 64, &memory));
  OK(ngMalloc(0, 64, &memory));
  EXPECT(ngMalloc(0, 64, &memory), NG_ERROR_OUT_OF_MEMORY);
  OK(ngMalloc(0, 64, &memory));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) OK(launch("test_sleep", stream));
    EXPECT(ngStreamSynchronize(stream), NG_ERROR_LAUNCH_FAILED);
  }
  OK(ngFaultSet("copy:1,event:1,stream:1,sync:1,call:ngMemsetAsync:1"));
  const float value = 1;
  EXPECT(ngMemcpyHtoDAsync(stream, place, &value, 4), NG_ERROR_INTERNAL);
  OK(ngMemcpyHtoDAsync(stream, place, &value, 4));
  ngEvent event = nullptr;
  EXPECT(ngEventCreate(0, 0, &event), NG_ERROR_INTERNAL);
  ngStream other = nullptr;
  EXPECT(ngStreamCreate(0, 0, &other), NG_ERROR_INTERNAL);
  EXPECT(ngStreamSynchronize(stream), NG_ERROR_TIMEOUT);
  EXPECT(ngMemsetAsync(stream, place, 0, 4), NG_ERROR_INTERNAL);
  OK(ngMemsetAsync(stream, place, 0, 4));
  for (const char* bad : {"oom", "oom:x", "nothing:1", "call:ngFree", "oom:1:often", "oom:0", "oom:1@", "delay:x", "delay:1:x", "delay:1:2:3",
                          "slow_copy:1:2"}) {
    EXPECT(ngFaultSet(bad), NG_ERROR_INVALID_VALUE);
  }
  OK(ngFaultSet("slow_copy:30000"));
  const auto start = std::chrono::steady_clock::now();
  OK(ngMemcpyHtoDAsync(stream, place, &value, 4));
  OK(ngStreamSynchronize(stream));
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(30), "not slow");
  OK(ngFaultSet(nullptr));
  OK(ngStreamDestroy(stream));
}

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// How long `count` commands of one kind take on this stream.
double time_of(ngStream stream, void* place, char kind, int count) {
  static const float value = 1;
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    if (kind == 'k') OK(launch("test_refuse", stream));
    if (kind == 'c') OK(ngMemcpyHtoDAsync(stream, place, &value, 4));
    if (kind == 'f') OK(ngMemsetAsync(stream, place, 0, 64));
  }
  OK(ngStreamSynchronize(stream));
  return milliseconds_since(start);
}

}  // namespace

TEST(delays_hold_up_what_they_name) {
  ngStream stream = create_stream();
  void* place = allocate(0, 64);
  for (const char* armed : {"delay_kernel:20000:", "delay_copy:20000:", "delay_fill:20000:"}) {
    for (const char kind : {'k', 'c', 'f'}) {
      double longest = 0;
      for (int seed = 0; seed < 12; ++seed) {  // some of them give the stream a pace other than none
        OK(ngFaultSet((std::string(armed) + std::to_string(seed)).c_str()));
        longest = std::max(longest, time_of(stream, place, kind, 4));
      }
      const bool meant = armed[6] == kind;
      CHECK(meant ? longest > 20 : longest < 20, "%s, %c: %g ms", armed, kind, longest);
    }
  }
  OK(ngFaultSet("delay:20000:1@1"));
  CHECK(time_of(stream, place, 'f', 4) < 20, "the delay is another device's");
  OK(ngFaultSet(nullptr));
  OK(ngFree(0, place));
  OK(ngStreamDestroy(stream));
}

// For some seeds the one stream is far ahead, for others the other one; and the host waits for neither.
// For some seeds the one stream is far ahead, for others the other one; and the host waits for neither.
TEST(delays_are_each_streams_own) {
  ngStream streams[2] = {create_stream(), create_stream()};
  void* places[2] = {allocate(0, 64), allocate(0, 64)};
  int late[2] = {0, 0}, prompt = 0;
  for (int seed = 0; seed < 32; ++seed) {
    OK(ngFaultSet(("delay:8000:" + std::to_string(seed / 2)).c_str()));
    const auto start = Clock::now();
    for (int i = 0; i < 4; ++i) {
      for (int s = 0; s < 2; ++s) OK(ngMemsetAsync(streams[s], places[s], 0, 64));
    }
    if (milliseconds_since(start) < 4) ++prompt;
    const int first = seed % 2, other = 1 - first;
    OK(ngStreamSynchronize(streams[first]));
    if (ngStreamQuery(streams[other]) == NG_ERROR_NOT_READY) ++late[other];
    OK(ngStreamSynchronize(streams[other]));
  }
  CHECK(late[0] >= 2 && late[1] >= 2, "stream 0 was late %d times, stream 1 %d times", late[0], late[1]);
  CHECK(prompt >= 16, "the host was held up: only %d of 32 times it was not", prompt);
  OK(ngFaultSet(nullptr));
  for (int s = 0; s < 2; ++s) {
    OK(ngFree(0, places[s]));
    OK(ngStreamDestroy(streams[s]));
  }
}

TEST(an_early_copy_returns_before_it_is_done) {
  ngStream stream = create_stream();
  void* place = allocate(0, 64);
  float value = 7;
  OK(ngMemcpyHtoDAsync(stream, place, &value, 4));
  OK(ngStreamSynchronize(stream));
  float read = 0;
  OK(ngFaultSet("early_copy:1,slow_copy:30000"));
  OK(ngMemcpyDtoHAsync(stream, &read, place, 4));
  CHECK(__atomic_load_n(reinterpret_cast<int*>(&read), __ATOMIC_RELAXED) == 0, "it was waited for");
  OK(ngStreamSynchronize(stream));
  CHECK(read == 7, "%g", read);
  read = 0;
  OK(ngMemcpyDtoHAsync(stream, &read, place, 4));
  CHECK(read == 7, "only the first was early: %g", read);
  OK(ngFaultSet(nullptr));
  OK(ngFree(0, place));
  OK(ngStreamDestroy(stream));
}

TEST(a_forked_child_is_refused) {
  sleep_on(create_stream(), 100);
  const int status = in_child([] {
    int32_t count;
    void* memory;
    EXPECT(ngDeviceCount(&count), NG_ERROR_NO_DEVICE);
    EXPECT(ngMalloc(0, 64, &memory), NG_ERROR_NO_DEVICE);
    CHECK(said("fork"), "message");
    return 0;
  });
  CHECK(status == 0, "child ended with %d", status);
}

// exec, because a forked child may not use the chip.
TEST(the_process_may_end_with_work_queued) {
  const int status = in_child([] {
    execl("/proc/self/exe", "test", "queue_work_and_leave", nullptr);
    return 1;
  });
  CHECK(status == 0, "child ended with %d", status);
}

TEST(queue_work_and_leave) {
  if (getppid() == 1) return;
  for (int i = 0; i < 4; ++i) {
    ngStream stream = create_stream(i % 2);
    for (int k = 0; k < 100; ++k) sleep_on(stream, 20000);
  }
}

TEST(a_lost_device_stays_lost) {
  ngStream stream = create_stream(1), other = create_stream(1), healthy = create_stream(0);
  void* memory = allocate(1, 64);
  ngEvent event = create_event(1, 1);
  OK(ngFaultSet("lost:2@1"));
  OK(launch("test_sleep", healthy));
  for (int i = 0; i < 5; ++i) {
    const ngResult result = launch("test_sleep", stream);
    CHECK(result == NG_SUCCESS || (i >= 2 && result == NG_ERROR_DEVICE_LOST), "%s", ngErrorName(result));
  }
  EXPECT(ngStreamSynchronize(stream), NG_ERROR_DEVICE_LOST);
  EXPECT(ngStreamSynchronize(stream), NG_ERROR_DEVICE_LOST);
  EXPECT(ngStreamQuery(other), NG_ERROR_DEVICE_LOST);
  EXPECT(ngMemsetAsync(other, memory, 0, 64), NG_ERROR_DEVICE_LOST);
  EXPECT(ngEventRecord(event, other), NG_ERROR_DEVICE_LOST);
  EXPECT(ngDeviceSynchronize(1), NG_ERROR_DEVICE_LOST);
  void* more;
  EXPECT(ngMalloc(1, 64, &more), NG_ERROR_DEVICE_LOST);
  CHECK(said("device 1"), "message");
  OK(ngFaultSet(""));
  OK(ngStreamSynchronize(healthy));
  OK(ngDeviceSynchronize(0));
  for (ngStream each : {stream, other, healthy}) OK(ngStreamDestroy(each));
  OK(ngEventDestroy(event));
}
