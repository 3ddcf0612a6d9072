// Enumerates platforms and devices: what is available, once each, with an id that a card keeps across restarts.
#include "discovery.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "icd.h"
#include "probe.h"
#include "runtime.h"

namespace ocl {
namespace {

template <class Get>
std::string text(const Get& get) {
  size_t size = 0;
  if (get(0, nullptr, &size) != CL_SUCCESS || size == 0) return "";
  std::string value(size, '\0');
  if (get(size, value.data(), nullptr) != CL_SUCCESS) return "";
  value.resize(std::strlen(value.c_str()));
  const size_t first = value.find_first_not_of(' '), last = value.find_last_not_of(' ');
  return first == std::string::npos ? "" : value.substr(first, last - first + 1);
}

bool usable(cl_device_id device) {
  return number_of<cl_bool>(device, CL_DEVICE_AVAILABLE) != 0 &&
         number_of<cl_bool>(device, CL_DEVICE_COMPILER_AVAILABLE) != 0 &&
         number_of<cl_bool>(device, CL_DEVICE_ENDIAN_LITTLE) != 0;
}

std::string hex(const unsigned char* bytes, size_t count) {
  std::string value;
  char pair[3];
  for (size_t i = 0; i < count; ++i) {
    std::snprintf(pair, sizeof(pair), "%02x", bytes[i]);
    value += pair;
    if (i == 3 || i == 5 || i == 7 || i == 9) value += '-';
  }
  return value;
}

std::string bus_id(unsigned domain, unsigned bus, unsigned device, unsigned function) {
  char value[32];
  std::snprintf(value, sizeof(value), "pci-%04x:%02x:%02x.%x", domain, bus, device, function);
  return value;
}

// What the hardware itself is known by; empty if the driver does not tell.
std::string hardware_id(cl_device_id device, const std::string& extensions) {
  if (has_extension(extensions, "cl_khr_device_uuid")) {
    unsigned char uuid[16] = {};
    if (cl().GetDeviceInfo(device, CL_DEVICE_UUID_KHR, sizeof(uuid), uuid, nullptr) == CL_SUCCESS &&
        std::any_of(uuid, uuid + 16, [](unsigned char byte) { return byte != 0; }))
      return hex(uuid, sizeof(uuid));
  }
  if (has_extension(extensions, "cl_khr_pci_bus_info")) {
    cl_uint place[4] = {};  // domain, bus, device, function
    if (cl().GetDeviceInfo(device, CL_DEVICE_PCI_BUS_INFO_KHR, sizeof(place), place, nullptr) == CL_SUCCESS)
      return bus_id(place[0], place[1], place[2], place[3]);
  }
  if (has_extension(extensions, "cl_nv_device_attribute_query")) {
    const auto slot = number_of<cl_uint>(device, CL_DEVICE_PCI_SLOT_ID_NV);
    return bus_id(0, number_of<cl_uint>(device, CL_DEVICE_PCI_BUS_ID_NV), slot >> 3, slot & 7);
  }
  if (has_extension(extensions, "cl_amd_device_attribute_query")) {
    struct {
      cl_uint type;
      char unused[17], bus, device, function;
    } topology{};
    if (cl().GetDeviceInfo(device, CL_DEVICE_TOPOLOGY_AMD, sizeof(topology), &topology, nullptr) == CL_SUCCESS &&
        topology.type == 1) {
      const auto byte = [](char c) { return static_cast<unsigned>(static_cast<unsigned char>(c)); };
      return bus_id(0, byte(topology.bus), byte(topology.device), byte(topology.function));
    }
  }
  return "";
}

FoundPlatform describe(cl_platform_id id) {
  FoundPlatform found;
  found.id = id;
  found.name = text_of(id, CL_PLATFORM_NAME);
  found.vendor = text_of(id, CL_PLATFORM_VENDOR);
  found.version = text_of(id, CL_PLATFORM_VERSION);
  cl_uint count = 0;
  if (cl().GetDeviceIDs(id, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS || count == 0) return found;
  found.devices.resize(count);
  if (cl().GetDeviceIDs(id, CL_DEVICE_TYPE_ALL, count, found.devices.data(), nullptr) != CL_SUCCESS)
    found.devices.clear();
  return found;
}

// Devices without an id of the hardware are told apart by their number among equals.
void name_devices(FoundPlatform& platform) {
  std::map<std::string, int> equals;
  for (const cl_device_id device : platform.devices) {
    std::string id = hardware_id(device, text_of(device, CL_DEVICE_EXTENSIONS));
    if (id.empty()) id = platform.name + "/" + text_of(device, CL_DEVICE_NAME);
    const int before = equals[id]++;
    if (before != 0) id += "#" + std::to_string(before);
    platform.uuids.push_back(id);
  }
}

// Two files in the vendors' folder may name one driver, or two copies of it.
std::string identity(const FoundPlatform& platform) {
  std::string text = platform.name + "|" + platform.version;
  for (size_t i = 0; i < platform.devices.size(); ++i)
    text += "|" + platform.uuids[i] + "|" + text_of(platform.devices[i], CL_DRIVER_VERSION);
  return text;
}

}  // namespace

std::string text_of(cl_device_id device, cl_uint what) {
  return text([&](size_t size, void* to, size_t* out) { return cl().GetDeviceInfo(device, what, size, to, out); });
}

std::string text_of(cl_platform_id platform, cl_uint what) {
  return text([&](size_t size, void* to, size_t* out) { return cl().GetPlatformInfo(platform, what, size, to, out); });
}

bool has_extension(const std::string& extensions, const char* name) {
  return (" " + extensions + " ").find(" " + std::string(name) + " ") != std::string::npos;
}

std::string language_of(cl_device_id device) {
  size_t size = 0;
  if (cl().GetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, 0, nullptr, &size) != CL_SUCCESS) return "1.2";
  std::vector<cl_name_version> versions(size / sizeof(cl_name_version));
  if (cl().GetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, size, versions.data(), nullptr) != CL_SUCCESS)
    return "1.2";
  const bool three =
      std::any_of(versions.begin(), versions.end(), [](const cl_name_version& v) { return v.version == 3u << 22; });
  return three ? "3.0" : "1.2";
}

