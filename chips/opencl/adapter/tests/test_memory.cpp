// Allocation, limits, checks of places, copies and fills, on every device and in the memory mode of the options.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "driver.h"

namespace {

std::vector<uint8_t> noise(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> values(bytes);
  for (uint8_t& value : values) value = static_cast<uint8_t>((seed = seed * 1664525u + 1013904223u) >> 24);
  return values;
}

void limits(const Bench& bench) {
  const fl_device_properties p = properties_of(bench.device);
  uint64_t free = 0, total = 0, less = 0;
  OK(a->memory_info(bench.device, &free, &total));
  CHECK(total == p.total_memory && free <= total);
  const fl_memory memory = bench.alloc(1 << 20);
  OK(a->memory_info(bench.device, &less, &total));
  CHECK(less == free - (1 << 20));
  bench.free(memory);
  OK(a->memory_info(bench.device, &less, &total));
  CHECK(less == free);

  fl_memory none{};
  CHECK(a->memory_alloc(bench.device, 0, &none) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->memory_alloc(bench.device, p.max_allocation + 1, &none) == FL_STATUS_OUT_OF_MEMORY);
  CHECK(said(std::to_string(p.max_allocation).c_str()));
  CHECK(a->memory_alloc(bench.device, UINT64_MAX, &none) == FL_STATUS_OUT_OF_MEMORY);
  // Whatever OpenCL would let us have, no more than there is.
  std::vector<fl_memory> taken;
  const uint64_t piece = std::min<uint64_t>(p.max_allocation, 1u << 30);
  fl_status status = FL_STATUS_OK;
  while (status == FL_STATUS_OK && taken.size() < 4096) {
    fl_memory one{};
    status = a->memory_alloc(bench.device, piece, &one);
    if (status == FL_STATUS_OK) taken.push_back(one);
  }
  CHECK(status == FL_STATUS_OUT_OF_MEMORY && taken.size() <= p.total_memory / piece);
  for (const fl_memory& one : taken) bench.free(one);
}

void places(const Bench& bench) {
  constexpr uint64_t kBytes = 4096;
  const fl_memory memory = bench.alloc(kBytes);
  char host[2 * kBytes] = {};
  CHECK(a->copy_h2d(bench.stream, memory, host, kBytes + 1) == FL_STATUS_INVALID_ARGUMENT && said("4097"));
  CHECK(a->copy_d2h(bench.stream, host, plus(memory, 4000), 97) == FL_STATUS_INVALID_ARGUMENT);
  OK(a->copy_d2h(bench.stream, host, plus(memory, 4000), 96));
  CHECK(a->copy_d2h(bench.stream, host, plus(memory, UINT64_MAX), 1) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->copy_d2d(bench.stream, plus(memory, kBytes), memory, 1) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->fill(bench.stream, plus(memory, 1), 0, kBytes) == FL_STATUS_INVALID_ARGUMENT);
  // Not ours: the host's memory, or nothing at all.
  const bool pointers = (properties_of(bench.device).capabilities & FL_CAP_POINTERS) != 0;
  const fl_memory foreign = pointers ? fl_memory{host, nullptr, 0} : fl_memory{nullptr, host, 0};
  CHECK(a->copy_d2d(bench.stream, memory, foreign, 8) == FL_STATUS_INVALID_ARGUMENT &&
        said("not in a live allocation"));
  CHECK(a->fill(bench.stream, fl_memory{}, 0, 8) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->memory_free(bench.device, foreign) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->memory_free(bench.device, fl_memory{}) == FL_STATUS_INVALID_ARGUMENT);
  if (pointers) CHECK(a->memory_free(bench.device, plus(memory, 64)) == FL_STATUS_INVALID_ARGUMENT);
  for (int other = 0; other < num_devices(); ++other) {
    if (other == bench.device) continue;
    CHECK(a->memory_free(other, memory) == FL_STATUS_INVALID_ARGUMENT);
    const Bench stranger(other);
    CHECK(a->fill(stranger.stream, memory, 0, 8) == FL_STATUS_INVALID_ARGUMENT);
  }
  OK(a->copy_h2d(bench.stream, fl_memory{}, host, 0));  // nothing is always there
  OK(a->stream_synchronize(bench.stream));
  bench.free(memory);
  CHECK(a->memory_free(bench.device, memory) == FL_STATUS_INVALID_ARGUMENT);  // twice
  CHECK(a->fill(bench.stream, memory, 0, 8) == FL_STATUS_INVALID_ARGUMENT);
}

void round_trips(const Bench& bench) {
  for (const size_t bytes : {1, 3, 64, 4097, 300000, 5000001}) {
    const std::vector<uint8_t> values = noise(bytes, static_cast<uint32_t>(bytes));
    const fl_memory x = bench.alloc(bytes + 7), y = bench.alloc(bytes + 3);
    OK(a->copy_h2d(bench.stream, plus(x, 7), values.data(), bytes));
    OK(a->copy_d2d(bench.stream, plus(y, 3), plus(x, 7), bytes));
    CHECK(bench.get<uint8_t>(plus(y, 3), bytes) == values);
    bench.free(x);
    bench.free(y);
  }
}

// The source may change as soon as copy_h2d returns, however many copies are under way.
void small_copies(const Bench& bench) {
  constexpr int kCopies = 3000, kInts = 1000;
  const fl_memory memory = bench.alloc(sizeof(int) * kCopies * kInts);
  std::vector<int> source(kInts);
  for (int i = 0; i < kCopies; ++i) {
    std::iota(source.begin(), source.end(), i * kInts);
    OK(a->copy_h2d(bench.stream, plus(memory, sizeof(int) * static_cast<uint64_t>(i) * kInts), source.data(),
                   sizeof(int) * kInts));
    std::fill(source.begin(), source.end(), -1);
  }
  const std::vector<int> values = bench.get<int>(memory, static_cast<size_t>(kCopies) * kInts);
  for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == static_cast<int>(i));
  bench.free(memory);
}

