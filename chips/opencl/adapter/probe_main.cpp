// fl_opencl_probe LOADER PLATFORM VERSION: builds and runs small kernels, of the kinds that the adapter needs, on all
// devices of a platform, in a process of its own that a faulty driver may end. Its last line tells the result.
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cl_api.h"
#include "error.h"
#include "probe_words.h"

namespace ocl {
namespace {

constexpr size_t kItems = 64;  // of each kernel, in groups of 16
constexpr size_t kGroup = 16;

// All kernels read `in`, a table of bytes, and write one float per item.
struct Trial {
  const char* name;
  const char* source;
  float (*expected)(size_t item);
};

float half_value(size_t i) { return static_cast<float>(i % 8) + 1; }

const Trial kTrials[] = {
    {"half storage",
     "kernel void probe(global const half* in, global float* out) {\n"
     "  size_t i = get_global_id(0);\n"
     "  vstore_half(vload_half(i, in) * 2.0f, 0, (global half*)out + 2 * i);\n"
     "  out[i] = vload_half(0, (global half*)out + 2 * i) / 2.0f;\n"
     "}\n",
     half_value},
    {"bfloat16 as bits",
     "kernel void probe(global const ushort* in, global float* out) {\n"
     "  size_t i = get_global_id(0);\n"
     "  ushort bits = (ushort)(0x3f80 + 0 * in[i]);\n"
     "  out[i] = as_float((uint)bits << 16) + (float)i;\n"
     "}\n",
     [](size_t i) { return 1.0f + static_cast<float>(i); }},
    {"vectors",
     "kernel void probe(global const uchar* in, global float* out) {\n"
     "  size_t i = get_global_id(0);\n"
     "  float16 v = (float16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) + (float)i;\n"
     "  v = fma(v, (float16)2, select((float16)0, (float16)1, isgreater(v, (float16)1e9f)));\n"
     "  out[i] = v.s0 + v.sf;\n"
     "}\n",
     [](size_t i) { return 4.0f * static_cast<float>(i) + 30; }},
    {"local memory",
     "kernel void probe(global const uchar* in, global float* out) {\n"
     "  local int rows[16];\n"
     "  size_t i = get_global_id(0), l = get_local_id(0);\n"
     "  rows[l] = (int)i;\n"
     "  barrier(CLK_LOCAL_MEM_FENCE);\n"
     "  out[i] = (float)rows[15 - l];\n"
     "}\n",
     [](size_t i) { return static_cast<float>(i / kGroup * kGroup + (kGroup - 1 - i % kGroup)); }},
    {"structs by value",
     "typedef struct { long sizes[4]; int dims; } Shape;\n"
     "kernel void probe(global const uchar* in, global float* out, Shape shape) {\n"
     "  size_t i = get_global_id(0);\n"
     "  out[i] = (float)(shape.sizes[i % 4] * shape.dims);\n"
     "}\n",
     [](size_t i) { return static_cast<float>((i % 4 + 1) * 3); }},
    {"double",
     "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
     "kernel void probe(global const uchar* in, global float* out) {\n"
     "  size_t i = get_global_id(0);\n"
     "  double x = 1.0 + (double)i * 0x1p-40;\n"
     "  out[i] = (float)((x - 1.0) * 0x1p40 + 0.5);\n"
     "}\n",
     [](size_t i) { return static_cast<float>(static_cast<double>(i) + 0.5); }},
};

struct Shape {
  int64_t sizes[4] = {1, 2, 3, 4};
  int32_t dims = 3;
};

[[noreturn]] void bad(const std::string& reason) { throw std::runtime_error(reason); }

void must(cl_int code, const char* trial, const char* step) {
  if (code != CL_SUCCESS) bad(std::string(trial) + ": " + step + " fails with " + name_of(code));
}

std::string text_of(cl_platform_id platform, cl_uint what) {
  char text[1024] = "";
  cl().GetPlatformInfo(platform, what, sizeof(text) - 1, text, nullptr);
  const std::string value = text;  // without spaces around it, as the adapter gives it
  const size_t first = value.find_first_not_of(' '), last = value.find_last_not_of(' ');
  return first == std::string::npos ? "" : value.substr(first, last - first + 1);
}

struct Bench {
  cl_context context;
  cl_device_id device;
  cl_command_queue queue;
  cl_mem in, out;
};

void try_one(const Bench& bench, const Trial& trial) {
  cl_int code = CL_SUCCESS;
  const char* source = trial.source;
  const cl_program program = cl().CreateProgramWithSource(bench.context, 1, &source, nullptr, &code);
  must(code, trial.name, "clCreateProgramWithSource");
  must(cl().BuildProgram(program, 1, &bench.device, "", nullptr, nullptr), trial.name, "clBuildProgram");
  const cl_kernel kernel = cl().CreateKernel(program, "probe", &code);
  must(code, trial.name, "clCreateKernel");
  must(cl().SetKernelArg(kernel, 0, sizeof(cl_mem), &bench.in), trial.name, "clSetKernelArg");
  must(cl().SetKernelArg(kernel, 1, sizeof(cl_mem), &bench.out), trial.name, "clSetKernelArg");
  const Shape shape;
  if (std::strstr(trial.source, "Shape shape") != nullptr)
    must(cl().SetKernelArg(kernel, 2, sizeof(shape), &shape), trial.name, "clSetKernelArg of a struct");
  const size_t items = kItems, group = kGroup;
  must(cl().EnqueueNDRangeKernel(bench.queue, kernel, 1, nullptr, &items, &group, 0, nullptr, nullptr), trial.name,
       "clEnqueueNDRangeKernel");
  float result[kItems] = {};
  must(cl().EnqueueReadBuffer(bench.queue, bench.out, CL_TRUE, 0, sizeof(result), result, 0, nullptr, nullptr),
       trial.name, "clEnqueueReadBuffer");
  for (size_t i = 0; i < kItems; ++i)
    if (result[i] != trial.expected(i)) bad(std::string(trial.name) + ": wrong results");
  cl().ReleaseKernel(kernel);
  cl().ReleaseProgram(program);
}

void try_device(cl_platform_id platform, cl_device_id device) {
  const cl_context_properties properties[] = {static_cast<cl_context_properties>(CL_CONTEXT_PLATFORM),
                                              reinterpret_cast<cl_context_properties>(platform), 0};
  cl_int code = CL_SUCCESS;
  Bench bench{};
  bench.device = device;
  bench.context = cl().CreateContext(properties, 1, &device, nullptr, nullptr, &code);
  must(code, "set-up", "clCreateContext");
  bench.queue = cl().CreateCommandQueue(bench.context, device, CL_QUEUE_PROFILING_ENABLE, &code);
  must(code, "set-up", "clCreateCommandQueue");
  bench.in = cl().CreateBuffer(bench.context, CL_MEM_READ_WRITE, kItems * 2, nullptr, &code);
  must(code, "set-up", "clCreateBuffer");
  bench.out = cl().CreateBuffer(bench.context, CL_MEM_READ_WRITE, kItems * 4, nullptr, &code);
  must(code, "set-up", "clCreateBuffer");
  const uint16_t halves[8] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800};  // 1 … 8
  uint16_t in[kItems];
  for (size_t i = 0; i < kItems; ++i) in[i] = halves[i % 8];
  must(cl().EnqueueWriteBuffer(bench.queue, bench.in, CL_TRUE, 0, sizeof(in), in, 0, nullptr, nullptr), "set-up",
       "clEnqueueWriteBuffer");
  cl_bitfield fp64 = 0;
  cl().GetDeviceInfo(device, CL_DEVICE_DOUBLE_FP_CONFIG, sizeof(fp64), &fp64, nullptr);
  for (const Trial& trial : kTrials) {
    if (fp64 == 0 && std::strcmp(trial.name, "double") == 0) continue;
    std::printf("%s\n", trial.name);  // the last line of a process that is ended tells by what
    std::fflush(stdout);
    try_one(bench, trial);
  }
}

void try_platform(const std::string& name, const std::string& version) {
  cl_platform_id platforms[64];
  cl_uint count = 0;
  must(cl().GetPlatformIDs(64, platforms, &count), "set-up", "clGetPlatformIDs");
  for (cl_uint i = 0; i < count && i < 64; ++i) {
    if (text_of(platforms[i], CL_PLATFORM_NAME) != name || text_of(platforms[i], CL_PLATFORM_VERSION) != version)
      continue;
    cl_device_id devices[64];
    cl_uint found = 0;
    must(cl().GetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 64, devices, &found), "set-up", "clGetDeviceIDs");
    for (cl_uint d = 0; d < found && d < 64; ++d) try_device(platforms[i], devices[d]);
    return;
  }
  bad("a second process does not find it");
}

}  // namespace
}  // namespace ocl

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s LOADER PLATFORM VERSION\n", argv[0]);
    return 2;
  }
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);  // an end by a signal is an answer here, not an accident
  std::string reason;
  try {
    ocl::load_api(argv[1]);
    ocl::try_platform(argv[2], argv[3]);
  } catch (const ocl::Failure& failure) {
    reason = failure.text;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (reason.empty()) {
    std::printf("%s\n", ocl::kProbeGood);
  } else {
    std::printf("%s%s\n", ocl::kProbeBad, reason.c_str());
  }
  std::fflush(stdout);
  return reason.empty() ? 0 : 1;
}
