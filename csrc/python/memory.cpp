// Bindings of device and pinned memory: information, snapshot, caches.
#include <torch/csrc/utils/pybind.h>

#include "core/allocator.h"
#include "core/error.h"
#include "core/memory_report.h"
#include "python/bindings.h"

namespace fl::python {

void bind_memory(py::module& m) {
  m.def("memory_info", [](int index) {
    const Device& d = device(index);
    uint64_t free_bytes = 0, total = 0;
    const fl_status status = d.adapter->memory_info(d.ordinal, &free_bytes, &total);
    if (status != FL_STATUS_OK) raise_status(*d.adapter, index, status, "memory_info");
    const auto reserved = static_cast<uint64_t>(d.allocator->stats().reserved_bytes.current);
    const uint64_t left = d.total_memory > reserved ? d.total_memory - reserved : 0;
    return std::make_pair(std::min(free_bytes, left), d.total_memory);
  });
  m.def("memory_snapshot", [](int index) {
    py::list out;
    for (const auto& s : device(index).allocator->snapshot()) {
      py::list blocks;
      for (const auto& b : s.blocks) {
        py::dict block;
        block["address"] = reinterpret_cast<uintptr_t>(b.address);
        block["size"] = b.size;
        block["requested_size"] = b.requested;
        block["state"] = b.allocated ? "active_allocated" : "inactive";
        blocks.append(block);
      }
      py::dict segment;
      segment["device"] = index;
      segment["address"] = reinterpret_cast<uintptr_t>(s.address);
      segment["total_size"] = s.size;
      segment["stream"] = s.stream_id;
      segment["blocks"] = blocks;
      out.append(segment);
    }
    return out;
  });
  m.def("host_empty_cache", [] { host_empty_cache(); });
}

}  // namespace fl::python
