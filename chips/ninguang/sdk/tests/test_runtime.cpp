// Memory, copies, streams, events and launches of the SDK's runtime. Faults are in test_faults.cpp.
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "check.h"
#include "ng_virtual_memory.h"

namespace {

bool unified() {
  ngDeviceInfo info;
  OK(ngDeviceGetInfo(0, &info));
  return info.unified != 0;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<float> download(ngStream stream, const void* address, size_t count) {
  std::vector<float> values(count);
  OK(ngMemcpyDtoHAsync(stream, values.data(), address, count * sizeof(float)));
  OK(ngStreamSynchronize(stream));
  return values;
}

sigjmp_buf after_fault;
void on_fault(int) { siglongjmp(after_fault, 1); }

bool host_can_read(const void* address) {
  struct sigaction action = {}, before;
  action.sa_handler = on_fault;
  sigaction(SIGSEGV, &action, &before);
  volatile bool readable = false;
  if (sigsetjmp(after_fault, 1) == 0) {
    (void)*static_cast<const volatile char*>(address);
    readable = true;
  }
  sigaction(SIGSEGV, &before, nullptr);
  return readable;
}

}  // namespace

TEST(devices_are_described) {
  int32_t count = 0;
  OK(ngDeviceCount(&count));
  CHECK(count == 2, "%d devices", count);
  ngDeviceInfo info;
  OK(ngDeviceGetInfo(1, &info));
  CHECK(strcmp(info.uuid, "NG-0000-1") == 0, "uuid %s", info.uuid);
  CHECK(info.total_memory == uint64_t{8192} << 20, "memory %llu", static_cast<unsigned long long>(info.total_memory));
  EXPECT(ngDeviceGetInfo(2, &info), NG_ERROR_INVALID_VALUE);
  EXPECT(ngDeviceGetInfo(-1, &info), NG_ERROR_INVALID_VALUE);
  EXPECT(ngDeviceCount(nullptr), NG_ERROR_INVALID_VALUE);
}

TEST(fork_before_use_is_allowed) {
  const int status = in_child([] {
    ngStream stream = create_stream();
    void* memory = allocate(0, 4096);
    const float value = 3;
    OK(ngMemcpyHtoDAsync(stream, memory, &value, sizeof(value)));
    return download(stream, memory, 1)[0] == 3 ? 0 : 1;
  });
  CHECK(status == 0, "child ended with %d", status);
}

TEST(the_host_cannot_touch_device_memory) {
  void* memory = allocate(0, 1 << 20);
  CHECK(host_can_read(memory) == unified(), "readable: %d", host_can_read(memory));
  ngStream stream = create_stream();
  if (!unified()) {
    EXPECT(ngMemcpyHtoDAsync(stream, memory, memory, 16), NG_ERROR_ILLEGAL_ADDRESS);
  }
  OK(ngStreamDestroy(stream));
  OK(ngFree(0, memory));
}

TEST(memory_is_counted_and_reused) {
  uint64_t before, during, after, total;
  OK(ngDeviceMemory(1, &before, &total));
  void* a = allocate(1, 1000);
  void* b = allocate(1, 3 << 20);
  OK(ngDeviceMemory(1, &during, &total));
  CHECK(before - during == 1024 + (3 << 20), "used %llu", static_cast<unsigned long long>(before - during));
  CHECK(reinterpret_cast<uintptr_t>(b) % 512 == 0, "alignment of %p", b);
  OK(ngFree(1, a));
  OK(ngFree(1, b));
  OK(ngDeviceMemory(1, &after, &total));
  CHECK(after == before, "leak");
  EXPECT(ngFree(1, b), NG_ERROR_INVALID_VALUE);
  void *all = allocate(1, total), *more = nullptr;  // coalesced again
  EXPECT(ngMalloc(1, 1, &more), NG_ERROR_OUT_OF_MEMORY);
  CHECK(strstr(ngGetLastErrorString(), "out of memory") != nullptr, "message");
  OK(ngFree(1, all));
}

TEST(copies_of_all_sizes_keep_their_bytes) {
  ngStream stream = create_stream();
  for (size_t count : {1u, 64u, 65u, 5000u, 17000u, 3000001u}) {
    std::vector<float> source(count);
    std::iota(source.begin(), source.end(), 1.0f);
    void *first = allocate(0, count * 4), *second = allocate(0, count * 4), *other = allocate(1, count * 4);
    sleep_on(stream, 2000);  // busy: the slow ways are taken
    OK(ngMemcpyHtoDAsync(stream, first, source.data(), count * 4));
    const std::vector<float> wanted = source;
    std::fill(source.begin(), source.end(), 0.0f);  // the call has read it
    OK(ngMemcpyDtoDAsync(stream, second, first, count * 4));
    OK(ngMemcpyPeerAsync(stream, 1, other, 0, second, count * 4));
    OK(ngMemcpyPeerAsync(stream, 0, first, 1, other, count * 4));
    CHECK(download(stream, first, count) == wanted, "%zu floats", count);
    OK(ngMemsetAsync(stream, first, 0, count * 4));
    CHECK(download(stream, first, count) == std::vector<float>(count, 0.0f), "fill of %zu", count);
    OK(ngFree(0, first));
    OK(ngFree(0, second));
    OK(ngFree(1, other));
  }
  OK(ngStreamDestroy(stream));
}

TEST(pinned_copies_do_not_wait) {
  ngStream stream = create_stream();
  const size_t bytes = 1 << 20;
  void *host = nullptr, *memory = allocate(0, bytes);
  OK(ngMallocHost(bytes, &host));
  memset(host, 7, bytes);
  const auto start = std::chrono::steady_clock::now();
  sleep_on(stream, 100000);
  OK(ngMemcpyHtoDAsync(stream, memory, host, bytes));
  OK(ngMemcpyDtoHAsync(stream, host, memory, 16));
  CHECK(seconds_since(start) < 0.08, "blocked");
  EXPECT(ngStreamQuery(stream), NG_ERROR_NOT_READY);
  OK(ngStreamSynchronize(stream));
  CHECK(seconds_since(start) >= 0.1, "synchronize returned early");
  OK(ngStreamQuery(stream));
  OK(ngFreeHost(host));
  EXPECT(ngFreeHost(host), NG_ERROR_INVALID_VALUE);
  OK(ngFree(0, memory));
  OK(ngStreamDestroy(stream));
}

TEST(launches_run_in_order) {
  ngStream stream = create_stream();
  const ngOperator add = find_operator("test_add");
  void *sum = allocate(0, 32), *one = allocate(0, 32);
  OK(ngMemsetAsync(stream, sum, 0, 32));
  const std::vector<float> ones(8, 1.0f);
  OK(ngMemcpyHtoDAsync(stream, one, ones.data(), 32));
  Vector a(sum, 8), b(one, 8);
  const ngTensor inputs[] = {a.tensor, b.tensor};
  for (int i = 0; i < 20000; ++i) {  // many times around the ring
    OK(ngOperatorLaunch(add, stream, inputs, 2, &a.tensor, 1, nullptr, 0));
  }
  CHECK(download(stream, sum, 8) == std::vector<float>(8, 20000.0f), "sum");
  ngTensor immediate{};
  immediate.immediate = 1;
  immediate.type = NG_FLOAT32;
  const float value = 0.5f;
  memcpy(immediate.value, &value, sizeof(value));
  const ngTensor with_immediate[] = {a.tensor, immediate};
  OK(ngOperatorLaunch(add, stream, with_immediate, 2, &a.tensor, 1, nullptr, 0));
  CHECK(download(stream, sum, 8) == std::vector<float>(8, 20000.5f), "immediate");
  OK(ngStreamDestroy(stream));
}

TEST(a_launch_takes_many_operands) {
  ngStream stream = create_stream();
  const int count = 200;
  void* memory = allocate(0, 512 * (count + 1));
  OK(ngMemsetAsync(stream, memory, 0, 512 * (count + 1)));
  std::vector<Vector> vectors;
  vectors.reserve(count + 1);
  std::vector<ngTensor> tensors;
  for (int i = 0; i <= count; ++i) {
    vectors.emplace_back(static_cast<char*>(memory) + 512 * i, 4);
    const float value = static_cast<float>(i);
    OK(ngMemcpyHtoDAsync(stream, vectors.back().tensor.data, &value, sizeof(value)));
    tensors.push_back(vectors.back().tensor);
  }
  tensors[7] = ngTensor{};
  tensors[7].absent = 1;
  OK(ngOperatorLaunch(find_operator("test_add_all"), stream, tensors.data() + 1, count, tensors.data(), 1, nullptr, 0));
  CHECK(download(stream, memory, 1)[0] == count * (count + 1) / 2 - 7, "sum");
  OK(ngStreamDestroy(stream));
}

TEST(several_threads_may_use_one_stream) {
  ngStream stream = create_stream();
  const ngOperator add = find_operator("test_add");
  void* memory = allocate(0, 1024);
  OK(ngMemsetAsync(stream, memory, 0, 1024));
  const float one = 1;
  OK(ngMemcpyHtoDAsync(stream, static_cast<char*>(memory) + 512, &one, sizeof(one)));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Vector sum(memory, 1), step(static_cast<char*>(memory) + 512, 1);
      const ngTensor inputs[] = {sum.tensor, step.tensor};
      for (int i = 0; i < 5000; ++i) OK(ngOperatorLaunch(add, stream, inputs, 2, &sum.tensor, 1, nullptr, 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(download(stream, memory, 1)[0] == 20000, "lost launches");
  OK(ngStreamDestroy(stream));
}

TEST(operands_are_checked) {
  ngStream stream = create_stream();
  const ngOperator add = find_operator("test_add");
  void* memory = allocate(0, 4096);
  Vector good(memory, 8), odd(static_cast<char*>(memory) + 2, 8), foreign(&good, 8), huge(memory, int64_t{1} << 40);
  Vector elsewhere(allocate(1, 64), 8);
  const auto launch = [&](const Vector& a) {
    const ngTensor inputs[] = {a.tensor, good.tensor};
    ngTensor pair[2] = {inputs[0], inputs[1]};
    return ngOperatorLaunch(add, stream, pair, 2, &good.tensor, 1, nullptr, 0);
  };
  huge.tensor.sizes = &huge.size;
  OK(launch(good));
  EXPECT(launch(odd), NG_ERROR_MISALIGNED);
  EXPECT(launch(foreign), NG_ERROR_ILLEGAL_ADDRESS);
  EXPECT(launch(huge), NG_ERROR_ILLEGAL_ADDRESS);
  EXPECT(launch(elsewhere), NG_ERROR_ILLEGAL_ADDRESS);
  CHECK(strstr(ngGetLastErrorString(), "test_add, input 0") != nullptr, "message");
  ngTensor bad_type = good.tensor;
  bad_type.type = 99;
  EXPECT(ngOperatorLaunch(add, stream, &bad_type, 1, &good.tensor, 1, nullptr, 0), NG_ERROR_INVALID_VALUE);
  EXPECT(ngMemsetAsync(stream, &good, 0, 8), NG_ERROR_ILLEGAL_ADDRESS);
  EXPECT(ngMemsetAsync(nullptr, memory, 0, 8), NG_ERROR_INVALID_VALUE);
  OK(ngStreamSynchronize(stream));
  OK(ngStreamDestroy(stream));
}

TEST(operators_are_found_by_name_and_types) {
  ngOperator op = nullptr, again = nullptr;
  EXPECT(ngOperatorFind(0, "no_such", NG_FLOAT32, NG_FLOAT32, &op), NG_ERROR_NOT_SUPPORTED);
  EXPECT(ngOperatorFind(0, "test_add", NG_INT8, NG_INT8, &op), NG_ERROR_NOT_SUPPORTED);
  EXPECT(ngOperatorFind(0, "test_add", NG_FLOAT32, NG_BOOL, &op), NG_ERROR_NOT_SUPPORTED);
  EXPECT(ngOperatorFind(0, "test_add", NG_DATA_TYPE_COUNT, NG_BOOL, &op), NG_ERROR_NOT_SUPPORTED);
  EXPECT(ngOperatorFind(9, "test_add", NG_FLOAT32, NG_FLOAT32, &op), NG_ERROR_INVALID_VALUE);
  OK(ngOperatorFind(0, "test_refuse", NG_INT64, NG_BOOL, &op));
  OK(ngOperatorFind(1, "test_refuse", NG_INT64, NG_BOOL, &again));
  CHECK(op == again, "handles differ");
  ngStream stream = create_stream();
  Vector operand(allocate(0, 64), 8);
  EXPECT(ngOperatorLaunch(op, stream, &operand.tensor, 1, &operand.tensor, 1, nullptr, 0), NG_ERROR_NOT_SUPPORTED);
  OK(ngOperatorLaunch(op, stream, nullptr, 0, &operand.tensor, 1, nullptr, 0));
  OK(ngStreamSynchronize(stream));
  OK(ngStreamDestroy(stream));
}

TEST(parallel_work_is_done_once) {
  constexpr int kStreams = 3;
  ngStream streams[kStreams];
  std::vector<Vector> vectors;
  const ngScalar attrs[] = {integer(-1), integer(-1)};
  for (int s = 0; s < kStreams; ++s) {
    streams[s] = create_stream();
    vectors.emplace_back(allocate(0, 4 * 5000), 5000);
    OK(ngMemsetAsync(streams[s], vectors[s].tensor.data, 0, 4 * 5000));
  }
  const ngOperator visit = find_operator("test_visit");
  int64_t sizes[] = {200, 333, 5000};
  const int rounds = 300;
  for (int round = 0; round < rounds; ++round) {
    for (int s = 0; s < kStreams; ++s) {
      ngTensor out = vectors[s].tensor;
      out.sizes = &sizes[s];
      out.strides = &vectors[s].stride;
      OK(ngOperatorLaunch(visit, streams[s], nullptr, 0, &out, 1, attrs, 2));
    }
    if (round % 7 == 0) usleep(150);  // the helpers fall asleep now and then
  }
  for (int s = 0; s < kStreams; ++s) {
    const std::vector<float> visits = download(streams[s], vectors[s].tensor.data, static_cast<size_t>(sizes[s]));
    for (float count : visits) CHECK(count == rounds, "%g visits", count);
    OK(ngStreamDestroy(streams[s]));
  }
}

TEST(a_failure_in_a_part_is_reported) {
  ngStream stream = create_stream();
  Vector vector(allocate(0, 4 * 5000), 5000);
  const ngOperator visit = find_operator("test_visit");
  for (int64_t item : {0, 2500, 4999}) {
    const ngScalar throws[] = {integer(item), integer(-1)}, fails[] = {integer(-1), integer(item)};
    OK(ngOperatorLaunch(visit, stream, nullptr, 0, &vector.tensor, 1, throws, 2));
    EXPECT(ngStreamSynchronize(stream), NG_ERROR_INTERNAL);
    CHECK(strstr(ngGetLastErrorString(), "thrown in a part") != nullptr, "message");
    OK(ngOperatorLaunch(visit, stream, nullptr, 0, &vector.tensor, 1, fails, 2));
    EXPECT(ngStreamSynchronize(stream), NG_ERROR_INDEX_OUT_OF_RANGE);
    CHECK(strstr(ngGetLastErrorString(), "item ") != nullptr, "message");
  }
  OK(ngStreamDestroy(stream));
}

// Around the moment at which a worker falls asleep no launch may be forgotten.
TEST(sleeping_workers_wake) {
  ngStream stream = create_stream();
  const ngOperator add = find_operator("test_add");
  Vector operand(allocate(0, 64), 8);
  const ngTensor inputs[] = {operand.tensor, operand.tensor};
  for (int i = 0; i < 3000; ++i) {
    OK(ngOperatorLaunch(add, stream, inputs, 2, &operand.tensor, 1, nullptr, 0));
    if (i % 3 != 0) OK(ngStreamSynchronize(stream));
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 90);
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  OK(ngStreamSynchronize(stream));
  OK(ngStreamDestroy(stream));
}

TEST(events_order_streams_across_devices) {
  ngStream first = create_stream(0), second = create_stream(1);
  void *source = allocate(0, 64), *target = allocate(1, 64);
  for (int round = 1; round <= 50; ++round) {
    ngEvent ready = create_event();
    const float value = static_cast<float>(round);
    sleep_on(first, 300);
    OK(ngMemcpyHtoDAsync(first, source, &value, sizeof(value)));
    OK(ngEventRecord(ready, first));
    OK(ngStreamWaitEvent(second, ready));
    OK(ngEventDestroy(ready));  // the wait keeps what it needs
    OK(ngMemcpyPeerAsync(second, 1, target, 0, source, sizeof(value)));
    CHECK(download(second, target, 1)[0] == value, "round %d", round);
  }
  OK(ngStreamDestroy(first));
  OK(ngStreamDestroy(second));
}

TEST(a_wait_means_the_record_before_it) {
  ngStream slow = create_stream(), quick = create_stream(), waiting = create_stream();
  ngEvent event = create_event();
  OK(ngEventQuery(event));  // never recorded: complete
  OK(ngEventSynchronize(event));
  const auto start = std::chrono::steady_clock::now();
  sleep_on(slow, 50000);
  OK(ngEventRecord(event, slow));
  EXPECT(ngEventQuery(event), NG_ERROR_NOT_READY);
  sleep_on(waiting, 1);
  OK(ngStreamWaitEvent(waiting, event));
  OK(ngEventRecord(event, quick));  // a later record does not release the waiter
  OK(ngEventSynchronize(event));
  CHECK(seconds_since(start) < 0.045, "the new record is complete at once");
  OK(ngStreamSynchronize(waiting));
  CHECK(seconds_since(start) >= 0.05, "released by the wrong record");
  for (ngStream stream : {slow, quick, waiting}) OK(ngStreamDestroy(stream));
  OK(ngEventDestroy(event));
}

TEST(events_measure_time) {
  ngStream stream = create_stream();
  ngEvent start = create_event(1), end = create_event(1), plain = create_event(0);
  double milliseconds = 0;
  EXPECT(ngEventElapsedTime(start, end, &milliseconds), NG_ERROR_INVALID_VALUE);
  OK(ngEventRecord(start, stream));
  sleep_on(stream, 20000);
  OK(ngEventRecord(end, stream));
  EXPECT(ngEventElapsedTime(start, end, &milliseconds), NG_ERROR_NOT_READY);
  OK(ngEventSynchronize(end));
  OK(ngEventElapsedTime(start, end, &milliseconds));
  CHECK(milliseconds >= 20 && milliseconds < 500, "%g ms", milliseconds);
  OK(ngEventRecord(plain, stream));
  EXPECT(ngEventElapsedTime(start, plain, &milliseconds), NG_ERROR_INVALID_VALUE);
  for (ngEvent event : {start, end, plain}) OK(ngEventDestroy(event));
  OK(ngStreamDestroy(stream));
}

TEST(a_full_ring_waits_without_deadlock) {
  ngStream first = create_stream(), second = create_stream();
  ngEvent event = create_event();
  const ngOperator add = find_operator("test_add");
  Vector operand(allocate(0, 64), 8);
  const ngTensor inputs[] = {operand.tensor, operand.tensor};
  for (int round = 0; round < 20; ++round) {
    sleep_on(first, 2000);
    OK(ngEventRecord(event, first));
    OK(ngStreamWaitEvent(second, event));
    for (int i = 0; i < 600; ++i) OK(ngOperatorLaunch(add, second, inputs, 2, &operand.tensor, 1, nullptr, 0));
    OK(ngEventRecord(event, second));
    OK(ngStreamWaitEvent(first, event));
  }
  OK(ngDeviceSynchronize(0));
  OK(ngStreamQuery(first));
  OK(ngStreamQuery(second));
  OK(ngStreamDestroy(first));
  OK(ngStreamDestroy(second));
  OK(ngEventDestroy(event));
}

TEST(a_destroyed_stream_finishes_its_work) {
  ngStream stream = create_stream(), other = create_stream();
  void* memory = allocate(0, 64);
  const float value = 9;
  ngEvent event = create_event();
  sleep_on(stream, 20000);
  OK(ngMemcpyHtoDAsync(stream, memory, &value, sizeof(value)));
  OK(ngEventRecord(event, stream));
  OK(ngStreamDestroy(stream));
  EXPECT(ngStreamDestroy(stream), NG_ERROR_INVALID_VALUE);
  OK(ngEventSynchronize(event));
  CHECK(download(other, memory, 1)[0] == 9, "dropped");
  OK(ngStreamDestroy(other));
  OK(ngEventDestroy(event));
}

TEST(ranges_are_mapped_page_by_page) {
  uint64_t page = 0, free_before = 0, free_now = 0, total = 0;
  OK(ngMemGetGranularity(0, &page));
  CHECK(page == 2u << 20, "page %llu", static_cast<unsigned long long>(page));
  void* range = nullptr;
  OK(ngMemAddressReserve(0, 64 * page, &range));
  OK(ngDeviceMemory(0, &free_before, &total));
  char* at = static_cast<char*>(range);
  ngStream stream;
  OK(ngStreamCreate(0, 0, &stream));
  EXPECT(ngMemsetAsync(stream, at, 1, 4), NG_ERROR_ILLEGAL_ADDRESS);
  OK(ngMemMap(0, at, 2 * page));
  OK(ngMemMap(0, at + 2 * page, page));
  OK(ngDeviceMemory(0, &free_now, &total));
  CHECK(free_before - free_now == 3 * page, "%llu bytes are used", static_cast<unsigned long long>(free_before - free_now));
  EXPECT(ngMemMap(0, at + 2 * page, page), NG_ERROR_INVALID_VALUE);
  EXPECT(ngMemMap(0, at + 1, page), NG_ERROR_INVALID_VALUE);
  EXPECT(ngMemMap(0, at + 63 * page, 2 * page), NG_ERROR_INVALID_VALUE);
  EXPECT(ngMemMap(0, at + 3 * page, total), NG_ERROR_INVALID_VALUE);
  CHECK(unified() || !host_can_read(at), "the host reads mapped memory");
  OK(ngMemsetAsync(stream, at + 2 * page - 8, 7, 16));  // across two maps
  OK(ngStreamSynchronize(stream));
  EXPECT(ngMemsetAsync(stream, at + 3 * page - 8, 7, 16), NG_ERROR_ILLEGAL_ADDRESS);
  unsigned char got[16] = {};
  OK(ngMemcpyDtoHAsync(stream, got, at + 2 * page - 8, sizeof(got)));
  OK(ngStreamSynchronize(stream));
  CHECK(got[0] == 7 && got[15] == 7, "read %d and %d", got[0], got[15]);
  EXPECT(ngMemAddressFree(0, at, 64 * page), NG_ERROR_INVALID_VALUE);
  EXPECT(ngMemUnmap(0, at + 2 * page, 2 * page), NG_ERROR_INVALID_VALUE);
  OK(ngMemUnmap(0, at + page, 2 * page));
  EXPECT(ngMemcpyDtoHAsync(stream, got, at + 2 * page - 8, sizeof(got)), NG_ERROR_ILLEGAL_ADDRESS);
  OK(ngMemUnmap(0, at, page));
  OK(ngMemAddressFree(0, at, 64 * page));
  EXPECT(ngMemAddressFree(0, at, 64 * page), NG_ERROR_INVALID_VALUE);
  OK(ngDeviceMemory(0, &free_now, &total));
  CHECK(free_before == free_now, "%llu bytes are lost", static_cast<unsigned long long>(free_before - free_now));
  OK(ngStreamDestroy(stream));
}

TEST(ranges_and_blocks_share_the_memory) {
  uint64_t page = 0, free_bytes = 0, total = 0;
  OK(ngMemGetGranularity(0, &page));
  OK(ngDeviceMemory(0, &free_bytes, &total));
  void *range = nullptr, *other = nullptr, *block = nullptr;
  OK(ngMemAddressReserve(0, total, &range));
  OK(ngMemAddressReserve(0, total, &other));
  const uint64_t all = free_bytes / page * page;
  OK(ngMemMap(0, range, all));
  EXPECT(ngMemMap(0, other, page), NG_ERROR_OUT_OF_MEMORY);
  EXPECT(ngMalloc(0, page, &block), NG_ERROR_OUT_OF_MEMORY);
  OK(ngMemUnmap(0, static_cast<char*>(range) + all - page, page));
  OK(ngMalloc(0, page, &block));
  EXPECT(ngMemMap(0, other, page), NG_ERROR_OUT_OF_MEMORY);
  OK(ngFree(0, block));
  OK(ngMemMap(0, other, page));
  OK(ngMemUnmap(0, other, page));
  OK(ngMemUnmap(0, range, all - page));
  OK(ngMemAddressFree(0, range, total));
  OK(ngMemAddressFree(0, other, total));
}
