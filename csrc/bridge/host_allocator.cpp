// Presents the cache of pinned host memory as PyTorch's at::HostAllocator. The chip of the current device pins; for other
// chips the memory is pageable, and their adapters copy from it as from any host memory.
#include <ATen/core/CachingHostAllocator.h>

#include "bridge/allocator.h"
#include "bridge/guard.h"
#include "bridge/host_allocator.h"
#include "core/memory_report.h"

namespace fl::bridge {

namespace {

void free_host_block(void* context) { host_free(static_cast<HostBlock*>(context)); }

at::Stat stat_of(const MemoryStat& from) {
  at::Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

at::DurationStat duration_of(const HostMemoryStats::Duration& from) {
  at::DurationStat to;
  to.total = from.total;
  to.max = from.max;
  to.min = from.min;
  to.count = from.count;
  return to;
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &free_host_block, cpu};
    void* address = nullptr;
    HostBlock* block = host_allocate(bytes, current_device(), &address);
    return {address, block, &free_host_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* dst, const void* src, std::size_t bytes) const override { default_copy_data(dst, src, bytes); }

  // By the address: the context may be that of a wrapper. False: not memory of this allocator.
  bool record_event(void* ptr, void*, c10::Stream stream) override {
    HostBlock* block = host_find(ptr);
    if (block != nullptr) host_record(block, core_stream(stream));
    return block != nullptr;
  }
  void empty_cache() override { host_empty_cache(); }
  at::HostStats get_stats() override {
    const HostMemoryStats from = host_memory_stats();
    at::HostStats to;
    to.active_requests = stat_of(from.active_requests);
    to.active_bytes = stat_of(from.active_bytes);
    to.allocations = stat_of(from.allocations);
    to.allocated_bytes = stat_of(from.allocated_bytes);
    to.host_alloc_time = duration_of(from.alloc_time);
    to.host_free_time = duration_of(from.free_time);
    to.num_host_alloc = from.num_host_alloc;
    to.num_host_free = from.num_host_free;
    return to;
  }
  void reset_accumulated_stats() override { reset_accumulated_host_memory_stats(); }
  void reset_peak_stats() override { reset_peak_host_memory_stats(); }
};

PinnedAllocator& pinned() {
  static auto* p = new PinnedAllocator;
  return *p;
}

}  // namespace

c10::Allocator* pinned_allocator() { return &pinned(); }
void register_host_allocator() { at::setHostAllocator(at::kPrivateUse1, &pinned()); }

}  // namespace fl::bridge
