// Presents the core's caching allocators as one c10::DeviceAllocator.
#include "bridge/allocator.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "bridge/copy.h"
#include "bridge/guard.h"
#include "bridge/host_allocator.h"
#include "core/error.h"
#include "core/make_room.h"
#include "core/memory_report.h"

namespace fl::bridge {

namespace {

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  block->device->allocator->free(block);
}

void fill(c10::CachingAllocator::Stat& to, const AllocatorStats::Stat& from) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}

void fill(c10::CachingDeviceAllocator::DeviceStats& to, const PoolStats& from, c10::CachingAllocator::StatType pool) {
  const auto at = static_cast<size_t>(pool);
  fill(to.allocation[at], from.allocation);
  fill(to.segment[at], from.segment);
  fill(to.active[at], from.active);
  fill(to.inactive_split[at], from.inactive_split);
  fill(to.allocated_bytes[at], from.allocated_bytes);
  fill(to.reserved_bytes[at], from.reserved_bytes);
  fill(to.active_bytes[at], from.active_bytes);
  fill(to.inactive_split_bytes[at], from.inactive_split_bytes);
  fill(to.requested_bytes[at], from.requested_bytes);
}

class DeviceAllocatorProxy final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    const c10::Device device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    Block* block = fl::device(index).allocator->allocate(bytes, current_stream(index));
    return {block->ptr, block, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* dst, const void* src, std::size_t bytes) const override {
    const int index = current_device();
    Stream& stream = current_stream(index);
    fl::Allocator& allocator = *stream.device->allocator;
    const fl_memory to = allocator.locate(dst), from = allocator.locate(const_cast<void*>(src));
    copy_within(stream, to, from, bytes, "copy between storages");
  }

  bool initialized() override { return devices_opened(); }
  void emptyCache(c10::MempoolId_t) override {
    if (!devices_opened()) return;
    for (int i = 0; i < device_count(); ++i)
      if (Device& d = fl::device(i); !d.lost()) d.allocator->empty_cache();  // a lost one has nothing to give back
  }
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    if (ptr.get_context() == nullptr || ptr.get_deleter() != &free_block) return;
    auto* block = static_cast<Block*>(ptr.get_context());
    block->device->allocator->record_stream(block, core_stream(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const AllocatorStats s = fl::device(index).allocator->stats();
    c10::CachingDeviceAllocator::DeviceStats out;
    using Pool = c10::CachingAllocator::StatType;
    fill(out, s, Pool::AGGREGATE);
    fill(out, s.small_pool, Pool::SMALL_POOL);
    fill(out, s.large_pool, Pool::LARGE_POOL);
    fill(out.oversize_allocations, s.oversize_allocations);
    fill(out.oversize_segments, s.oversize_segments);
    out.num_sync_all_streams = s.num_sync_all_streams;
    out.num_alloc_retries = s.num_alloc_retries;
    out.num_ooms = s.num_ooms;
    out.num_device_alloc = s.num_device_alloc;
    out.num_device_free = s.num_device_free;
    out.max_split_size = s.max_split_size;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    fl::device(index).allocator->reset_accumulated_stats();
  }
  void resetPeakStats(c10::DeviceIndex index) override { fl::device(index).allocator->reset_peak_stats(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const MemoryInfo info = memory_info(fl::device(index));
    return {info.free, info.total};
  }
};

DeviceAllocatorProxy& proxy() {
  static auto* p = new DeviceAllocatorProxy;
  return *p;
}

}  // namespace

c10::Allocator* device_allocator() { return &proxy(); }
void register_allocator() {
  c10::SetAllocator(c10::kPrivateUse1, &proxy());
  register_host_allocator();
}

Block* block_of(const c10::DataPtr& ptr) {
  return ptr.get_deleter() == &free_block ? static_cast<Block*>(ptr.get_context()) : nullptr;
}

}  // namespace fl::bridge
