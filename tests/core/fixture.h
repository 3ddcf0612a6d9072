// Devices for a test: a fresh logical device per call over the in-memory adapter, and the handle that steers it.
#pragma once
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "allocator.h"
#include "check.h"
#include "device.h"
#include "error.h"
#include "memory_report.h"
#include "stream.h"
#include "test_adapter.h"

namespace fixture {

constexpr uint64_t kKiB = 1u << 10, kMiB = 1u << 20;

inline std::string adapter_path(const std::string& variant = "") {
  return std::string(TEST_ADAPTER_DIR) + "/libtest_adapter" + (variant.empty() ? "" : "_" + variant) + ".so";
}

// The steering functions of one variant.
struct Steering {
  explicit Steering(const std::string& variant = "") {
    void* library = dlopen(adapter_path(variant).c_str(), RTLD_NOW | RTLD_LOCAL);
    lock = reinterpret_cast<test_control* (*)()>(dlsym(library, "test_lock"));
    unlock = reinterpret_cast<void (*)()>(dlsym(library, "test_unlock"));
    hold = reinterpret_cast<void (*)(void*)>(dlsym(library, "test_hold"));
    release = reinterpret_cast<void (*)(void*)>(dlsym(library, "test_release"));
  }
  template <class Do>
  void with(Do act) {
    act(*lock());
    unlock();
  }
  test_control state() {
    const test_control copy = *lock();
    unlock();
    return copy;
  }
  test_control* (*lock)();
  void (*unlock)();
  void (*hold)(void*);
  void (*release)(void*);
};

inline Steering& steer(const std::string& variant = "") {
  static Steering normal, opaque("opaque"), plain("plain"), ranges("ranges");
  return variant == "opaque" ? opaque : variant == "plain" ? plain : variant == "ranges" ? ranges : normal;
}

inline fl::AdapterSpec spec(const std::string& variant = "") {
  static int number = 0;
  fl::AdapterSpec made;
  made.path = adapter_path(variant);
  made.device_name = "chip" + std::to_string(number++);
  made.max_devices = 1;
  return made;
}

inline void name_uniops() {
  static const char* const names[] = {nullptr, "copy", "add", "eq", "matmul"};
  fl::set_uniop_names(names, 5);
}
enum { kCopy = 1, kAdd = 2, kEq = 3, kMatmul = 4 };

inline fl::Device& open(const fl::AdapterSpec& from) {
  name_uniops();
  return fl::device(fl::add_adapter(from).at(0));
}
inline fl::Device& open(const std::string& variant = "") { return open(spec(variant)); }

// Queues work, so that the stream is busy while it is held.
inline void keep_busy(fl::Stream& stream) {
  static char sink[64];
  stream.device->adapter->fill(stream.handle, fl_memory{sink, nullptr, 0}, 1, sizeof sink);
}

}  // namespace fixture
