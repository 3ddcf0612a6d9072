// Finds OpenCL's ICD loader and its functions; see cl_api.h.
#include "cl_api.h"

#include <dlfcn.h>

#include <mutex>

#include "error.h"

namespace ocl {

const Api* loaded_api = nullptr;

namespace {

constexpr const char* kInstall =
    "Install a loader and a runtime: `apt install ocl-icd-libopencl1 pocl-opencl-icd` (PoCL, any CPU), "
    "`pip install intel-opencl-rt intel-cmplr-lib-rt` (Intel's CPU runtime), or your GPU vendor's OpenCL driver";

template <class Function>
bool resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

void* open_loader(const std::string& path, const std::vector<std::string>& more) {
  if (!path.empty()) {
    if (void* library = dlopen(path.c_str(), RTLD_LOCAL | RTLD_NOW)) return library;
    const char* reason = dlerror();
    fail(FL_STATUS_UNAVAILABLE, "the OpenCL loader given by option `library` cannot be opened: " +
                                    std::string(reason != nullptr ? reason : path));
  }
  std::vector<std::string> names = {"libOpenCL.so.1", "libOpenCL.so"};
  names.insert(names.end(), more.begin(), more.end());
  std::string reasons;
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_LOCAL | RTLD_NOW)) return library;
    const char* reason = dlerror();
    reasons += (reasons.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : name);
  }
  fail(FL_STATUS_UNAVAILABLE, "no OpenCL loader (libOpenCL.so.1) on this machine: " + reasons + ". " + kInstall);
}

}  // namespace

const Api& load_api(const std::string& path, const std::vector<std::string>& more) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded_api != nullptr) return *loaded_api;
  void* library = open_loader(path, more);
  static Api api;
  std::string missing;  // the first of them
#define OCL_REQUIRE(name, result, parameters) \
  if (!resolve(library, "cl" #name, api.name) && missing.empty()) missing = "cl" #name;
  OCL_FUNCTIONS(OCL_REQUIRE)
#undef OCL_REQUIRE
  if (!missing.empty()) {
    dlclose(library);
    fail(FL_STATUS_UNAVAILABLE, "the OpenCL loader lacks " + missing + ", which OpenCL 1.2 has. " + kInstall);
  }
#define OCL_RESOLVE(name, result, parameters) resolve(library, "cl" #name, api.name);
  OCL_FUNCTIONS_2(OCL_RESOLVE)
#undef OCL_RESOLVE
  return *(loaded_api = &api);
}

UsmApi usm_of(cl_platform_id platform) {
  UsmApi usm;
  bool complete = true;
#define OCL_RESOLVE(name, result, parameters)                                                                          \
  usm.name =                                                                                                           \
      reinterpret_cast<decltype(usm.name)>(cl().GetExtensionFunctionAddressForPlatform(platform, "cl" #name "INTEL")); \
  complete = complete && usm.name != nullptr;
  OCL_FUNCTIONS_USM(OCL_RESOLVE)
#undef OCL_RESOLVE
  return complete ? usm : UsmApi{};
}

}  // namespace ocl
