/* The adapter as the host sees it: opened at run time, used through its table alone. argv[1]: libfl_ninguang.so. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torch_fl/adapter.h"

#define CHECK(condition)                                                                                       \
  do {                                                                                                         \
    if (!(condition)) {                                                                                        \
      fprintf(stderr, "%s:%d: %s (%s: %s)\n", __FILE__, __LINE__, #condition, a ? a->last_error()->vendor_name : "", \
              a ? a->last_error()->message : "");                                                              \
      exit(1);                                                                                                 \
    }                                                                                                          \
  } while (0)

static const fl_adapter* a;
static const fl_dtype kFloat = {FL_FLOAT, 32, 1}, kLong = {FL_INT, 64, 1}, kStrange = {FL_FLOAT, 8, 1};
static const int64_t kSize = 4, kStride = 1;

static fl_tensor vector(fl_memory memory, fl_dtype dtype) {
  fl_tensor tensor = {.memory = memory, .sizes = &kSize, .strides = &kStride, .ndim = 1, .dtype = dtype};
  return tensor;
}

static void test_devices(void) {
  int32_t count = 0;
  CHECK(a->device_count(&count) == FL_STATUS_OK && count == 2);
  fl_device_properties properties = {.struct_size = sizeof(properties)};
  CHECK(a->device_properties(1, &properties) == FL_STATUS_OK);
  CHECK(strcmp(properties.uuid, "NG-0000-1") == 0 && strcmp(properties.arch, "tgpu-v2") == 0);
  CHECK(properties.capabilities & FL_CAP_POINTERS && properties.alignment == 64);
  CHECK(a->device_properties(7, &properties) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(strcmp(a->last_error()->vendor_name, "NG_ERROR_INVALID_VALUE") == 0);
}

static void test_kernels(fl_stream stream, fl_memory x, fl_memory y) {
  fl_kernel kernel = {.struct_size = sizeof(kernel)};
  CHECK(a->kernel_find(0, "no_such_op", kFloat, kFloat, &kernel) == FL_STATUS_UNIMPLEMENTED);
  CHECK(a->kernel_find(0, "add", kStrange, kStrange, &kernel) == FL_STATUS_UNIMPLEMENTED);
  CHECK(a->kernel_find(0, "add", kFloat, kFloat, &kernel) == FL_STATUS_OK);
  fl_tensor inputs[2] = {vector(x, kFloat), vector(x, kFloat)}, output = vector(y, kFloat);
  const fl_scalar alpha = {.tag = FL_SCALAR_FLOAT, .v = {.f = 2}};
  fl_op_call call = {.struct_size = sizeof(call), .stream = stream, .kernel_data = kernel.data, .inputs = inputs,
                     .outputs = &output, .attrs = &alpha, .num_inputs = 2, .num_outputs = 1, .num_attrs = 1};
  CHECK(kernel.fn(&call) == FL_STATUS_OK);
  float result[4];
  CHECK(a->copy_d2h(stream, result, y, sizeof(result)) == FL_STATUS_OK);
  CHECK(a->stream_synchronize(stream) == FL_STATUS_OK);
  for (int i = 0; i < 4; ++i) CHECK(result[i] == 3.0f * (float)(i + 1));
  inputs[0].memory.address = (char*)x.address + 2;
  CHECK(kernel.fn(&call) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(strcmp(a->last_error()->vendor_name, "NG_ERROR_MISALIGNED") == 0);
}

static void test_zero_division(fl_stream stream, fl_memory zeros) {
  fl_kernel kernel = {.struct_size = sizeof(kernel)};
  if (a->kernel_find(0, "div_floor", kLong, kLong, &kernel) != FL_STATUS_OK) return;
  CHECK(a->fill(stream, zeros, 0, 64) == FL_STATUS_OK);
  fl_tensor inputs[2] = {vector(zeros, kLong), vector(zeros, kLong)}, output = vector(zeros, kLong);
  fl_op_call call = {.struct_size = sizeof(call), .stream = stream, .kernel_data = kernel.data, .inputs = inputs,
                     .outputs = &output, .num_inputs = 2, .num_outputs = 1};
  CHECK(kernel.fn(&call) == FL_STATUS_OK);
  CHECK(a->stream_synchronize(stream) == FL_STATUS_INVALID_ARGUMENT);
  CHECK(strcmp(a->last_error()->message, "ZeroDivisionError") == 0);
}

static void test_events(fl_stream stream) {
  fl_event start, end;
  CHECK(a->event_create(0, FL_EVENT_TIMING, &start) == FL_STATUS_OK);
  CHECK(a->event_create(0, FL_EVENT_TIMING, &end) == FL_STATUS_OK);
  CHECK(a->event_query(start) == FL_STATUS_OK);
  CHECK(a->event_record(start, stream) == FL_STATUS_OK && a->event_record(end, stream) == FL_STATUS_OK);
  CHECK(a->stream_wait_event(stream, start) == FL_STATUS_OK && a->event_synchronize(end) == FL_STATUS_OK);
  double ms = -1;
  CHECK(a->event_elapsed(start, end, &ms) == FL_STATUS_OK && ms >= 0);
  CHECK(a->event_destroy(start) == FL_STATUS_OK && a->event_destroy(end) == FL_STATUS_OK);
}

int main(int argc, char** argv) {
  void* library = argc > 1 ? dlopen(argv[1], RTLD_LOCAL | RTLD_NOW) : NULL;
  if (library == NULL) {
    fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "give the adapter's path");
    return 1;
  }
  fl_get_adapter_fn get_adapter;
  *(void**)&get_adapter = dlsym(library, FL_ENTRY_SYMBOL);
  CHECK(get_adapter != NULL);
  a = get_adapter();
  CHECK(a->struct_size == sizeof(fl_adapter) && a->abi_major == FL_ABI_MAJOR && strcmp(a->name, "ninguang") == 0);
  test_devices();
  fl_stream stream;
  fl_memory x, y;
  const float values[4] = {1, 2, 3, 4};
  CHECK(a->stream_create(0, 0, &stream) == FL_STATUS_OK);
  CHECK(a->memory_alloc(0, 64, &x) == FL_STATUS_OK && a->memory_alloc(0, 64, &y) == FL_STATUS_OK);
  CHECK(a->copy_h2d(stream, x, values, sizeof(values)) == FL_STATUS_OK);
  test_kernels(stream, x, y);
  test_zero_division(stream, y);
  test_events(stream);
  CHECK(a->memory_alloc(0, (uint64_t)1 << 60, &y) == FL_STATUS_OUT_OF_MEMORY);
  CHECK(a->memory_free(0, x) == FL_STATUS_OK && a->stream_destroy(stream) == FL_STATUS_OK);
  CHECK(a->device_synchronize(0) == FL_STATUS_OK);
  printf("the adapter works\n");
  return 0;
}
