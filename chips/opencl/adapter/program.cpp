// Programs: their text is put together from definitions and the files of kernels/, built once per device, and kept in
// memory by that text and on disk as binaries (program_cache.cpp).
#include <dlfcn.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "kernel.h"
#include "program_cache.h"

namespace ocl {
namespace {

// kernels/ beside this library.
const std::string& kernel_folder() {
  static const std::string folder = [] {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&kernel_folder), &info) == 0 || info.dli_fname == nullptr)
      return std::string("kernels/");
    const std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    return (slash == std::string::npos ? "" : path.substr(0, slash + 1)) + "kernels/";
  }();
  return folder;
}

// Files are read once per process.
const std::string& kernel_file(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::string>* files = new std::map<std::string, std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto known = files->find(name);
  if (known != files->end()) return known->second;
  const std::string path = kernel_folder() + name;
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  if (!stream) fail(FL_STATUS_NOT_FOUND, "cannot read the kernels in " + path + "; install the OpenCL chip again");
  return (*files)[name] = text.str();
}

std::string build_log(const Device& device, cl_program program) {
  size_t size = 0;
  cl().GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, '\0');
  if (size != 0) cl().GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  constexpr size_t kMost = 4000;
  if (log.size() > kMost) log = log.substr(0, kMost) + " …";
  return log.empty() ? "the compiler left no log" : log;
}

}  // namespace

// ---------------------------------------------------------------- Source

Source& Source::define(const char* name, Type type) { return define(name, std::string(token_of(type))); }

Source& Source::define(const char* name, int64_t value) { return define(name, std::to_string(value)); }

Source& Source::define(const char* name, const std::string& text) {
  definitions_ += std::string("#define ") + name + " " + text + "\n";
  return *this;
}

Source& Source::file(const char* name) { return text(kernel_file(name)); }

Source& Source::text(const std::string& code) {
  body_ += code;
  body_ += '\n';
  return *this;
}

Source& Source::kernel(const char* name) {
  kernels_.emplace_back(name);
  return *this;
}

Source& Source::option(const char* flag) {
  options_ += std::string(" ") + flag;
  return *this;
}

// ---------------------------------------------------------------- ProgramStore

const Program& ProgramStore::get(const Source& source) {
  std::string text;
  if (device_.cpu) text += "#define CPU 1\n";
  if (device_.fp64) text += "#define HAS_FP64 1\n";
  if (device_.int64_atomics) text += "#define HAS_INT64_ATOMICS 1\n";
  text += source.definitions_ + kernel_file("types.cl") + source.body_;
  std::string what;
  for (const std::string& name : source.kernels_) what += (what.empty() ? "" : ", ") + name;
  const std::string options = "-w -cl-std=CL" + device_.language + source.options_;

  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Program>& slot = programs_[options + "\n" + what + "\n" + text];
  if (slot) return *slot;
  const cl_program built = build(text, options, what);
  auto program = std::make_unique<Program>();
  for (const std::string& name : source.kernels_) {
    auto kernel = std::make_unique<Program::Kernel>();
    cl_int code = CL_SUCCESS;
    kernel->handle = cl().CreateKernel(built, name.c_str(), &code);
    if (code != CL_SUCCESS) fail(code, "cannot make kernel " + name + " on " + device_.name);
    cl().GetKernelWorkGroupInfo(kernel->handle, device_.id, CL_KERNEL_WORK_GROUP_SIZE, sizeof(size_t),
                                &kernel->max_group, nullptr);
    program->kernels_.push_back(std::move(kernel));
  }
  cl().ReleaseProgram(built);  // its kernels keep it
  slot = std::move(program);
  return *slot;
}

cl_program ProgramStore::build(const std::string& text, const std::string& options, const std::string& what) {
  cl_program program = nullptr;
  if (load_binary(device_, text, options, &program)) {
    if (cl().BuildProgram(program, 1, &device_.id, options.c_str(), nullptr, nullptr) == CL_SUCCESS) return program;
    cl().ReleaseProgram(program);  // a binary that the driver does not take after all
  }
  const char* line = text.c_str();
  const size_t size = text.size();
  cl_int code = CL_SUCCESS;
  program = cl().CreateProgramWithSource(device_.context(), 1, &line, &size, &code);
  if (code != CL_SUCCESS) fail(code, "cannot make the program of " + what + " on " + device_.name);
  code = cl().BuildProgram(program, 1, &device_.id, options.c_str(), nullptr, nullptr);
  if (code != CL_SUCCESS) {
    const std::string log = build_log(device_, program);
    cl().ReleaseProgram(program);
    fail(code, "the OpenCL compiler of " + device_.name + " (driver " + device_.driver + ") does not build kernel " +
                   what + ": " + log);
  }
  save_binary(device_, text, options, program);
  return program;
}

}  // namespace ocl
