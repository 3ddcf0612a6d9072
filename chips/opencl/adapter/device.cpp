// The list of devices: platforms opened, devices described, memory modes chosen. Also the types that kernels know.
#include "device.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>

#include "discovery.h"
#include "error.h"
#include "kernel.h"
#include "memory.h"
#include "runtime.h"

namespace ocl {

// ---------------------------------------------------------------- types

namespace {

struct TypeInfo {
  fl_dtype dtype;
  int bytes;
  const char* token;
};
constexpr TypeInfo kTypeInfos[kNumTypes] = {
    {{FL_BOOL, 8, 1}, 1, "b8"},    {{FL_UINT, 8, 1}, 1, "u8"},      {{FL_INT, 8, 1}, 1, "i8"},
    {{FL_INT, 16, 1}, 2, "i16"},   {{FL_INT, 32, 1}, 4, "i32"},     {{FL_INT, 64, 1}, 8, "i64"},
    {{FL_FLOAT, 16, 1}, 2, "f16"}, {{FL_BFLOAT, 16, 1}, 2, "bf16"}, {{FL_FLOAT, 32, 1}, 4, "f32"},
    {{FL_FLOAT, 64, 1}, 8, "f64"},
};

}  // namespace

Type type_of(fl_dtype dtype) {
  for (int i = 0; i < kNumTypes; ++i) {
    const fl_dtype& known = kTypeInfos[i].dtype;
    if (known.code == dtype.code && known.bits == dtype.bits && dtype.lanes == 1) return static_cast<Type>(i);
  }
  return Type::None;
}

int size_of(Type type) { return type == Type::None ? 0 : kTypeInfos[static_cast<int>(type)].bytes; }

const char* token_of(Type type) { return type == Type::None ? "none" : kTypeInfos[static_cast<int>(type)].token; }

// ---------------------------------------------------------------- one device

namespace {

// "intel", "nvidia" … of the first word of a vendor's name.
std::string short_vendor(const std::string& vendor) {
  std::string word;
  for (const char c : vendor) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) break;
    word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (word == "advanced") return "amd";
  return word.empty() ? "opencl" : word;
}

std::string arch_of(const Platform& platform, cl_device_id id, bool cpu) {
  const bool pocl = platform.name == "Portable Computing Language";
  return (pocl ? "pocl" : short_vendor(text_of(id, CL_DEVICE_VENDOR))) + (cpu ? "-cpu" : "-gpu");
}

void choose_memory(Device& device) {
  const auto svm = number_of<cl_bitfield>(device.id, CL_DEVICE_SVM_CAPABILITIES);
  const auto access = [&](cl_uint what) {
    return (number_of<cl_bitfield>(device.id, what) & CL_UNIFIED_SHARED_MEMORY_ACCESS_INTEL) != 0;
  };
  const bool unified = device.host_cpu || number_of<cl_bool>(device.id, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
  const bool usm = device.platform->usm.MemFree != nullptr && access(CL_DEVICE_DEVICE_MEM_CAPABILITIES_INTEL);
  const bool shared = usm && unified && access(CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL);
  const bool pointers =
      (svm & (CL_DEVICE_SVM_COARSE_GRAIN_BUFFER | CL_DEVICE_SVM_FINE_GRAIN_BUFFER)) != 0 && cl().SVMAlloc != nullptr;
  const bool fine = pointers && unified && (svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;

  using Choice = Options::Memory;
  Choice choice = options().memory;
  if (choice == Choice::Auto) {  // on a CPU, SVM arguments cost less than USM ones (2.5 and 2.9 us per launch, Intel)
    choice = device.host_cpu && fine ? Choice::Svm : usm ? Choice::Usm : pointers ? Choice::Svm : Choice::Buffer;
  }
  if ((choice == Choice::Usm && !usm) || (choice == Choice::Svm && !pointers)) {
    fail(FL_STATUS_UNIMPLEMENTED,
         device.name + " has no " +
             (choice == Choice::Usm ? "unified shared memory (USM)" : "shared virtual memory (SVM)") +
             "; set option `memory` to auto");
  }
  device.mode = choice == Choice::Usm ? MemoryMode::Usm : choice == Choice::Svm ? MemoryMode::Svm : MemoryMode::Buffer;
  device.fine_grained = choice == Choice::Usm ? shared : choice == Choice::Svm && fine;
}

void describe(Device& device) {
  const cl_device_id id = device.id;
  const std::string extensions = text_of(id, CL_DEVICE_EXTENSIONS);
  device.name = text_of(id, CL_DEVICE_NAME);
  device.driver = text_of(id, CL_DRIVER_VERSION);
  device.host_cpu = (number_of<cl_device_type>(id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) != 0;
  using Kind = Options::DeviceType;
  device.cpu = options().device_type == Kind::Auto ? device.host_cpu : options().device_type == Kind::Cpu;
  device.arch = arch_of(*device.platform, id, device.host_cpu);
  device.language = language_of(id);
  device.fp16 = has_extension(extensions, "cl_khr_fp16");
  device.fp64 = number_of<cl_bitfield>(id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
  device.int64_atomics = has_extension(extensions, "cl_khr_int64_base_atomics") &&
                         has_extension(extensions, "cl_khr_int64_extended_atomics");
  device.subgroups = number_of<cl_uint>(id, CL_DEVICE_MAX_NUM_SUB_GROUPS) > 0;
  device.priorities = has_extension(extensions, "cl_khr_priority_hints");
  device.total_memory = number_of<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE);
  device.max_allocation = number_of<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  device.local_memory = number_of<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE);
  device.compute_units = number_of<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS);
  device.max_group = static_cast<uint32_t>(number_of<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  device.alignment =
      std::max<uint32_t>(64, std::min<uint32_t>(4096, number_of<cl_uint>(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8));
  device.flush_every = device.host_cpu ? 1 : 8;  // on a CPU a flush costs nothing measurable
  device.types = kAllTypes & ~(device.fp64 ? 0 : bit(Type::Float64));
  choose_memory(device);
}

// ---------------------------------------------------------------- all devices

struct All {
  std::mutex mutex;
  std::atomic<bool> opened{false};
  std::vector<std::unique_ptr<Platform>> platforms;
  std::vector<std::unique_ptr<Device>> devices;  // live as long as the process, as does what is queued on them
};

All& all() {
  static auto* list = new All;
  return *list;
}

void open_platform(All& list, const FoundPlatform& found, std::vector<std::string>& reasons) {
  auto platform = std::make_unique<Platform>();
  platform->id = found.id;
  platform->name = found.name;
  platform->vendor = found.vendor;
  platform->version = found.version;
  platform->usm = usm_of(found.id);
  const cl_context_properties properties[] = {static_cast<cl_context_properties>(CL_CONTEXT_PLATFORM),
                                              reinterpret_cast<cl_context_properties>(found.id), 0};
  cl_int code = CL_SUCCESS;
  platform->context = cl().CreateContext(properties, static_cast<cl_uint>(found.devices.size()), found.devices.data(),
                                         nullptr, nullptr, &code);
  if (code != CL_SUCCESS) fail(code, "cannot make a context of platform " + found.name);
  list.platforms.push_back(std::move(platform));
  Platform& kept = *list.platforms.back();
  for (size_t i = 0; i < found.devices.size(); ++i) {
    auto device = std::make_unique<Device>();
    device->ordinal = static_cast<int>(list.devices.size());
    device->platform = &kept;
    device->id = found.devices[i];
    device->uuid = found.uuids[i];
    if (guarded([&] { describe(*device); }) != FL_STATUS_OK) {
      reasons.emplace_back(last_error()->message);
      continue;
    }
    device->memory = std::make_unique<DeviceMemory>(*device);
    device->programs = std::make_unique<ProgramStore>(*device);
    list.devices.push_back(std::move(device));
    ++kept.num_devices;
  }
}

void open(All& list) {
  std::vector<std::string> reasons;
  for (const FoundPlatform& found : find_platforms(reasons)) {
    const fl_status status = guarded([&] { open_platform(list, found, reasons); });
    if (status != FL_STATUS_OK) reasons.push_back("platform " + found.name + ": " + last_error()->message);
  }
  if (list.devices.empty()) fail(FL_STATUS_UNAVAILABLE, no_device_text(reasons));
  for (const std::string& reason : reasons) std::fprintf(stderr, "[Torch-FL] OpenCL: %s\n", reason.c_str());
}

}  // namespace

int device_count() {
  All& list = all();
  if (list.opened) return static_cast<int>(list.devices.size());
  std::lock_guard<std::mutex> lock(list.mutex);
  if (!list.opened) open(list);
  list.opened = true;
  return static_cast<int>(list.devices.size());
}

bool devices_open() { return all().opened; }

Device& device(int ordinal) {
  const int count = device_count();
  if (ordinal < 0 || ordinal >= count) {
    fail(FL_STATUS_INVALID_ARGUMENT,
         "no OpenCL device " + std::to_string(ordinal) + ": there are " + std::to_string(count));
  }
  return *all().devices[static_cast<size_t>(ordinal)];
}

}  // namespace ocl
