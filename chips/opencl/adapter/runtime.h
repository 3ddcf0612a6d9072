// What the files of the runtime share beside device.h: options, the list of devices, and the kernels' look-up.
#pragma once
#include <string>

#include "device.h"
#include "torch_fl/adapter.h"

namespace ocl {

// Set by configure() before the devices are opened; constant afterwards.
struct Options {
  std::string cache_dir;  // this adapter's own folder; empty: nothing is kept on disk
  uint64_t cache_max_bytes = 512ull << 20;
  std::string library;  // path of the OpenCL loader; empty: the usual names
  enum class Memory : uint8_t { Auto, Usm, Svm, Buffer } memory = Memory::Auto;
  enum class DeviceType : uint8_t { Auto, Cpu, Gpu } device_type = DeviceType::Auto;  // forces the variant of kernels
  enum class Probe : uint8_t { Auto, Always, Never } probe = Probe::Auto;  // try a platform in a child process first
};
const Options& options();

fl_status configure(const char* key, const char* value) noexcept;

// Opens all platforms at the first call. Throws Failure FL_STATUS_UNAVAILABLE, with the reasons, if there is no device.
int device_count();
bool devices_open();

// launch.cpp
fl_status kernel_find(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* out_kernel);

}  // namespace ocl
