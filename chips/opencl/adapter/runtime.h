// What the files of the runtime share beside device.h: options, the list of devices, and the kernels' look-up.
#pragma once
#include <string>

#include "device.h"
#include "torch_fl/adapter.h"

namespace ocl {

// Set by `configure` before the first device_count.
struct Options {
  std::string cache_dir;                      // the host's cache folder; empty: nothing is kept on disk
  std::string library;                        // path of the OpenCL loader; empty: the usual names
  enum class Memory { Auto, Usm, Svm, Buffer } memory = Memory::Auto;
  enum class DeviceType { Auto, Cpu, Gpu } device_type = DeviceType::Auto;  // forces the variant of kernels
  enum class Probe { Auto, Always, Never } probe = Probe::Auto;             // try a platform in a child process first
};
Options& options();

// Opens all platforms at the first call. Throws Failure FL_STATUS_UNAVAILABLE, with the reasons, if there is no device.
int device_count();

// launch.cpp
fl_status kernel_find(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* out_kernel);

}  // namespace ocl
