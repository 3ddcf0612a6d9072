// The command line of the adapter's tests; see driver.h.
#include "driver.h"

#include <dlfcn.h>

#include <cstring>

const fl_adapter* a;

void failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: %s\n  last error: %s\n", file, line, condition, a != nullptr ? last_text().c_str() : "");
  std::fflush(stdout);
  std::_Exit(1);
}

std::string last_text() {
  const fl_error* error = a->last_error();
  return std::string(error->vendor_name != nullptr ? error->vendor_name : "") + ": " +
         (error->message != nullptr ? error->message : "");
}

bool said(const char* words) { return last_text().find(words) != std::string::npos; }

int num_devices() {
  int32_t count = 0;
  OK(a->device_count(&count));
  return count;
}

fl_device_properties properties_of(int device) {
  fl_device_properties properties{};
  properties.struct_size = sizeof(properties);
  OK(a->device_properties(device, &properties));
  return properties;
}

namespace {

// One line per device, for the Python side.
void list_devices() {
  for (int i = 0; i < num_devices(); ++i) {
    const fl_device_properties p = properties_of(i);
    CHECK(p.capabilities & FL_CAP_IN_PLACE);
    CHECK(p.total_memory > 0 && p.max_allocation > 0 && p.max_allocation <= p.total_memory);
    CHECK(p.alignment >= 64 && p.multi_processor_count > 0);
    std::printf("%d\t%s\t%s\t%s\t%u\n", i, p.arch, p.uuid, p.name, p.capabilities);
  }
  fl_device_properties p{};
  CHECK(a->device_properties(num_devices(), &p) == FL_STATUS_INVALID_ARGUMENT && said("no OpenCL device"));
  CHECK(a->device_properties(-1, &p) == FL_STATUS_INVALID_ARGUMENT);
}

void options() {
  CHECK(a->configure("no_such_key", "1") == FL_STATUS_UNIMPLEMENTED);
  CHECK(a->configure("memory", "fast") == FL_STATUS_INVALID_ARGUMENT && said("auto, usm, svm, buffer"));
  CHECK(a->configure("cache_max_mb", "-3") == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->configure("cache_max_mb", "many") == FL_STATUS_INVALID_ARGUMENT);
  CHECK(a->configure(nullptr, "1") == FL_STATUS_INVALID_ARGUMENT);
  OK(a->configure("device_type", "cpu"));
  OK(a->configure("device_type", "gpu"));  // nothing is open yet
  num_devices();
  OK(a->configure("device_type", "gpu"));
  CHECK(a->configure("device_type", "cpu") == FL_STATUS_FAILED_PRECONDITION && said("device_type=cpu"));
}

// Prints why there is no device.
void absent() {
  int32_t count = 7;
  const fl_status status = a->device_count(&count);
  CHECK(count == 0);
  CHECK(status == FL_STATUS_UNAVAILABLE);
  std::printf("%s\n", a->last_error()->message);
  CHECK(a->device_count(&count) == FL_STATUS_UNAVAILABLE);  // and again
}

const std::vector<Scenario> kGeneral = {{"devices", list_devices}, {"options", options}, {"absent", absent}};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s LIBRARY SCENARIO [key=value …]\n", argv[0]);
    return 2;
  }
  void* library = dlopen(argv[1], RTLD_LOCAL | RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  const auto get_adapter = reinterpret_cast<fl_get_adapter_fn>(dlsym(library, FL_ENTRY_SYMBOL));
  CHECK(get_adapter != nullptr);
  a = get_adapter();
  CHECK(a->struct_size == sizeof(fl_adapter) && a->abi_major == FL_ABI_MAJOR && std::strcmp(a->name, "opencl") == 0);
  for (int i = 3; i < argc; ++i) {
    const std::string option = argv[i];
    const size_t equals = option.find('=');
    OK(a->configure(option.substr(0, equals).c_str(), option.substr(equals + 1).c_str()));
  }
  for (const auto* list : {&kGeneral, &memory_scenarios, &stream_scenarios, &kernel_scenarios}) {
    for (const Scenario& scenario : *list) {
      if (std::strcmp(scenario.name, argv[2]) != 0) continue;
      scenario.run();
      return 0;
    }
  }
  std::fprintf(stderr, "no scenario %s\n", argv[2]);
  return 2;
}