std::vector<FoundPlatform> find_platforms(std::vector<std::string>& reasons) {
  const Vendors vendors;
  load_api(options().library, vendors.loaders());
  cl_uint count = 0;
  if (cl().GetPlatformIDs(0, nullptr, &count) != CL_SUCCESS) count = 0;
  std::vector<cl_platform_id> ids(count);
  if (count != 0 && cl().GetPlatformIDs(count, ids.data(), nullptr) != CL_SUCCESS) ids.clear();
  std::vector<FoundPlatform> result;
  std::set<std::string> seen;
  for (const cl_platform_id id : ids) {
    FoundPlatform found = describe(id);
    if (found.name.find("FPGA Emulation") != std::string::npos) continue;  // the same processor once more
    found.devices.erase(
        std::remove_if(found.devices.begin(), found.devices.end(), [](cl_device_id device) { return !usable(device); }),
        found.devices.end());
    if (found.devices.empty()) {
      reasons.push_back("platform " + found.name + " has no device that is available and has a compiler");
      continue;
    }
    name_devices(found);
    if (!seen.insert(identity(found)).second) continue;
    const std::string reason = probe(found);
    if (reason.empty()) {
      result.push_back(std::move(found));
    } else {
      reasons.push_back(reason);
    }
  }
  for (std::string& failure : vendors.failures()) reasons.push_back(std::move(failure));
  return result;
}

std::string no_device_text(const std::vector<std::string>& reasons) {
  std::string text = "the OpenCL loader is here but ";
  text += reasons.empty() ? "finds no platform" : "no device can be used: ";
  for (size_t i = 0; i < reasons.size(); ++i) text += (i == 0 ? "" : "; ") + reasons[i];
  return text +
         ". Install a runtime: `apt install pocl-opencl-icd` (PoCL, any CPU), `pip install intel-opencl-rt "
         "intel-cmplr-lib-rt` (Intel's CPU runtime), or your GPU vendor's OpenCL driver";
}

}  // namespace ocl
