/* Any adapter behind a notebook: each kernel call of the host is written down, so that a test can compare it with what a
 * profile declares. All else goes to the adapter itself (-DINNER="path"; -DCHIP=name, this one's name).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torch_fl/adapter.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

typedef struct {
  char uniop[40];
  int32_t in_code, in_bits, out_code, out_bits; /* of kernel_find */
  int64_t calls;
  int32_t max_ndim;
  uint32_t least_alignment; /* of addresses, as they are */
  uint64_t max_numel;
  int32_t strided, broadcast, immediate; /* how many operands were */
} record;

typedef struct {
  fl_kernel inner;
  int row;
} recorded_kernel;

enum { kMaxRecords = 4096 };
static record records[kMaxRecords];
static int num_records;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t event_calls, stream_calls;
static fl_adapter table;
static const fl_adapter* inner;

FL_EXPORT int recorder_records(const record** out) {
  *out = records;
  return num_records;
}
FL_EXPORT int64_t recorder_event_calls(void) { return event_calls; }
FL_EXPORT int64_t recorder_stream_calls(void) { return stream_calls; }

static void note(record* r, const fl_tensor* t) {
  if (t->flags & FL_TENSOR_ABSENT) return;
  if (t->flags & FL_TENSOR_IMMEDIATE) {
    ++r->immediate;
    return;
  }
  uint64_t numel = 1;
  int strided = 0, broadcast = 0;
  for (int d = t->ndim - 1; d >= 0; --d) {
    if (t->sizes[d] > 1 && t->strides[d] == 0) broadcast = 1;
    if (t->sizes[d] != 1 && t->strides[d] != (int64_t)numel) strided = 1;
    numel *= (uint64_t)t->sizes[d];
  }
  r->strided += strided;
  r->broadcast += broadcast;
  const uintptr_t address = (uintptr_t)t->memory.address | 4096u;
  const uint32_t alignment = (uint32_t)(address & (~address + 1));
  if (alignment < r->least_alignment) r->least_alignment = alignment;
  if (t->ndim > r->max_ndim) r->max_ndim = t->ndim;
  if (numel > r->max_numel) r->max_numel = numel;
}

static fl_status recorded(const fl_op_call* call) {
  const recorded_kernel* kernel = call->kernel_data;
  pthread_mutex_lock(&mutex);
  record* r = &records[kernel->row];
  ++r->calls;
  for (int i = 0; i < call->num_inputs; ++i) note(r, &call->inputs[i]);
  for (int i = 0; i < call->num_outputs; ++i) note(r, &call->outputs[i]);
  pthread_mutex_unlock(&mutex);
  fl_op_call passed = *call;
  passed.kernel_data = kernel->inner.data;
  return kernel->inner.fn(&passed);
}

static fl_status kernel_find(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* found) {
  const fl_status status = inner->kernel_find(device, uniop, in, out, found);
  if (status != FL_STATUS_OK) return status;
  recorded_kernel* kernel = malloc(sizeof(*kernel));
  kernel->inner = *found;
  pthread_mutex_lock(&mutex);
  kernel->row = num_records < kMaxRecords ? num_records++ : kMaxRecords - 1;
  record* r = &records[kernel->row];
  snprintf(r->uniop, sizeof(r->uniop), "%s", uniop);
  r->in_code = in.code, r->in_bits = in.bits, r->out_code = out.code, r->out_bits = out.bits;
  r->least_alignment = 4096;
  pthread_mutex_unlock(&mutex);
  found->fn = recorded;
  found->data = kernel;
  return FL_STATUS_OK;
}

static fl_status event_create(int32_t device, uint32_t flags, fl_event* out) {
  __atomic_add_fetch(&event_calls, 1, __ATOMIC_RELAXED);
  return inner->event_create(device, flags, out);
}
static fl_status event_record(fl_event event, fl_stream stream) {
  __atomic_add_fetch(&event_calls, 1, __ATOMIC_RELAXED);
  return inner->event_record(event, stream);
}
static fl_status stream_wait_event(fl_stream stream, fl_event event) {
  __atomic_add_fetch(&event_calls, 1, __ATOMIC_RELAXED);
  return inner->stream_wait_event(stream, event);
}
static fl_status stream_query(fl_stream stream) {
  __atomic_add_fetch(&stream_calls, 1, __ATOMIC_RELAXED);
  return inner->stream_query(stream);
}
static fl_status stream_synchronize(fl_stream stream) {
  __atomic_add_fetch(&stream_calls, 1, __ATOMIC_RELAXED);
  return inner->stream_synchronize(stream);
}

FL_EXPORT const fl_adapter* fl_get_adapter(void) {
  void* library = dlopen(INNER, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return NULL;
  const fl_adapter* (*get)(void) = (const fl_adapter* (*)(void))dlsym(library, "fl_get_adapter");
  inner = get();
  memcpy(&table, inner, inner->struct_size < sizeof(table) ? inner->struct_size : sizeof(table));
  table.struct_size = sizeof(table);
  table.name = TEXT(CHIP);
  table.kernel_find = kernel_find;
  table.event_create = event_create;
  table.event_record = event_record;
  table.stream_wait_event = stream_wait_event;
  table.stream_query = stream_query;
  table.stream_synchronize = stream_synchronize;
  return &table;
}
