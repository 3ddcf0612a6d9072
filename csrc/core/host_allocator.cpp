// Host memory that the device reaches asynchronously (pinned), cached by size class. Adapters without host_alloc get
// ordinary memory, which is_pinned() does not call pinned.
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "allocator.h"
#include "fence.h"
#include "internal.h"
#include "make_room.h"
#include "memory_report.h"

namespace fl {

struct HostBlock {
  void* address = nullptr;
  uint64_t size = 0;
  int device = 0;
  bool pinned = false;
  int fences = 0;
  std::vector<Stream*> uses;
};

namespace {

struct HostCache {
  std::mutex mutex;                                                  // all but `live`
  HostMemoryStats stats;
  std::map<std::pair<int, uint64_t>, std::vector<HostBlock*>> idle;  // by device and size
  FenceQueues<HostBlock> fences;

  std::shared_mutex live_mutex;
  std::map<uintptr_t, HostBlock*> live;  // handed out, by first address
  std::atomic<int> num_live{0};          // lets host_find answer without a lock where nothing is pinned
};

HostCache& cache() {
  static HostCache* all = new HostCache;
  return *all;
}

// Eight to sixteen classes between powers of two: at most an eighth more than asked, and sizes that vary still match.
uint64_t size_class(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  uint64_t step = kPage;
  while (step * 16 < bytes)
    step <<= 1;
  return (bytes + step - 1) / step * step;
}

void increase(MemoryStat& stat, uint64_t amount) {
  stat.current += static_cast<int64_t>(amount);
  stat.peak = std::max(stat.peak, stat.current);
  stat.allocated += static_cast<int64_t>(amount);
}

void decrease(MemoryStat& stat, uint64_t amount) {
  stat.current -= static_cast<int64_t>(amount);
  stat.freed += static_cast<int64_t>(amount);
}

// Adds the time of its scope.
class Timed {
 public:
  explicit Timed(HostMemoryStats::Duration& into) : into_(into), begin_(std::chrono::steady_clock::now()) {}
  ~Timed() {
    const int64_t us =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin_).count();
    into_.total += us;
    into_.max = std::max(into_.max, us);
    into_.min = into_.count == 0 ? us : std::min(into_.min, us);
    ++into_.count;
  }

 private:
  HostMemoryStats::Duration& into_;
  std::chrono::steady_clock::time_point begin_;
};

void make_idle(HostCache& all, HostBlock* block) {
  all.idle[{block->device, block->size}].push_back(block);
  decrease(all.stats.active_requests, 1);
  decrease(all.stats.active_bytes, block->size);
}

// FL_STATUS_OUT_OF_MEMORY: may succeed after idle blocks are given back.
fl_status ask(Device& device, HostBlock& block) {
  const fl_adapter* adapter = device.adapter;
  if (!FL_HAS(adapter, host_alloc)) {
    return posix_memalign(&block.address, 4096, block.size) == 0 ? FL_STATUS_OK : FL_STATUS_OUT_OF_MEMORY;
  }
  block.pinned = true;
  const fl_status status = adapter->host_alloc(device.ordinal, block.size, &block.address);
  if (status == FL_STATUS_OK || status == FL_STATUS_OUT_OF_MEMORY) return status;
  const std::string what = "host_alloc of " + std::to_string(block.size) + " bytes";
  raise_status(*adapter, device.index, status, what.c_str());
}

// Under the mutex.
fl_status obtain(HostCache& all, Device& device, HostBlock& block) {
  const Timed timed(all.stats.alloc_time);
  const fl_status status = ask(device, block);
  if (status != FL_STATUS_OK) return status;
  ++all.stats.num_host_alloc;
  increase(all.stats.allocations, 1);
  increase(all.stats.allocated_bytes, block.size);
  return status;
}

void give_back(HostCache& all, HostBlock* block) {
  const Timed timed(all.stats.free_time);
  ++all.stats.num_host_free;
  decrease(all.stats.allocations, 1);
  decrease(all.stats.allocated_bytes, block->size);
  Device* device = find_device(block->device);
  if (!block->pinned) {
    ::free(block->address);
  } else if (device != nullptr && !device->lost()) {
    device->adapter->host_free(device->ordinal, block->address);
  }
  delete block;
}

void give_back_idle(HostCache& all) {
  for (auto& list : all.idle) {
    for (HostBlock* block : list.second)
      give_back(all, block);
  }
  all.idle.clear();
}

// Under the mutex. Fresh or idle; nullptr: no memory.
HostBlock* take(HostCache& all, Device& device, uint64_t size) {
  std::exception_ptr failure;
  const auto done = [&all](HostBlock* block) { make_idle(all, block); };
  all.fences.poll(done, failure);
  if (failure) std::rethrow_exception(failure);
  std::vector<HostBlock*>& list = all.idle[{device.index, size}];
  if (!list.empty()) {
    HostBlock* block = list.back();
    list.pop_back();
    return block;
  }
  auto block = std::make_unique<HostBlock>();
  block->size = size;
  block->device = device.index;
  if (obtain(all, device, *block) == FL_STATUS_OK) return block.release();
  all.fences.drain(done, failure);
  give_back_idle(all);
  if (failure) std::rethrow_exception(failure);
  return obtain(all, device, *block) == FL_STATUS_OK ? block.release() : nullptr;
}

// The block whose range holds the address. Under live_mutex.
HostBlock* find_live(const HostCache& all, uintptr_t address) {
  auto after = all.live.upper_bound(address);
  if (after == all.live.begin()) return nullptr;
  HostBlock* block = std::prev(after)->second;
  return address - reinterpret_cast<uintptr_t>(block->address) < block->size ? block : nullptr;
}

}  // namespace

