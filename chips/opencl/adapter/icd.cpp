// OpenCL drivers are named by .icd files in a vendors' folder. Intel's wheel (intel-opencl-rt) ships one with a
// placeholder for a path, in a folder where no loader looks, and does not declare the wheel with the libraries that
// its driver needs: both are put right or told here.
#include "icd.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <set>

#include "disk.h"

namespace ocl {
namespace {

constexpr const char* kSystemFolder = "/etc/OpenCL/vendors";
constexpr const char* kVariable = "OCL_ICD_VENDORS";
constexpr const char* kIntelDriver = "libintelocl.so";

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string first_line(const std::string& path) {
  std::string text = read_text(path);
  text = text.substr(0, text.find_first_of("\r\n"));
  const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The library that an .icd file names; OCL_ICD_VENDORS may also be a library itself.
std::string driver_of(const std::string& file) { return ends_with(file, ".icd") ? first_line(file) : file; }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* listing = opendir(folder.c_str());
  if (listing == nullptr) return names;
  while (const dirent* entry = readdir(listing)) names.emplace_back(entry->d_name);
  closedir(listing);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> icd_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const std::string& name : names_in(folder))
    if (ends_with(name, ".icd")) files.push_back(folder + "/" + name);
  return files;
}

// The prefix of a Python environment that a loaded library lies in: what is before /lib/python3…/site-packages.
std::string environment_of(const std::string& path) {
  const size_t python = path.find("/lib/python3");
  const bool packages = path.find("-packages/", python == std::string::npos ? 0 : python) != std::string::npos;
  return python != std::string::npos && packages ? path.substr(0, python) : "";
}

int add_environment(dl_phdr_info* info, size_t, void* data) {
  const std::string prefix = info->dlpi_name != nullptr ? environment_of(info->dlpi_name) : "";
  if (!prefix.empty()) static_cast<std::vector<std::string>*>(data)->push_back(prefix);
  return 0;
}

// Where Python packages with libraries may be installed, best first, once each.
std::vector<std::string> prefixes() {
  std::vector<std::string> all;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&prefixes), &info) != 0 && info.dli_fname != nullptr) {
    std::string path = info.dli_fname;
    for (size_t slash = path.rfind('/'); slash != std::string::npos && slash != 0; slash = path.rfind('/')) {
      path.resize(slash);
      all.push_back(path);
    }
  }
  dl_iterate_phdr(add_environment, &all);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (!variable(name).empty()) all.push_back(variable(name));
  std::vector<std::string> once;
  std::set<std::string> seen;
  for (const std::string& prefix : all) {
    char real[PATH_MAX];
    if (realpath(prefix.c_str(), real) != nullptr && seen.insert(real).second) once.emplace_back(real);
  }
  return once;
}

bool names_intel(const std::string& file) {
  const std::string driver = driver_of(file);
  return base_name(driver).rfind(kIntelDriver, 0) == 0 && exists(driver);
}

// "2026.2.0" of the intel-opencl-rt that put the driver into <prefix>/lib; empty if it was not pip.
std::string intel_version(const std::string& driver) {
  const std::string lib = driver.substr(0, driver.rfind('/'));
  const std::string start = "intel_opencl_rt-", end = ".dist-info";
  for (const std::string& python : names_in(lib)) {
    if (python.rfind("python3", 0) != 0) continue;
    for (const std::string& name : names_in(lib + "/" + python + "/site-packages")) {
      if (name.rfind(start, 0) == 0 && ends_with(name, end))
        return name.substr(start.size(), name.size() - start.size() - end.size());
    }
  }
  return "";
}

std::string advice(const std::string& driver, const std::string& error) {
  if (base_name(driver).rfind("libintelocl", 0) != 0) return "";
  if (!exists(driver))
    return ". Intel's wheel ships .icd files with a wrong path: unset OCL_ICD_VENDORS, and the driver is found without";
  for (const char* library : {"libimf", "libsvml", "libirng", "libintlc"}) {
    if (error.find(library) == std::string::npos) continue;
    const std::string version = intel_version(driver);
    return ". `pip install intel-cmplr-lib-rt" + (version.empty() ? "" : "==" + version) +
           "` brings what Intel's runtime needs but does not declare";
  }
  return "";
}

}  // namespace

Vendors::Vendors() {
  std::vector<std::string> wheels;
  for (const std::string& prefix : prefixes()) {
    const std::string driver = prefix + "/lib/" + kIntelDriver;
    if (!exists(driver)) continue;
    wheels.push_back(driver);
    if (exists(prefix + "/lib/libOpenCL.so.1")) loaders_.push_back(prefix + "/lib/libOpenCL.so.1");
  }
  const std::string chosen = variable(kVariable);
  if (!chosen.empty()) {
    struct stat info{};
    const bool folder = stat(chosen.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    files_ = folder ? icd_files(chosen) : std::vector<std::string>{chosen};
    return;
  }
  for (const std::string& folder : {std::string(kSystemFolder), variable("OPENCL_VENDOR_PATH")}) {
    if (folder.empty()) continue;
    for (const std::string& file : icd_files(folder)) files_.push_back(file);
  }
  // One copy is enough: the processor is the same.
  if (!wheels.empty() && std::none_of(files_.begin(), files_.end(), names_intel)) make_folder({wheels.front()});
}

void Vendors::make_folder(const std::vector<std::string>& drivers) {
  const std::string temporary = variable("TMPDIR");
  std::string pattern = (temporary.empty() ? "/tmp" : temporary) + "/torch-fl-opencl-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) return;
  folder_ = pattern;
  std::vector<std::string> lines = drivers;
  for (const std::string& file : files_) lines.push_back(driver_of(file));
  files_.clear();
  for (const std::string& line : lines) {
    const std::string file = folder_ + "/" + std::to_string(10 + files_.size()) + ".icd", text = line + "\n";
    if (write_whole(file, {{text.data(), text.size()}})) files_.push_back(file);
  }
  setenv(kVariable, folder_.c_str(), 1);
}

Vendors::~Vendors() {
  if (folder_.empty()) return;
  unsetenv(kVariable);
  for (const std::string& file : files_) unlink(file.c_str());
  rmdir(folder_.c_str());
}

std::vector<std::string> Vendors::failures() const {
  std::vector<std::string> all;
  for (const std::string& file : files_) {
    const std::string driver = driver_of(file);
    if (driver.empty() || base_name(driver).rfind("libintelocl_emu", 0) == 0) continue;  // an emulator is not missed
    if (void* library = dlopen(driver.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
      dlclose(library);  // the loader has it
      continue;
    }
    if (void* library = dlopen(driver.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
      dlclose(library);  // the loader did not want it, as when there is no card for it
      continue;
    }
    const char* reason = dlerror();
    const std::string error = reason != nullptr ? reason : "no reason given";
    all.push_back("driver " + driver + (folder_.empty() ? " of " + file : "") + " cannot be loaded: " + error +
                  advice(driver, error));
  }
  return all;
}

}  // namespace ocl
