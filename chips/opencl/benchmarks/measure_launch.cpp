// What one kernel launch costs without Torch-FL: five arguments, clEnqueueNDRangeKernel, clFlush, as the adapter does
// them for `a + b`. The floor under the figure "add 1 element" of benchmarks/opencl.py. An argument gives microseconds of
// other work of the host between launches: the device's threads then fall asleep in between, and waking them costs.
//   c++ -std=c++17 -O2 -I adapter -I ../../include benchmarks/measure_launch.cpp adapter/cl_api.cpp adapter/error.cpp
//       -ldl -o measure_launch && ./measure_launch 1        (in chips/opencl)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cl_api.h"
#include "error.h"

namespace {

using namespace ocl;

constexpr const char* kText =
    "__kernel void add(__global float* a, long a_at, __global float* b, long b_at, long n) {"
    "  long i = get_global_id(0); if (i < n) a[a_at + i] = b[b_at + i] + 1; }";
constexpr int kLaunches = 200, kSamples = 101;

double host_work_us = 0;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_us(cl_command_queue queue, cl_kernel kernel, bool pointers, void* const* memory) {
  const cl_long zero = 0, one = 1;
  const size_t group = 64;
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    const double begin = now_us();
    for (int i = 0; i < kLaunches; ++i) {
      for (cl_uint k = 0; k < 2; ++k) {
        if (pointers) check(cl().SetKernelArgSVMPointer(kernel, 2 * k, memory[k]), "argument");
        else check(cl().SetKernelArg(kernel, 2 * k, sizeof(cl_mem), &memory[k]), "argument");
        check(cl().SetKernelArg(kernel, 2 * k + 1, sizeof(zero), &zero), "argument");
      }
      check(cl().SetKernelArg(kernel, 4, sizeof(one), &one), "argument");
      for (const double until = now_us() + host_work_us; host_work_us > 0 && now_us() < until;) {
      }
      check(cl().EnqueueNDRangeKernel(queue, kernel, 1, nullptr, &group, &group, 0, nullptr, nullptr), "launch");
      check(cl().Flush(queue), "flush");
    }
    samples.push_back((now_us() - begin) / kLaunches - host_work_us);
    check(cl().Finish(queue), "finish");
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

void measure(cl_platform_id platform) {
  char name[256] = "";
  check(cl().GetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(name), name, nullptr), "platform");
  cl_device_id device = nullptr;
  check(cl().GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr), "device");
  cl_int code = CL_SUCCESS;
  const cl_context context = cl().CreateContext(nullptr, 1, &device, nullptr, nullptr, &code);
  check(code, "context");
  const cl_command_queue queue = cl().CreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &code);
  check(code, "queue");
  const char* text = kText;
  const cl_program program = cl().CreateProgramWithSource(context, 1, &text, nullptr, &code);
  check(cl().BuildProgram(program, 1, &device, "", nullptr, nullptr), "build");
  const cl_kernel kernel = cl().CreateKernel(program, "add", &code);
  check(code, "kernel");
  constexpr size_t kBytes = 4096;
  void* buffers[2];
  for (void*& buffer : buffers) buffer = cl().CreateBuffer(context, CL_MEM_READ_WRITE, kBytes, nullptr, &code);
  std::printf("%-32s buffers %5.2f us", name, median_us(queue, kernel, false, buffers));
  void* pointers[2];
  for (void*& pointer : pointers)
    pointer = cl().SVMAlloc(context, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, kBytes, 0);
  if (pointers[0] != nullptr && pointers[1] != nullptr)
    std::printf("   fine-grained SVM %5.2f us", median_us(queue, kernel, true, pointers));
  std::printf("\n");
}

}  // namespace

int main(int count, char** words) {
  host_work_us = count > 1 ? std::atof(words[1]) : 0;
  return guarded([] {
           load_api("", {});
           cl_uint num_platforms = 0;
           check(cl().GetPlatformIDs(0, nullptr, &num_platforms), "platforms");
           std::vector<cl_platform_id> platforms(num_platforms);
           check(cl().GetPlatformIDs(num_platforms, platforms.data(), nullptr), "platforms");
           for (const cl_platform_id platform : platforms) measure(platform);
         }) == FL_STATUS_OK
             ? 0
             : (std::fprintf(stderr, "%s\n", last_error()->message), 1);
}
