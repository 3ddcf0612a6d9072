// The loops that benchmarks/memory.py times, called through ctypes: allocate and free one block over and over through
// c10's interface, as at::empty does. `others` threads do the same on the same device meanwhile.
#include <c10/core/Allocator.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace {

void allocate_and_free(c10::Allocator& allocator, size_t bytes, int64_t times) {
  for (int64_t i = 0; i < times; ++i) allocator.allocate(bytes).clear();
}

}  // namespace

// Nanoseconds for each pair of allocate and free. device_type: c10::DeviceType.
extern "C" double cached_block_ns(int device_type, size_t bytes, int64_t times, int others) {
  c10::Allocator& allocator = *c10::GetAllocator(static_cast<c10::DeviceType>(device_type));
  allocate_and_free(allocator, bytes, 16);
  std::atomic<int> running{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < others; ++i) {
    threads.emplace_back([&] {
      ++running;
      while (!stop.load(std::memory_order_relaxed)) allocate_and_free(allocator, bytes, 16);
    });
  }
  while (running.load() != others) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  allocate_and_free(allocator, bytes, times);
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  return spent.count() / static_cast<double>(times);
}
