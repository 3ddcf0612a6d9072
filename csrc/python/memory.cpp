// Bindings of device and pinned memory: information, snapshot, caches.
#include <torch/csrc/utils/pybind.h>

#include <mutex>
#include <unordered_map>

#include "core/allocator.h"
#include "core/error.h"
#include "core/memory_report.h"
#include "python/bindings.h"

namespace fl::python {

namespace {

py::dict stat_dict(const MemoryStat& stat) {
  py::dict out;
  out["current"] = stat.current;
  out["peak"] = stat.peak;
  out["allocated"] = stat.allocated;
  out["freed"] = stat.freed;
  return out;
}

py::dict duration_dict(const HostMemoryStats::Duration& time) {
  py::dict out;
  out["total"] = time.total;
  out["max"] = time.max;
  out["min"] = time.min;
  out["count"] = time.count;
  out["avg"] = time.count == 0 ? 0 : time.total / time.count;
  return out;
}

py::dict host_stats() {
  const HostMemoryStats stats = host_memory_stats();
  py::dict out;
  out["active_requests"] = stat_dict(stats.active_requests);
  out["active_bytes"] = stat_dict(stats.active_bytes);
  out["allocations"] = stat_dict(stats.allocations);
  out["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  out["host_alloc_time"] = duration_dict(stats.alloc_time);
  out["host_free_time"] = duration_dict(stats.free_time);
  out["num_host_alloc"] = stats.num_host_alloc;
  out["num_host_free"] = stats.num_host_free;
  return out;
}

// Memory by its address alone, for other frameworks: caching_allocator_alloc().
struct RawBlocks {
  std::mutex mutex;
  std::unordered_map<uintptr_t, Block*> all;
};
RawBlocks& raw_blocks() {
  static auto* blocks = new RawBlocks;
  return *blocks;
}

uintptr_t raw_alloc(int index, uint64_t bytes, int64_t stream) {
  if (bytes == 0) return 0;
  Block* block = device(index).allocator->allocate(bytes, stream_from_id(index, stream));
  const auto address = reinterpret_cast<uintptr_t>(block->ptr);
  std::lock_guard<std::mutex> lock(raw_blocks().mutex);
  raw_blocks().all[address] = block;
  return address;
}

bool raw_delete(uintptr_t address) {
  Block* block = nullptr;
  {
    std::lock_guard<std::mutex> lock(raw_blocks().mutex);
    const auto found = raw_blocks().all.find(address);
    if (found == raw_blocks().all.end()) return false;
    block = found->second;
    raw_blocks().all.erase(found);
  }
  block->device->allocator->free(block);
  return true;
}

}  // namespace

void bind_memory(py::module& m) {
  m.def("memory_info", [](int index) {
    const MemoryInfo info = memory_info(device(index));
    return std::make_pair(info.free, info.total);
  });
  m.def("memory_outside_pool", [](int index) { return memory_info(device(index)).outside(); });
  m.def("memory_fraction", [](int index) { return memory_fraction(device(index)); });
  m.def("set_memory_fraction", [](int index, double fraction) { set_memory_fraction(device(index), fraction); });
  m.def("raw_alloc", &raw_alloc);
  m.def("raw_delete", &raw_delete);
  m.def("host_empty_cache", [] {
    py::gil_scoped_release no_gil;
    host_empty_cache();
  });
  m.def("host_memory_stats", &host_stats);
  m.def("reset_accumulated_host_memory_stats", &reset_accumulated_host_memory_stats);
  m.def("reset_peak_host_memory_stats", &reset_peak_host_memory_stats);
}

}  // namespace fl::python
