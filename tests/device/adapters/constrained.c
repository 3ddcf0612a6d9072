/* A chip of host memory whose kernels take little: dense operands only, scalars in memory, at most 2 dims, 64-byte
 * addresses. Its streams finish each call before they return. Every operand a kernel gets is checked against what the
 * kernel declared; `constrained_violations()` counts broken promises of the host. Variants:
 *   -DOPAQUE        memory has handles and no addresses
 *   -DSTRIDED_COPY  the copy kernel takes any strides, so that the host can make operands dense on the chip
 *   -DMAX_NUMEL=n   kernels take at most n elements
 *   -DDECLINE=n     mul declines calls of n elements
 *   -DTWO           two devices, which say that they are peers and then do not reach each other
 *   -DCHIP=name     the adapter's name
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "torch_fl/adapter.h"

#ifndef MAX_NUMEL
#define MAX_NUMEL 0
#endif
#ifndef DECLINE
#define DECLINE -1
#endif
#ifndef CHIP
#define CHIP constrained
#endif
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

enum { kAlignment = 64, kMaxDims = 2 };

struct fl_stream_s { int32_t device; };
struct fl_event_s { int32_t device; };

static int violations, launches;
FL_EXPORT int constrained_violations(void) { return violations; }
FL_EXPORT int constrained_launches(void) { return launches; }

static _Thread_local fl_error error = {.struct_size = sizeof(fl_error), .vendor_name = "CONSTRAINED_ERROR"};
static const fl_error* last_error(void) { return &error; }
static fl_status fail(fl_status status, const char* message) {
  error.vendor_code = status;
  error.message = message;
  return status;
}

static fl_status device_count(int32_t* out) {
#ifdef TWO
  *out = 2;
#else
  *out = 1;
#endif
  return FL_STATUS_OK;
}

static fl_status device_properties(int32_t device, fl_device_properties* out) {
  static const char* const kUuids[] = {TEXT(CHIP) "-0", TEXT(CHIP) "-1"};
  *out = (fl_device_properties){.struct_size = sizeof(*out), .uuid = kUuids[device],
                                .name = "Constrained", .arch = "host", .total_memory = 256u << 20,
                                .alignment = kAlignment, .multi_processor_count = 1};
#ifdef OPAQUE
  out->capabilities = FL_CAP_IN_PLACE;
#else
  out->capabilities = FL_CAP_IN_PLACE | FL_CAP_POINTERS;
#endif
#ifdef TWO
  out->capabilities |= FL_CAP_PEER;
#endif
  return FL_STATUS_OK;
}

static fl_status memory_info(int32_t device, uint64_t* out_free, uint64_t* out_total) {
  (void)device;
  *out_free = *out_total = 256u << 20;
  return FL_STATUS_OK;
}
static fl_status device_synchronize(int32_t device) { (void)device; return FL_STATUS_OK; }

static fl_status memory_alloc(int32_t device, uint64_t bytes, fl_memory* out) {
  (void)device;
  void* data = NULL;
  memset(out, 0, sizeof(*out));
  if (posix_memalign(&data, 4096, bytes) != 0) return fail(FL_STATUS_OUT_OF_MEMORY, "the host has no memory");
#ifdef OPAQUE
  out->handle = data;
#else
  out->address = data;
#endif
  return FL_STATUS_OK;
}

static char* place(fl_memory memory) {
#ifdef OPAQUE
  return (char*)memory.handle + memory.offset;
#else
  return (char*)memory.address;
#endif
}

static fl_status memory_free(int32_t device, fl_memory memory) {
  (void)device;
  free(place(memory));
  return FL_STATUS_OK;
}

static fl_status copy_h2d(fl_stream stream, fl_memory dst, const void* src, uint64_t bytes) {
  (void)stream;
  memcpy(place(dst), src, bytes);
  return FL_STATUS_OK;
}
static fl_status copy_d2h(fl_stream stream, void* dst, fl_memory src, uint64_t bytes) {
  (void)stream;
  memcpy(dst, place(src), bytes);
  return FL_STATUS_OK;
}
static fl_status copy_d2d(fl_stream stream, fl_memory dst, fl_memory src, uint64_t bytes) {
  (void)stream;
  memmove(place(dst), place(src), bytes);
  return FL_STATUS_OK;
}
static int peer_copies;
FL_EXPORT int constrained_peer_copies(void) { return peer_copies; }
static fl_status copy_peer(fl_stream stream, int32_t to, fl_memory dst, int32_t from, fl_memory src, uint64_t bytes) {
  (void)stream, (void)to, (void)dst, (void)from, (void)src, (void)bytes;
  ++peer_copies;
  return fail(FL_STATUS_UNIMPLEMENTED, "no link");
}
static fl_status fill(fl_stream stream, fl_memory dst, uint8_t value, uint64_t bytes) {
  (void)stream;
  memset(place(dst), value, bytes);
  return FL_STATUS_OK;
}

static fl_status stream_create(int32_t device, int32_t priority, fl_stream* out) {
  (void)priority;
  *out = malloc(sizeof(**out));
  (*out)->device = device;
  return FL_STATUS_OK;
}
static fl_status stream_destroy(fl_stream stream) { free(stream); return FL_STATUS_OK; }
static fl_status stream_query(fl_stream stream) { (void)stream; return FL_STATUS_OK; }
static fl_status stream_synchronize(fl_stream stream) { (void)stream; return FL_STATUS_OK; }

/* ----------------------------------------------------------------- kernels */

