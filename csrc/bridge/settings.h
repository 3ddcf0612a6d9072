// Process-wide switches the bridge reads on its paths; Python sets them (torch_fl/routing).
#pragma once
#include <atomic>
#include <cstdint>

namespace fl::bridge {

struct Settings {
  std::atomic<bool> enable_decompose{true};
  std::atomic<bool> enable_library{true};
  std::atomic<bool> enable_cpu{true};
};
extern Settings settings;
// no_cpu_fallback(): how many contexts of this thread are open.
extern thread_local int forbid_cpu_depth;

}  // namespace fl::bridge
