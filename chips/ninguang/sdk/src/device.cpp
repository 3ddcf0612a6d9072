// The device table, its configuration from the environment, device queries, and the life of the process (fork, exit).
// The counterpart is device.h.
#include "device.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "parallel.h"
#include "stream.h"

namespace ng {

std::atomic<bool> process_forked{false};
std::atomic<bool> process_exiting{false};

namespace {

std::atomic<bool> in_use{false};

int64_t environment_number(const char* name, int64_t fallback, int64_t low, int64_t high) {
  const char* text = getenv(name);
  if (text == nullptr || *text == 0) return fallback;
  char* end = nullptr;
  const int64_t value = strtoll(text, &end, 10);
  if (*end != 0 || value < low || value > high) {
    fprintf(stderr, "ninguang: %s=%s is not a number from %lld to %lld; using %lld\n", name, text,
            static_cast<long long>(low), static_cast<long long>(high), static_cast<long long>(fallback));
    return fallback;
  }
  return value;
}

Runtime* create_runtime() {
  auto* created = new Runtime;
  const int64_t machine = std::max(1u, std::thread::hardware_concurrency());
  created->cores = static_cast<int>(environment_number("NINGUANG_THREADS", machine, 1, 4096));
  created->unified = environment_number("NINGUANG_UNIFIED", 0, 0, 1) != 0;
  created->check_bounds = environment_number("NINGUANG_CHECK_BOUNDS", 0, 0, 1) != 0;
  const int64_t count = environment_number("NINGUANG_DEVICES", 2, 0, 64);
  const int64_t megabytes = environment_number("NINGUANG_MEMORY_MB", 8192, 1, int64_t{1} << 24);
  const int64_t workspace = environment_number("NINGUANG_WORKSPACE_MB", 0, 0, megabytes);
  for (int64_t i = 0; i < count; ++i) {
    created->devices.push_back(std::make_unique<Device>());
    created->devices.back()->index = static_cast<int>(i);
    created->devices.back()->total_memory = static_cast<uint64_t>(megabytes) << 20;
    created->devices.back()->workspace_wanted = static_cast<uint64_t>(workspace) << 20;
  }
  if (arm_faults(getenv("NINGUANG_FAULT")) != NG_SUCCESS) fprintf(stderr, "ninguang: NINGUANG_FAULT: %s\n", message());
  pthread_atfork(nullptr, nullptr, [] { process_forked = in_use.load(); });
  return created;
}

}  // namespace

Runtime& runtime() {
  static Runtime* const instance = create_runtime();
  return *instance;
}

int cores() { return runtime().cores; }

void mark_in_use() { in_use.store(true, std::memory_order_relaxed); }

Device* find_device(int32_t index) {
  const auto& devices = runtime().devices;
  if (index >= 0 && static_cast<size_t>(index) < devices.size()) return devices[index].get();
  fail(NG_ERROR_INVALID_VALUE, "there is no device %d; this process has %zu (NINGUANG_DEVICES)", index, devices.size());
  return nullptr;
}

ngResult refuse_forked(const char* api) {
  return fail(NG_ERROR_NO_DEVICE,
              "%s: this process was forked from one that had used the chip; start it with spawn or use the chip only "
              "after the fork", api);
}

ngResult refuse_lost(const Device& device) {
  return fail(NG_ERROR_DEVICE_LOST, "device %d (NG-0000-%d) is lost; restart the process to use it again",
              device.index, device.index);
}

}  // namespace ng

using namespace ng;

ngResult ngDeviceCount(int32_t* count) {
  try {
    runtime();  // first, so that a fault of the environment meets this call too
  } catch (...) {
    return convert_exception("ngDeviceCount");
  }
  return call("ngDeviceCount", nullptr, [&] {
    if (count == nullptr) return null_argument("ngDeviceCount");
    *count = static_cast<int32_t>(runtime().devices.size());
    return NG_SUCCESS;
  });
}

ngResult ngDeviceGetInfo(int32_t device, ngDeviceInfo* info) {
  return call_on("ngDeviceGetInfo", device, [&](Device& found) {
    if (info == nullptr) return null_argument("ngDeviceGetInfo");
    *info = ngDeviceInfo{};
    snprintf(info->uuid, sizeof(info->uuid), "NG-0000-%d", found.index);
    snprintf(info->name, sizeof(info->name), "Ninguang NG-1");
    snprintf(info->arch, sizeof(info->arch), "tgpu-v2");
    info->total_memory = found.total_memory;
    info->alignment = 64;
    info->cores = static_cast<uint32_t>(runtime().cores);
    info->unified = runtime().unified;
    return NG_SUCCESS;
  });
}

ngResult ngDeviceMemory(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  return call_on("ngDeviceMemory", device, [&](Device& found) {
    if (free_bytes == nullptr || total_bytes == nullptr) return null_argument("ngDeviceMemory");
    *total_bytes = found.total_memory;
    *free_bytes = found.total_memory - found.memory.used();
    return NG_SUCCESS;
  });
}

ngResult ngDeviceSynchronize(int32_t device) {
  return call_on("ngDeviceSynchronize", device, [&](Device& found) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
      std::lock_guard<std::mutex> lock(found.mutex);
      streams = found.streams;
    }
    ngResult first = NG_SUCCESS;
    char text[kMessageBytes] = "";
    for (const auto& stream : streams) {
      const uint64_t target = stream->queued();
      stream->wait(target);
      const ngResult result = stream->take_error(target);
      if (result != NG_SUCCESS && first == NG_SUCCESS) {
        first = result;
        memcpy(text, message(), sizeof(text));
      }
    }
    {
      std::lock_guard<std::mutex> lock(found.mutex);
      forget_settled_streams(found);
    }
    if (first != NG_SUCCESS) return fail(first, "%s", text);
    return found.lost ? refuse_lost(found) : NG_SUCCESS;
  });
}
