// Prints nanoseconds of the core's hot paths: allocate + free, kernel(), count(), current_stream(), host_find().
#include <chrono>

#include "counters.h"
#include "fixture.h"

using namespace fl;

namespace {

template <class Do>
void measure(const char* name, Do act, int times = 2000000) {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) act(i);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count() / times);
  }
  printf("%-34s %7.1f ns\n", name, best);
}

}  // namespace

int main() {
  Device& one = fixture::open();
  Allocator& allocator = *one.allocator;
  Stream& stream = default_stream(one.index);
  measure("allocate + free, 4 KiB", [&](int) { allocator.free(allocator.allocate(4096, stream)); });
  measure("allocate + free, 1 to 64 KiB",
          [&](int i) { allocator.free(allocator.allocate(1 + (i & 63) * 1024, stream)); });
  measure("allocate + free, 3 MiB", [&](int) { allocator.free(allocator.allocate(3u << 20, stream)); });
  measure("kernel()", [&](int i) {
    if (one.kernel(fixture::kAdd, i & 1 ? DType::Float32 : DType::Float16, DType::Float32) == nullptr) abort();
  });
  const int add = overload_id("aten::add.Tensor");
  measure("count()", [&](int) { count(one.index, add, Tier::Native); });
  measure("current_stream()", [&](int) {
    if (&current_stream(one.index) != &stream) abort();
  });
  measure("host_find(), nothing pinned", [&](int) {
    if (host_find(&one) != nullptr) abort();
  });
  void* address = nullptr;
  HostBlock* block = host_allocate(4096, one.index, &address);
  measure("host_find(), one block", [&](int) {
    if (host_find(address) != block) abort();
  });
  measure(
      "event record + query",
      [&](int) {
        Event event;
        event.record(stream);
        event.query();
      },
      100000);
}
