// Allocation of device memory and of pinned host memory.
#include <unistd.h>

#include "device.h"

namespace ng {
namespace {

ngResult out_of_memory(Device& device, uint64_t bytes) {
  return fail(NG_ERROR_OUT_OF_MEMORY,
              "device %d is out of memory: %llu bytes were asked for; %llu of %llu are in use, the largest free block "
              "has %llu", device.index, static_cast<unsigned long long>(bytes),
              static_cast<unsigned long long>(device.memory.used()),
              static_cast<unsigned long long>(device.total_memory),
              static_cast<unsigned long long>(device.memory.largest_free()));
}

}  // namespace
}  // namespace ng

using namespace ng;

ngResult ngMalloc(int32_t device, uint64_t bytes, void** address) {
  return call_on("ngMalloc", device, [&](Device& found) {
    if (address == nullptr) return null_argument("ngMalloc");
    *address = nullptr;
    if (bytes == 0) return fail(NG_ERROR_INVALID_VALUE, "ngMalloc: 0 bytes");
    if (fault_due(Fault::kOutOfMemory, found.index)) return out_of_memory(found, bytes);
    mark_in_use();
    if (!found.memory.reserve(found.total_memory, !runtime().unified)) {
      return fail(NG_ERROR_OUT_OF_MEMORY, "the host refused to reserve %llu bytes of address space for device %d",
                  static_cast<unsigned long long>(found.total_memory), found.index);
    }
    *address = found.memory.allocate(bytes);
    return *address != nullptr ? NG_SUCCESS : out_of_memory(found, bytes);
  });
}

ngResult ngFree(int32_t device, void* address) {
  return call_on("ngFree", device, [&](Device& found) {
    if (address == nullptr) return NG_SUCCESS;
    if (found.memory.release(address)) return NG_SUCCESS;
    return fail(NG_ERROR_INVALID_VALUE, "ngFree: %p is not an allocation of device %d", address, found.index);
  });
}

ngResult ngMallocHost(uint64_t bytes, void** address) {
  return call("ngMallocHost", nullptr, [&] {
    if (address == nullptr) return null_argument("ngMallocHost");
    *address = nullptr;
    if (bytes == 0) return fail(NG_ERROR_INVALID_VALUE, "ngMallocHost: 0 bytes");
    mark_in_use();
    const uint64_t physical = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(getpagesize());
    if (runtime().host_memory.reserve(physical, false)) *address = runtime().host_memory.allocate(bytes);
    if (*address != nullptr) return NG_SUCCESS;
    return fail(NG_ERROR_OUT_OF_MEMORY, "ngMallocHost: no block of %llu bytes is left in the host's %llu",
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(physical));
  });
}

ngResult ngFreeHost(void* address) {
  return call("ngFreeHost", nullptr, [&] {
    if (address == nullptr || runtime().host_memory.release(address)) return NG_SUCCESS;
    return fail(NG_ERROR_INVALID_VALUE, "ngFreeHost: %p did not come from ngMallocHost", address);
  });
}
