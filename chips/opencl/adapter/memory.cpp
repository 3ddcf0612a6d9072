// Device and pinned host memory; see memory.h.
#include "memory.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "error.h"

namespace ocl {
namespace {

constexpr cl_uint kAlignment = 128;  // of raw allocations: the largest that SVM must support

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[320];
  std::snprintf(text, sizeof(text), pattern, args...);
  return text;
}

}  // namespace

void* DeviceMemory::raw_allocate(uint64_t bytes, cl_int& code) {
  const UsmApi& usm = device_.platform->usm;
  switch (device_.mode) {
    case MemoryMode::Usm:
      return device_.fine_grained
                 ? usm.SharedMemAlloc(device_.context(), device_.id, nullptr, bytes, kAlignment, &code)
                 : usm.DeviceMemAlloc(device_.context(), device_.id, nullptr, bytes, kAlignment, &code);
    case MemoryMode::Svm: {
      const cl_mem_flags flags = CL_MEM_READ_WRITE | (device_.fine_grained ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0);
      void* address = cl().SVMAlloc(device_.context(), flags, bytes, kAlignment);
      code = address != nullptr ? CL_SUCCESS : CL_MEM_OBJECT_ALLOCATION_FAILURE;
      return address;
    }
    case MemoryMode::Buffer:
      break;
  }
  return cl().CreateBuffer(device_.context(), CL_MEM_READ_WRITE, bytes, nullptr, &code);
}

void DeviceMemory::raw_release(void* raw) {
  switch (device_.mode) {
    case MemoryMode::Usm:
      check(device_.platform->usm.MemFree(device_.context(), raw), "clMemFreeINTEL");
      break;
    case MemoryMode::Svm:
      cl().SVMFree(device_.context(), raw);
      break;
    case MemoryMode::Buffer:
      check(cl().ReleaseMemObject(static_cast<cl_mem>(raw)), "clReleaseMemObject");
      break;
  }
}

fl_memory DeviceMemory::allocate(uint64_t bytes) {
  if (bytes == 0) fail(FL_STATUS_INVALID_ARGUMENT, "memory_alloc of 0 bytes");
  const uint64_t total = device_.total_memory;
  if (bytes > device_.max_allocation) {
    fail(FL_STATUS_OUT_OF_MEMORY, format("%" PRIu64 " bytes in one piece: %s allows at most %" PRIu64, bytes,
                                         device_.name.c_str(), device_.max_allocation));
  }
  const uint64_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
  cl_int code = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  void* raw = before + bytes <= total ? raw_allocate(bytes, code) : nullptr;
  if (raw == nullptr) {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    if (code == CL_SUCCESS || code == CL_OUT_OF_RESOURCES) code = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    fail(code, format("%" PRIu64 " bytes: %s has %" PRIu64 " of which %" PRIu64 " are in use", bytes,
                      device_.name.c_str(), total, before));
  }
  std::lock_guard<std::shared_mutex> lock(mutex_);
  pieces_[reinterpret_cast<uintptr_t>(raw)] = bytes;
  if (device_.mode == MemoryMode::Buffer) return {nullptr, raw, 0};
  return {raw, nullptr, 0};
}

void DeviceMemory::release(const fl_memory& memory) {
  void* raw = device_.mode == MemoryMode::Buffer ? memory.handle : memory.address;
  {
    std::lock_guard<std::shared_mutex> lock(mutex_);
    const auto piece = pieces_.find(reinterpret_cast<uintptr_t>(raw));
    if (raw == nullptr || piece == pieces_.end()) {
      fail(FL_STATUS_INVALID_ARGUMENT,
           format("memory_free of %p: not the start of a live allocation of device %d", raw, device_.ordinal));
    }
    used_.fetch_sub(piece->second, std::memory_order_relaxed);
    pieces_.erase(piece);
  }
  raw_release(raw);
}

Place DeviceMemory::checked(const fl_memory& memory, uint64_t bytes, const char* what) const {
  const bool buffer = device_.mode == MemoryMode::Buffer;
  const auto place = reinterpret_cast<uintptr_t>(buffer ? memory.handle : memory.address);
  std::shared_lock<std::shared_mutex> lock(mutex_);
  auto piece = pieces_.upper_bound(place);
  if (place != 0 && piece != pieces_.begin()) {
    --piece;
    const uint64_t offset = buffer ? memory.offset : place - piece->first;
    if ((!buffer || piece->first == place) && offset <= piece->second && bytes <= piece->second - offset)
      return Place::of(memory);
    if (buffer ? piece->first == place : offset < piece->second) {
      fail(FL_STATUS_INVALID_ARGUMENT,
           format("%s: %" PRIu64 " bytes at offset %" PRIu64 " of an allocation of %" PRIu64 " bytes on device %d",
                  what, bytes, offset, piece->second, device_.ordinal));
    }
  }
  fail(FL_STATUS_INVALID_ARGUMENT, format("%s: %p is not in a live allocation of device %d", what,
                                          reinterpret_cast<void*>(place), device_.ordinal));
}