static int64_t numel(const fl_tensor* t) {
  int64_t n = 1;
  for (int d = 0; d < t->ndim; ++d) n *= t->sizes[d];
  return n;
}

static int promise_kept(const fl_tensor* t) {
  if (t->flags & FL_TENSOR_IMMEDIATE) return 0;
  if (t->ndim > kMaxDims || (uintptr_t)place(t->memory) % kAlignment != 0) return 0;
  if (MAX_NUMEL != 0 && numel(t) > MAX_NUMEL) return 0;
  int64_t step = 1;
  for (int d = t->ndim - 1; d >= 0; --d) {
    if (t->sizes[d] != 1 && t->strides[d] != step) return 0;
    step *= t->sizes[d];
  }
  return 1;
}

static void check(const fl_op_call* call) {
  ++launches;
  for (int i = 0; i < call->num_inputs; ++i) violations += !promise_kept(&call->inputs[i]);
  for (int i = 0; i < call->num_outputs; ++i) violations += !promise_kept(&call->outputs[i]);
  for (int i = 0; i < call->num_inputs; ++i) /* per element: one shape */
    if (call->num_outputs == 1 && numel(&call->inputs[i]) != numel(&call->outputs[0])) ++violations;
}

static double attr(const fl_op_call* call, int i) {
  const fl_scalar* s = &call->attrs[i];
  return s->tag == FL_SCALAR_FLOAT ? s->v.f : (double)s->v.i;
}

#define BINARY(name, expression)                                                    \
  static fl_status name(const fl_op_call* call) {                                   \
    const float* a = (const float*)place(call->inputs[0].memory);                   \
    const float* b = (const float*)place(call->inputs[1].memory);                   \
    float* out = (float*)place(call->outputs[0].memory);                            \
    const int64_t n = numel(&call->outputs[0]);                                     \
    const float alpha = call->num_attrs > 0 ? (float)attr(call, 0) : 1.0f;          \
    (void)alpha;                                                                    \
    if (n == DECLINE && call->num_attrs == 0) return FL_STATUS_UNIMPLEMENTED;       \
    check(call);                                                                    \
    for (int64_t i = 0; i < n; ++i) out[i] = (expression);                          \
    return FL_STATUS_OK;                                                            \
  }
BINARY(add, a[i] + alpha * b[i])
BINARY(mul, a[i] * b[i])

static fl_status relu(const fl_op_call* call) {
  const float* a = (const float*)place(call->inputs[0].memory);
  float* out = (float*)place(call->outputs[0].memory);
  check(call);
  for (int64_t i = 0; i < numel(&call->outputs[0]); ++i) out[i] = a[i] < 0 ? 0 : a[i];
  return FL_STATUS_OK;
}

