/* A small adapter over host memory. Each test compiles it with its own -D and so gets one that is right, old, new or
 * broken in one way. Without any it is complete and correct.
 */
#define _GNU_SOURCE
#include "torch_fl/adapter.h"
#include "torch_fl/ext_virtual_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef ABSENT_DEPENDENCY
extern int absent_dependency(void);
int uses_absent_dependency(void) { return absent_dependency(); }
#endif

static const fl_error* last_error(void) {
  static const fl_error error = {sizeof(fl_error), 17, "TINY_NO_DRIVER", "install tiny-driver 2.0"};
  return &error;
}
static fl_status device_count(int32_t* out) {
  *out = 1;
#ifdef UNAVAILABLE
  return FL_STATUS_UNAVAILABLE;
#endif
#ifdef NO_DEVICES
  *out = 0;
#endif
  return FL_STATUS_OK;
}
static fl_status device_properties(int32_t device, fl_device_properties* out) {
  (void)device;
#ifdef NEWER_PROPERTIES
  /* A later minor version appended fields and writes them. */
  memset(out, 0xff, sizeof(*out) + 64);
#endif
  out->struct_size = sizeof(*out);
#ifdef NEWER_PROPERTIES
  out->struct_size = sizeof(*out) + 64;
#endif
#ifdef EMPTY_PROPERTIES
  out->struct_size = 0;
#endif
#ifdef SHORT_PROPERTIES
  out->struct_size = offsetof(fl_device_properties, alignment);
#endif
  out->capabilities = FL_CAP_POINTERS | FL_CAP_IN_PLACE;
  out->uuid = NULL;
  out->name = NULL;
  out->arch = NULL;
  out->total_memory = 64u << 20;
  out->alignment = 64;
  out->multi_processor_count = 1;
  return FL_STATUS_OK;
}
static fl_status memory_info(int32_t device, uint64_t* out_free, uint64_t* out_total) {
  (void)device;
  *out_free = *out_total = 64u << 20;
  return FL_STATUS_OK;
}
static fl_status memory_alloc(int32_t device, uint64_t bytes, fl_memory* out) {
  (void)device;
#ifdef NULL_MEMORY
  (void)bytes;
  memset(out, 0, sizeof(*out));
  return FL_STATUS_OK;
#else
  memset(out, 0, sizeof(*out));
  return posix_memalign(&out->address, 64, bytes) == 0 ? FL_STATUS_OK : FL_STATUS_OUT_OF_MEMORY;
#endif
}
static fl_status memory_free(int32_t device, fl_memory memory) {
  (void)device;
  free(memory.address);
  return FL_STATUS_OK;
}
static fl_status copy_h2d(fl_stream s, fl_memory dst, const void* src, uint64_t n) {
  (void)s;
  memcpy(dst.address, src, n);
  return FL_STATUS_OK;
}
static fl_status copy_d2h(fl_stream s, void* dst, fl_memory src, uint64_t n) {
  (void)s;
  memcpy(dst, src.address, n);
  return FL_STATUS_OK;
}
static fl_status copy_d2d(fl_stream s, fl_memory dst, fl_memory src, uint64_t n) {
  (void)s;
  memmove(dst.address, src.address, n);
  return FL_STATUS_OK;
}
static fl_status fill(fl_stream s, fl_memory dst, uint8_t value, uint64_t n) {
  (void)s;
  memset(dst.address, value, n);
  return FL_STATUS_OK;
}
static fl_status stream_create(int32_t device, int32_t priority, fl_stream* out) {
  (void)device;
  (void)priority;
  *out = (fl_stream)malloc(1);
  return FL_STATUS_OK;
}
static fl_status device_synchronize(int32_t device) {
  (void)device;
  return FL_STATUS_OK;
}
static fl_status launch(const fl_op_call* call) {
  (void)call;
  return FL_STATUS_OK;
}
static fl_status kernel_find(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* kernel) {
  (void)device;
  (void)uniop;
  (void)in;
  (void)out;
#ifdef NEWER_KERNEL
  memset(kernel, 0, sizeof(*kernel) + 32);
  kernel->struct_size = sizeof(*kernel) + 32;
#else
  kernel->struct_size = sizeof(*kernel);
#endif
#ifdef EMPTY_KERNEL
  kernel->struct_size = 0;
#endif
#ifdef KERNEL_WITHOUT_FUNCTION
  kernel->fn = NULL;
#else
  kernel->fn = launch;
#endif
  return FL_STATUS_OK;
}
#ifdef EVENTS_HALF
static fl_status event_create(int32_t device, uint32_t flags, fl_event* out) {
  (void)device;
  (void)flags;
  *out = (fl_event)malloc(1);
  return FL_STATUS_OK;
}
#endif

