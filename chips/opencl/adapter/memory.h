// Device memory: allocation in the device's mode, and the table of live pieces by which each place that comes from the
// host is checked (some runtimes accept foreign buffers and addresses silently). Also pinned host memory.
#pragma once
#include <atomic>
#include <map>
#include <shared_mutex>

#include "device.h"

namespace ocl {

class DeviceMemory {
 public:
  explicit DeviceMemory(Device& device) : device_(device) {}

  // Throws Failure FL_STATUS_OUT_OF_MEMORY beyond the device's limits: OpenCL itself would let us over-commit.
  fl_memory allocate(uint64_t bytes);
  void release(const fl_memory& memory);

  // The place as OpenCL needs it. Throws Failure FL_STATUS_INVALID_ARGUMENT, with the values, unless all of
  // [memory, memory + bytes) lies in one live piece; `what` starts the message.
  Place checked(const fl_memory& memory, uint64_t bytes, const char* what) const;

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  void* raw_allocate(uint64_t bytes, cl_int& code);
  void raw_release(void* raw);

  Device& device_;
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, uint64_t> pieces_;  // by address, or by handle in Buffer mode: size in bytes
  std::atomic<uint64_t> used_{0};
};

void* host_allocate(Device& device, uint64_t bytes);
void host_release(Device& device, void* address);
bool is_pinned(const void* address, uint64_t bytes);

}  // namespace ocl