static fl_status mm(const fl_op_call* call) {
  const float* a = (const float*)place(call->inputs[0].memory);
  const float* b = (const float*)place(call->inputs[1].memory);
  float* out = (float*)place(call->outputs[0].memory);
  const int64_t n = call->inputs[0].sizes[0], k = call->inputs[0].sizes[1], m = call->inputs[1].sizes[1];
  ++launches;
  for (int i = 0; i < 2; ++i) violations += !promise_kept(&call->inputs[i]);
  violations += !promise_kept(&call->outputs[0]);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += (double)a[i * k + l] * b[l * m + j];
      out[i * m + j] = (float)sum;
    }
  return FL_STATUS_OK;
}

#ifdef STRIDED_COPY
static void copy_dim(char* out, const int64_t* out_strides, const char* in, const int64_t* in_strides, const int64_t* sizes,
                     int ndim, int64_t item) {
  if (ndim == 0) {
    memcpy(out, in, (size_t)item);
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i)
    copy_dim(out + i * out_strides[0] * item, out_strides + 1, in + i * in_strides[0] * item, in_strides + 1, sizes + 1,
             ndim - 1, item);
}
static fl_status copy_any(const fl_op_call* call) {
  const fl_tensor *in = &call->inputs[0], *out = &call->outputs[0];
  copy_dim(place(out->memory), out->strides, place(in->memory), in->strides, out->sizes, out->ndim, 4);
  return FL_STATUS_OK;
}
#else
static fl_status copy_dense(const fl_op_call* call) {
  check(call);
  memcpy(place(call->outputs[0].memory), place(call->inputs[0].memory), (size_t)numel(&call->outputs[0]) * 4);
  return FL_STATUS_OK;
}
#endif

static int is_float32(fl_dtype t) { return t.code == FL_FLOAT && t.bits == 32; }

static fl_status kernel_find(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* kernel) {
  (void)device;
  if (!is_float32(in) || !is_float32(out)) return fail(FL_STATUS_UNIMPLEMENTED, "float32 only");
  *kernel = (fl_kernel){.struct_size = sizeof(*kernel), .flags = FL_KERNEL_CONTIGUOUS | FL_KERNEL_NO_IMMEDIATE,
                        .max_ndim = kMaxDims, .alignment = kAlignment, .max_numel = MAX_NUMEL};
  static const struct { const char* name; fl_kernel_fn fn; } kKernels[] = {
      {"add", add}, {"mul", mul}, {"relu", relu}, {"mm", mm},
#ifndef STRIDED_COPY
      {"copy", copy_dense},
#endif
  };
  for (size_t i = 0; i < sizeof(kKernels) / sizeof(kKernels[0]); ++i)
    if (strcmp(uniop, kKernels[i].name) == 0) {
      kernel->fn = kKernels[i].fn;
      return FL_STATUS_OK;
    }
#ifdef STRIDED_COPY
  if (strcmp(uniop, "copy") == 0) {
    *kernel = (fl_kernel){.struct_size = sizeof(*kernel), .fn = copy_any};
    return FL_STATUS_OK;
  }
#endif
  return fail(FL_STATUS_UNIMPLEMENTED, "no such kernel");
}

FL_EXPORT const fl_adapter* fl_get_adapter(void) {
  static const fl_adapter adapter = {
      .struct_size = sizeof(fl_adapter), .abi_major = FL_ABI_MAJOR, .abi_minor = FL_ABI_MINOR, .name = TEXT(CHIP),
      .vendor = "tests", .version = "1", .last_error = last_error, .device_count = device_count,
      .device_properties = device_properties, .memory_info = memory_info, .device_synchronize = device_synchronize,
      .memory_alloc = memory_alloc, .memory_free = memory_free, .copy_h2d = copy_h2d, .copy_d2h = copy_d2h,
      .copy_d2d = copy_d2d, .copy_peer = copy_peer, .fill = fill, .stream_create = stream_create,
      .stream_destroy = stream_destroy,
      .stream_query = stream_query, .stream_synchronize = stream_synchronize, .kernel_find = kernel_find};
  return &adapter;
}