HostBlock* host_allocate(uint64_t bytes, int index, void** out_address) {
  Device& target = device(index);
  check_usable(target);
  HostCache& all = cache();
  HostBlock* block = nullptr;
  fl_status status = FL_STATUS_OUT_OF_MEMORY;
  std::string reason = "out of memory. Tried to allocate " + std::to_string(bytes) +
                       " bytes of pinned host memory for " + device_label(target) +
                       ". Use fewer pinned tensors, or raise the limit on locked memory (ulimit -l).";
  constexpr uint64_t kMost = uint64_t{1} << 46;
  try {
    const PlainErrors plain;
    // A chip that shares its memory with the host may have room once the device's cache is given back.
    const auto get = [&]() -> fl_status {
      std::lock_guard<std::mutex> lock(all.mutex);
      block = take(all, target, size_class(std::max<uint64_t>(bytes, 1)));
      if (block == nullptr) return FL_STATUS_OUT_OF_MEMORY;
      increase(all.stats.active_requests, 1);
      increase(all.stats.active_bytes, block->size);
      return FL_STATUS_OK;
    };
    if (bytes <= kMost) with_room(target, get);
  } catch (const Error& error) {
    status = error.status;
    reason = error.what();
  }
  if (block == nullptr) raise(status, reason);
  if (debugging(kRaceCheck)) race_allocated(kHostSpace, block->address, block->size, nullptr);
  std::unique_lock<std::shared_mutex> lock(all.live_mutex);
  all.live[reinterpret_cast<uintptr_t>(block->address)] = block;
  all.num_live.fetch_add(1);
  *out_address = block->address;
  return block;
}

void host_free(HostBlock* block) noexcept {
  if (block == nullptr || in_bad_fork()) return;
  HostCache& all = cache();
  if (debugging(kRaceCheck)) race_freed(kHostSpace, block->address);
  {
    std::unique_lock<std::shared_mutex> lock(all.live_mutex);
    all.live.erase(reinterpret_cast<uintptr_t>(block->address));
    all.num_live.fetch_sub(1);
  }
  std::lock_guard<std::mutex> lock(all.mutex);
  try {
    if (block->uses.empty()) {
      make_idle(all, block);
    } else if (!exiting.load()) {
      for (Stream* stream : block->uses)
        all.fences.push(*stream, block);
      block->uses.clear();
    }
  } catch (...) {
    ++block->fences;  // no memory to remember it: it is never reused
  }
}

void host_record(HostBlock* block, Stream& stream) {
  if (in_bad_fork()) raise_forked();
  std::lock_guard<std::mutex> lock(cache().mutex);
  if (std::find(block->uses.begin(), block->uses.end(), &stream) == block->uses.end()) block->uses.push_back(&stream);
}

HostBlock* host_find(const void* address) noexcept {
  HostCache& all = cache();
  if (all.num_live.load(std::memory_order_acquire) == 0 || in_bad_fork()) return nullptr;
  std::shared_lock<std::shared_mutex> lock(all.live_mutex);
  return find_live(all, reinterpret_cast<uintptr_t>(address));
}

bool is_pinned(const void* address) noexcept {
  const HostBlock* block = host_find(address);
  return block != nullptr && block->pinned;
}

HostMemoryStats host_memory_stats() {
  std::lock_guard<std::mutex> lock(cache().mutex);
  return cache().stats;
}

void reset_accumulated_host_memory_stats() {
  std::lock_guard<std::mutex> lock(cache().mutex);
  HostMemoryStats& stats = cache().stats;
  for (MemoryStat* stat : {&stats.active_requests, &stats.active_bytes, &stats.allocations, &stats.allocated_bytes})
    stat->allocated = stat->freed = 0;
  for (HostMemoryStats::Duration* time : {&stats.alloc_time, &stats.free_time})
    time->total = time->count = 0;
  stats.num_host_alloc = stats.num_host_free = 0;
}

void reset_peak_host_memory_stats() {
  std::lock_guard<std::mutex> lock(cache().mutex);
  HostMemoryStats& stats = cache().stats;
  for (MemoryStat* stat : {&stats.active_requests, &stats.active_bytes, &stats.allocations, &stats.allocated_bytes})
    stat->peak = stat->current;
  for (HostMemoryStats::Duration* time : {&stats.alloc_time, &stats.free_time})
    time->max = time->min = 0;
}

void host_empty_cache() {
  if (in_bad_fork()) raise_forked();
  HostCache& all = cache();
  std::exception_ptr failure;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    all.fences.drain([&all](HostBlock* block) { make_idle(all, block); }, failure);
    give_back_idle(all);
  }
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    raise(error.status, error.what());
  }
}

}  // namespace fl
