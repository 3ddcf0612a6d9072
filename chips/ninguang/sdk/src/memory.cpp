// Allocation of device memory and of pinned host memory.
#include <unistd.h>

#include <algorithm>

#include "device.h"
#include "ng_virtual_memory.h"

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

// Address space of a device beside its memory: each range is about as large as the memory, and there is one for each
// stream that allocates.
constexpr uint64_t kRangesPerDevice = 256, kMostRangeBytes = uint64_t{4} << 40;

ngResult open_memory(Device& device) {
  mark_in_use();
  const uint64_t ranges = std::min(device.total_memory * kRangesPerDevice, kMostRangeBytes);
  if (device.memory.reserve(device.total_memory, !runtime().unified, ranges)) return NG_SUCCESS;
  return fail(NG_ERROR_OUT_OF_MEMORY, "the host refused to reserve %llu bytes of address space for device %d",
              static_cast<unsigned long long>(device.total_memory), device.index);
}

ngResult range_result(const char* api, Device& device, Arena::Mapping mapping, void* address, uint64_t bytes) {
  const char* why = "";
  switch (mapping) {
    case Arena::Mapping::kDone: return NG_SUCCESS;
    case Arena::Mapping::kNoMemory: return out_of_memory(device, bytes);
    case Arena::Mapping::kNotMapped: why = "not all of it is mapped"; break;
    case Arena::Mapping::kMapped: why = "a part of it is mapped"; break;
    case Arena::Mapping::kNoRange: why = "it is no part of a reserved range in multiples of the granularity"; break;
  }
  return fail(NG_ERROR_INVALID_VALUE, "%s: %llu bytes at %p of device %d: %s", api,
              static_cast<unsigned long long>(bytes), address, device.index, why);
}

}  // namespace

ngResult take_workspace(Device& device) {
  const uint64_t bytes = device.workspace_wanted.exchange(0);
  if (bytes == 0) return NG_SUCCESS;  // another thread takes it
  const ngResult opened = open_memory(device);
  if (opened == NG_SUCCESS && device.memory.allocate(bytes) != nullptr) return NG_SUCCESS;
  device.workspace_wanted = bytes;
  if (opened != NG_SUCCESS) return opened;
  return fail(NG_ERROR_OUT_OF_MEMORY, "no %llu bytes are left on device %d for the kernel library's workspace",
              static_cast<unsigned long long>(bytes), device.index);
}

}  // namespace ng

using namespace ng;

ngResult ngMalloc(int32_t device, uint64_t bytes, void** address) {
  return call_on("ngMalloc", device, [&](Device& found) {
    if (address == nullptr) return null_argument("ngMalloc");
    *address = nullptr;
    if (bytes == 0) return fail(NG_ERROR_INVALID_VALUE, "ngMalloc: 0 bytes");
    if (fault_due(Fault::kOutOfMemory, found.index)) return out_of_memory(found, bytes);
    const ngResult opened = open_memory(found);
    if (opened != NG_SUCCESS) return opened;
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

ngResult ngMemGetGranularity(int32_t device, uint64_t* bytes) {
  return call_on("ngMemGetGranularity", device, [&](Device&) {
    if (bytes == nullptr) return null_argument("ngMemGetGranularity");
    *bytes = Arena::kPage;
    return NG_SUCCESS;
  });
}

ngResult ngMemAddressReserve(int32_t device, uint64_t bytes, void** address) {
  return call_on("ngMemAddressReserve", device, [&](Device& found) {
    if (address == nullptr) return null_argument("ngMemAddressReserve");
    *address = nullptr;
    if (bytes == 0 || bytes % Arena::kPage != 0) {
      return fail(NG_ERROR_INVALID_VALUE, "ngMemAddressReserve: %llu bytes are no multiple of %llu",
                  static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(Arena::kPage));
    }
    const ngResult opened = open_memory(found);
    if (opened != NG_SUCCESS) return opened;
    *address = found.memory.reserve_range(bytes);
    if (*address != nullptr) return NG_SUCCESS;
    return fail(NG_ERROR_OUT_OF_MEMORY, "ngMemAddressReserve: no %llu bytes of address space are left for device %d",
                static_cast<unsigned long long>(bytes), found.index);
  });
}

ngResult ngMemAddressFree(int32_t device, void* address, uint64_t bytes) {
  return call_on("ngMemAddressFree", device, [&](Device& found) {
    if (found.memory.release_range(address, bytes)) return NG_SUCCESS;
    return fail(NG_ERROR_INVALID_VALUE, "ngMemAddressFree: %llu bytes at %p are no range of device %d without memory",
                static_cast<unsigned long long>(bytes), address, found.index);
  });
}

ngResult ngMemMap(int32_t device, void* address, uint64_t bytes) {
  return call_on("ngMemMap", device, [&](Device& found) {
    if (fault_due(Fault::kOutOfMemory, found.index)) return out_of_memory(found, bytes);
    return range_result("ngMemMap", found, found.memory.map(address, bytes), address, bytes);
  });
}

ngResult ngMemUnmap(int32_t device, void* address, uint64_t bytes) {
  return call_on("ngMemUnmap", device, [&](Device& found) {
    return range_result("ngMemUnmap", found, found.memory.unmap(address, bytes), address, bytes);
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