void pinned(const Bench& bench) {
  constexpr uint64_t kBytes = 3u << 20;
  void *source = nullptr, *result = nullptr;
  OK(a->host_alloc(bench.device, kBytes, &source));
  OK(a->host_alloc(bench.device, kBytes, &result));
  const std::vector<uint8_t> values = noise(kBytes, 5);
  std::memcpy(source, values.data(), kBytes);
  const fl_memory memory = bench.alloc(kBytes);
  OK(a->copy_h2d(bench.stream, memory, source, kBytes));
  OK(a->copy_d2h(bench.stream, static_cast<char*>(result) + 100, plus(memory, 100), kBytes - 100));
  OK(a->stream_synchronize(bench.stream));
  CHECK(std::memcmp(static_cast<char*>(result) + 100, values.data() + 100, kBytes - 100) == 0);
  bench.free(memory);
  OK(a->host_free(bench.device, source));
  OK(a->host_free(bench.device, result));
  CHECK(a->host_free(bench.device, result) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->host_alloc(bench.device, UINT64_MAX - 10, &result) == FL_STATUS_OUT_OF_MEMORY);
}

void fills(const Bench& bench) {
  constexpr size_t kBytes = 1000;
  std::vector<uint8_t> expected(kBytes, 0xA5);
  const fl_memory memory = bench.alloc(kBytes);
  OK(a->fill(bench.stream, memory, 0xA5, kBytes));
  const struct {
    size_t at, bytes;
    uint8_t value;
  } parts[] = {{0, 1, 1}, {3, 5, 2}, {16, 32, 3}, {100, 77, 0}, {992, 8, 0xFF}};
  for (const auto& part : parts) {
    OK(a->fill(bench.stream, plus(memory, part.at), part.value, part.bytes));
    std::fill_n(expected.begin() + static_cast<long>(part.at), part.bytes, part.value);
  }
  CHECK(bench.get<uint8_t>(memory, kBytes) == expected);
  bench.free(memory);
}

// The host may touch device memory itself, if the device says so.
void host_visible(const Bench& bench) {
  if ((properties_of(bench.device).capabilities & FL_CAP_HOST_VISIBLE) == 0) return;
  const fl_memory memory = bench.alloc(4096);
  OK(a->fill(bench.stream, memory, 7, 4096));
  OK(a->stream_synchronize(bench.stream));
  auto* bytes = static_cast<uint8_t*>(memory.address);
  CHECK(bytes[0] == 7 && bytes[4095] == 7);
  bytes[9] = 1;
  CHECK(bench.get<uint8_t>(memory, 10)[9] == 1);
  bench.free(memory);
}

void all_memory() {
  for (int device = 0; device < num_devices(); ++device) {
    const Bench bench(device);
    limits(bench);
    places(bench);
    round_trips(bench);
    small_copies(bench);
    pinned(bench);
    fills(bench);
    host_visible(bench);
  }
}

void peers() {
  for (int from = 0; from < num_devices(); ++from) {
    for (int to = 0; to < num_devices(); ++to) {
      const Bench source(from), target(to);
      const std::vector<uint8_t> values = noise(100001, 9);
      const fl_memory x = source.put(values), y = target.alloc(values.size());
      const fl_status status = a->copy_peer(source.stream, to, y, from, x, values.size());
      std::printf("%d %d %d\n", from, to, status);
      CHECK(status == FL_STATUS_OK || status == FL_STATUS_UNIMPLEMENTED);
      if (status == FL_STATUS_OK) {
        OK(a->stream_synchronize(source.stream));
        CHECK(target.get<uint8_t>(y, values.size()) == values);
        CHECK(a->copy_peer(source.stream, to, y, from, x, values.size() + 1) == FL_STATUS_INVALID_ARGUMENT);
      }
      if (from != to) CHECK(a->copy_peer(target.stream, to, y, from, x, 8) == FL_STATUS_INVALID_ARGUMENT);
      OK(a->stream_synchronize(source.stream));
      source.free(x);
      target.free(y);
    }
  }
}

}  // namespace

const std::vector<Scenario> memory_scenarios = {{"memory", all_memory}, {"peers", peers}};
