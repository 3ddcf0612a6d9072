// Which platforms and devices of this machine are used, and under which stable id; see discovery.cpp.
#pragma once
#include <string>
#include <vector>

#include "cl_api.h"

namespace ocl {

struct FoundPlatform {
  cl_platform_id id = nullptr;
  std::string name, vendor, version;
  std::vector<cl_device_id> devices;
  std::vector<std::string> uuids;  // of devices
};

// Opens the loader. Those that can be used; why others cannot is added to `reasons`, one sentence each.
std::vector<FoundPlatform> find_platforms(std::vector<std::string>& reasons);

// What to tell when nothing can be used.
std::string no_device_text(const std::vector<std::string>& reasons);

std::string text_of(cl_device_id device, cl_uint what);  // empty if the device does not know it
std::string text_of(cl_platform_id platform, cl_uint what);
std::string language_of(cl_device_id device);  // for -cl-std: "3.0" or "1.2"
bool has_extension(const std::string& extensions, const char* name);

template <class T>
T number_of(cl_device_id device, cl_uint what) {
  T value{};  // stays zero if the device does not know it
  if (cl().GetDeviceInfo(device, what, sizeof(value), &value, nullptr) != CL_SUCCESS) return T{};
  return value;
}

}  // namespace ocl
