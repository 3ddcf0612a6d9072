/* An OpenCL loader with one fault, for tests: it needs the real libOpenCL.so.1 and overrides single functions of it, so
 * dlsym finds these first and the rest behind them. OPENCL_FAULT names the fault; OPENCL_COUNT a file to which each
 * program made from source adds a byte. Given to the adapter by option `library`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
#define EXPORT __attribute__((visibility("default")))
#define REAL(name) real(#name)

static void* real(const char* name) {
  void* function = dlsym(RTLD_NEXT, name);
  if (function == NULL) abort();
  return function;
}

static int fault(const char* name) {
  const char* wanted = getenv("OPENCL_FAULT");
  return wanted != NULL && strcmp(wanted, name) == 0;
}

EXPORT cl_int clGetPlatformIDs(cl_uint size, void** out, cl_uint* count) {
  if (fault("no_platform")) {
    if (count != NULL) *count = 0;
    return -1001;
  }
  return ((cl_int (*)(cl_uint, void**, cl_uint*))REAL(clGetPlatformIDs))(size, out, count);
}

/* "stranger": a platform that nobody knows. */
EXPORT cl_int clGetPlatformInfo(void* platform, cl_uint what, size_t size, void* out, size_t* out_size) {
  const char* text = NULL;
  if (getenv("OPENCL_STRANGER") != NULL) text = what == 0x0902 ? "Stranger" : what == 0x0903 ? "Nobody" : NULL;
  if (text == NULL) {
    return ((cl_int (*)(void*, cl_uint, size_t, void*, size_t*))REAL(clGetPlatformInfo))(platform, what, size, out,
                                                                                         out_size);
  }
  if (out_size != NULL) *out_size = strlen(text) + 1;
  if (out != NULL) snprintf(out, size, "%s", text);
  return 0;
}

static int replaced(cl_uint what, uint64_t* value) {
  const int card = fault("card"), coarse = card || fault("coarse");
  if (card && what == 0x1000) return *value = 4, 1;   /* type: GPU */
  if (card && what == 0x1035) return *value = 0, 1;   /* host memory is another's */
  if (coarse && what == 0x1053) return *value = 1, 1; /* SVM: coarse-grained */
  if (fault("no_svm") && what == 0x1053) return *value = 0, 1;
  if ((coarse || fault("no_svm")) && what == 0x4191) return *value = card, 1; /* USM device memory */
  if (card && what == 0x4192) return *value = 0, 1;                           /* USM shared memory */
  if (fault("small") && what == 0x101F) return *value = 64u << 20, 1;         /* memory */
  if (fault("small") && what == 0x1010) return *value = 16u << 20, 1;         /* largest allocation */
  if (fault("no_compiler") && what == 0x1028) return *value = 0, 1;
  return 0;
}

EXPORT cl_int clGetDeviceInfo(void* device, cl_uint what, size_t size, void* out, size_t* out_size) {
  uint64_t value = 0;
  if (out != NULL && (size == 4 || size == 8) && replaced(what, &value)) {
    memcpy(out, &value, size); /* little-endian */
    if (out_size != NULL) *out_size = size;
    return 0;
  }
  return ((cl_int (*)(void*, cl_uint, size_t, void*, size_t*))REAL(clGetDeviceInfo))(device, what, size, out, out_size);
}

EXPORT cl_int clBuildProgram(void* program, cl_uint count, void* const* devices, const char* options,
                             void (*notify)(void*, void*), void* data) {
  if (fault("build_fails")) return -11;
  if (fault("build_aborts")) {
    fprintf(stderr, "COMPILER ERROR: cannot do it\n");
    abort();
  }
  if (fault("build_hangs")) sleep(1000);
  return ((cl_int (*)(void*, cl_uint, void* const*, const char*, void (*)(void*, void*), void*))REAL(clBuildProgram))(
      program, count, devices, options, notify, data);
}

EXPORT void* clCreateProgramWithSource(void* context, cl_uint count, const char** text, const size_t* sizes,
                                       cl_int* code) {
  const char* path = getenv("OPENCL_COUNT");
  if (path != NULL) {
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file < 0 || write(file, "x", 1) != 1) abort();
    close(file);
  }
  return ((void* (*)(void*, cl_uint, const char**, const size_t*, cl_int*))REAL(clCreateProgramWithSource))(
      context, count, text, sizes, code);
}

EXPORT cl_int clEnqueueNDRangeKernel(void* queue, void* kernel, cl_uint dims, const size_t* offset,
                                     const size_t* global, const size_t* local, cl_uint count, void* const* waits,
                                     void** event) {
  if (fault("launch_fails")) return -5;
  return ((cl_int (*)(void*, void*, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, void* const*,
                      void**))REAL(clEnqueueNDRangeKernel))(queue, kernel, dims, offset, global, local, count, waits,
                                                            event);
}

/* The work before an event failed. */
EXPORT cl_int clGetEventInfo(void* event, cl_uint what, size_t size, void* out, size_t* out_size) {
  const cl_int code =
      ((cl_int (*)(void*, cl_uint, size_t, void*, size_t*))REAL(clGetEventInfo))(event, what, size, out, out_size);
  if (what == 0x11D3 && out != NULL && fault("work_fails")) *(cl_int*)out = -9999;
  return code;
}

EXPORT cl_int clFinish(void* queue) {
  const cl_int code = ((cl_int (*)(void*))REAL(clFinish))(queue);
  return fault("device_lost") ? -2 : fault("out_of_resources") ? -5 : code;
}

EXPORT void* clSVMAlloc(void* context, uint64_t flags, size_t size, cl_uint alignment) {
  if (fault("no_memory")) return NULL;
  return ((void* (*)(void*, uint64_t, size_t, cl_uint))REAL(clSVMAlloc))(context, flags, size, alignment);
}