#ifndef STRUCT_SIZE
#define STRUCT_SIZE sizeof(fl_adapter)
#endif
#ifndef MAJOR
#define MAJOR FL_ABI_MAJOR
#endif
#ifndef MINOR
#define MINOR FL_ABI_MINOR
#endif
#ifndef NAME
#define NAME "tiny"
#endif

#ifdef RANGES
#ifndef RANGES_SIZE
#define RANGES_SIZE sizeof(fl_virtual_memory)
#endif
#ifndef RANGES_PAGE
#define RANGES_PAGE 4096
#endif
static fl_status granularity(int32_t device, uint64_t* out) {
  (void)device;
  *out = RANGES_PAGE;
#ifdef RANGES_UNAVAILABLE
  return FL_STATUS_UNAVAILABLE;
#endif
  return FL_STATUS_OK;
}
static fl_status range_reserve(int32_t device, uint64_t bytes, void** out) {
  (void)device;
  return posix_memalign(out, 2u << 20, bytes) == 0 ? FL_STATUS_OK : FL_STATUS_OUT_OF_MEMORY;
}
static fl_status range_change(int32_t device, void* address, uint64_t bytes) {
  (void)device;
  (void)address;
  (void)bytes;
  return FL_STATUS_OK;
}
static const fl_virtual_memory ranges = {
    .head = {RANGES_SIZE, FL_EXTENSION_VIRTUAL_MEMORY, NULL},
    .granularity = granularity,
    .range_reserve = range_reserve,
    .range_free = range_change,
    .range_map = range_change,
#ifndef WITHOUT_RANGE_UNMAP
    .range_unmap = range_change,
#endif
};
static const fl_extension first = {sizeof(fl_extension), 12345, &ranges.head}; /* of a later version */
#endif

struct newer_adapter { /* what a later minor version may look like */
  fl_adapter known;
  void* appended[8];
};

static const struct newer_adapter table = {
    .known =
        {
            .struct_size = STRUCT_SIZE,
            .abi_major = MAJOR,
            .abi_minor = MINOR,
#ifdef RANGES
            .extensions = &first,
#endif
            .name = NAME,
            .vendor = "Tiny",
            .version = "1",
            .last_error = last_error,
            .device_count = device_count,
            .device_properties = device_properties,
            .memory_info = memory_info,
            .device_synchronize = device_synchronize,
            .memory_alloc = memory_alloc,
            .memory_free = memory_free,
            .copy_h2d = copy_h2d,
            .copy_d2h = copy_d2h,
#ifndef WITHOUT_COPY_D2D
            .copy_d2d = copy_d2d,
#endif
            .fill = fill,
            .stream_create = stream_create,
            .kernel_find = kernel_find,
#ifdef EVENTS_HALF
            .event_create = event_create,
#endif
        },
    .appended = {(void*)1, (void*)1, (void*)1, (void*)1, (void*)1, (void*)1, (void*)1, (void*)1},
};

#ifdef NULL_TABLE
FL_EXPORT const fl_adapter* fl_get_adapter(void) { return NULL; }
#elif defined(FENCED)
/* The table's last byte is the last of a page, and the next page cannot be read: looking past struct_size crashes. */
FL_EXPORT const fl_adapter* fl_get_adapter(void) {
  char* pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(pages + 4096, 4096, PROT_NONE);
  char* at = pages + 4096 - STRUCT_SIZE;
  memcpy(at, &table, STRUCT_SIZE);
  return (const fl_adapter*)at;
}
#elif !defined(NO_SYMBOL)
FL_EXPORT const fl_adapter* fl_get_adapter(void) { return &table.known; }
#endif