// ---------------------------------------------------------------- pinned host memory

namespace {

// Pinned memory is a mapped buffer where there is a GPU, USM host memory where there is USM, else plain memory: any
// address is asynchronously reached on a CPU.
struct Pinned {
  uint64_t bytes;
  Device* device;
  cl_mem mapped;  // null: USM or plain
};

struct HostMemory {
  std::shared_mutex mutex;
  std::map<uintptr_t, Pinned> pieces;
};

HostMemory& host_memory() {
  static auto* all = new HostMemory;
  return *all;
}

cl_command_queue transfer_queue(Device& device, cl_int& code) {
  return cl().CreateCommandQueue(device.context(), device.id, 0, &code);
}

void* map_buffer(Device& device, uint64_t bytes, cl_mem& buffer) {
  cl_int code = CL_SUCCESS;
  buffer = cl().CreateBuffer(device.context(), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, nullptr, &code);
  if (code != CL_SUCCESS) return nullptr;
  void* address = nullptr;
  if (const cl_command_queue queue = transfer_queue(device, code)) {
    address =
        cl().EnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0, nullptr, nullptr, &code);
    cl().ReleaseCommandQueue(queue);
  }
  if (address == nullptr) cl().ReleaseMemObject(buffer);
  return address;
}

void unmap_buffer(Device& device, cl_mem buffer, void* address) {
  cl_int code = CL_SUCCESS;
  if (const cl_command_queue queue = transfer_queue(device, code)) {
    cl().EnqueueUnmapMemObject(queue, buffer, address, 0, nullptr, nullptr);
    cl().Finish(queue);
    cl().ReleaseCommandQueue(queue);
  }
  cl().ReleaseMemObject(buffer);
}

}  // namespace

void* host_allocate(Device& device, uint64_t bytes) {
  if (bytes == 0) fail(FL_STATUS_INVALID_ARGUMENT, "host_alloc of 0 bytes");
  cl_int code = CL_SUCCESS;
  cl_mem mapped = nullptr;
  void* address = nullptr;
  if (device.mode == MemoryMode::Usm) {
    address = device.platform->usm.HostMemAlloc(device.context(), nullptr, bytes, kAlignment, &code);
  } else if (device.host_cpu) {
    constexpr uint64_t kPage = 4096;
    address = bytes > UINT64_MAX - kPage ? nullptr : std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  } else {
    address = map_buffer(device, bytes, mapped);
  }
  if (address == nullptr) {
    fail(FL_STATUS_OUT_OF_MEMORY, format("%" PRIu64 " bytes of host memory for %s", bytes, device.name.c_str()));
  }
  HostMemory& all = host_memory();
  std::lock_guard<std::shared_mutex> lock(all.mutex);
  all.pieces[reinterpret_cast<uintptr_t>(address)] = {bytes, &device, mapped};
  return address;
}

void host_release(Device& device, void* address) {
  HostMemory& all = host_memory();
  Pinned piece{};
  {
    std::lock_guard<std::shared_mutex> lock(all.mutex);
    const auto found = all.pieces.find(reinterpret_cast<uintptr_t>(address));
    if (found == all.pieces.end() || found->second.device != &device) {
      fail(FL_STATUS_INVALID_ARGUMENT,
           format("host_free of %p: not from host_alloc of device %d", address, device.ordinal));
    }
    piece = found->second;
    all.pieces.erase(found);
  }
  if (piece.mapped != nullptr) {
    unmap_buffer(device, piece.mapped, address);
  } else if (device.mode == MemoryMode::Usm) {
    check(device.platform->usm.MemFree(device.context(), address), "clMemFreeINTEL");
  } else {
    std::free(address);
  }
}

bool is_pinned(const void* address, uint64_t bytes) {
  HostMemory& all = host_memory();
  const auto place = reinterpret_cast<uintptr_t>(address);
  std::shared_lock<std::shared_mutex> lock(all.mutex);
  auto piece = all.pieces.upper_bound(place);
  if (piece == all.pieces.begin()) return false;
  --piece;
  const uint64_t offset = place - piece->first;
  return offset <= piece->second.bytes && bytes <= piece->second.bytes - offset;
}

}  // namespace ocl
