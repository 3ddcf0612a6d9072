// The devices of this process and what each holds: memory, streams, and whether it is lost.
// Also enter(): the check that opens every call of the C API.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "arena.h"
#include "error.h"
#include "fault.h"

namespace ng {

class Stream;

struct Device {
  int index = 0;
  uint64_t total_memory = 0;
  Arena memory;
  std::atomic<bool> lost{false};
  // What the kernel library keeps for itself in the device's memory, from the first launch on. 0: none, or taken already.
  std::atomic<uint64_t> workspace_wanted{0};

  std::mutex mutex;  // of streams
  std::vector<std::shared_ptr<Stream>> streams;  // a destroyed one stays until its work and its failure are settled
};

struct Runtime {
  std::vector<std::unique_ptr<Device>> devices;
  Arena host_memory;  // what ngMallocHost gives out
  bool unified = false;
  bool check_bounds = false;
  int cores = 1;
};

// Created at the first call and never destroyed: worker threads and late callers use it until the process ends.
Runtime& runtime();

extern std::atomic<bool> process_forked;   // in a child whose parent had used the chip
extern std::atomic<bool> process_exiting;  // queued work is no longer run
// From now on a forked child is refused.
void mark_in_use();
// Takes the kernel library's workspace (memory.cpp). OUT_OF_MEMORY: nothing was taken, and the next launch tries again.
ngResult take_workspace(Device& device);

// nullptr, with a message, if there is no such device.
Device* find_device(int32_t index);

ngResult refuse_forked(const char* api);
ngResult refuse_lost(const Device& device);

// What every call checks first: not in a forked child, no fault armed for it, the device not lost.
inline ngResult enter(const char* api, const Device* device) {
  if (__builtin_expect(process_forked.load(std::memory_order_relaxed), 0)) return refuse_forked(api);
  const int index = device != nullptr ? device->index : -1;
  if (fault_due(Fault::kCall, index, api)) return fail(NG_ERROR_INTERNAL, "%s: injected fault", api);
  if (device != nullptr && device->lost.load(std::memory_order_relaxed)) return refuse_lost(*device);
  return NG_SUCCESS;
}

// Runs one call of the C API: enter(), then body(), with exceptions turned into results.
template <class Body>
ngResult call(const char* api, const Device* device, Body&& body) noexcept {
  try {
    const ngResult entered = enter(api, device);
    return entered != NG_SUCCESS ? entered : body();
  } catch (...) {
    return convert_exception(api);
  }
}

// The same for a device given by its index.
template <class Body>
ngResult call_on(const char* api, int32_t index, Body&& body) noexcept {
  try {
    Device* const device = find_device(index);
    if (device == nullptr) return process_forked ? refuse_forked(api) : NG_ERROR_INVALID_VALUE;
    return call(api, device, [&] { return body(*device); });
  } catch (...) {
    return convert_exception(api);
  }
}

inline ngResult null_argument(const char* api) { return fail(NG_ERROR_INVALID_VALUE, "%s: a pointer is NULL", api); }

}  // namespace ng
