/* The adapter of the reference chip: Torch-FL's table (adapter.h) in terms of the vendor's SDK (ng.h).
 * This is all that a vendor writes; the number of its lines is a published figure. Kernels are found by the UniOp's
 * name in the vendor's library, so this file lists none. Counterparts: ../sdk, ../profile.json.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ng.h"
#include "ng_virtual_memory.h"
#include "torch_fl/adapter.h"
#include "torch_fl/ext_virtual_memory.h"

/* ---------------------------------------------------------------- errors */

static _Thread_local ngResult last_result;

static const fl_error* last_error(void) {
  static _Thread_local fl_error error;
  error.struct_size = sizeof(error);
  error.vendor_code = last_result;
  error.vendor_name = ngErrorName(last_result);
  /* PyTorch's own words for it. */
  error.message = last_result == NG_ERROR_DIVISION_BY_ZERO ? "ZeroDivisionError" : ngGetLastErrorString();
  return &error;
}

static fl_status failed(ngResult result) {
  last_result = result;
  switch (result) {
    case NG_SUCCESS: return FL_STATUS_OK;
    case NG_ERROR_INVALID_VALUE: return FL_STATUS_INVALID_ARGUMENT;
    case NG_ERROR_OUT_OF_MEMORY: return FL_STATUS_OUT_OF_MEMORY;
    case NG_ERROR_NOT_READY: return FL_STATUS_NOT_READY;
    case NG_ERROR_MISALIGNED: return FL_STATUS_INVALID_ARGUMENT;
    case NG_ERROR_ILLEGAL_ADDRESS: return FL_STATUS_INVALID_ARGUMENT;
    case NG_ERROR_NOT_SUPPORTED: return FL_STATUS_UNIMPLEMENTED;
    case NG_ERROR_LAUNCH_FAILED: return FL_STATUS_ABORTED;
    case NG_ERROR_INDEX_OUT_OF_RANGE: return FL_STATUS_OUT_OF_RANGE;
    case NG_ERROR_DEVICE_LOST: return FL_STATUS_DEVICE_LOST;
    case NG_ERROR_NO_DEVICE: return FL_STATUS_UNAVAILABLE;
    case NG_ERROR_DIVISION_BY_ZERO: return FL_STATUS_INVALID_ARGUMENT;
    case NG_ERROR_TIMEOUT: return FL_STATUS_TIMEOUT;
    case NG_ERROR_INTERNAL: return FL_STATUS_INTERNAL;
  }
  return FL_STATUS_VENDOR_FIRST + (fl_status)result;
}

static inline fl_status status(ngResult result) { return result == NG_SUCCESS ? FL_STATUS_OK : failed(result); }

/* --------------------------------------------------------------- devices */

static fl_status device_count(int32_t* out_count) { return status(ngDeviceCount(out_count)); }

/* The strings of a device must live as long as the process, so each device's description is kept. */
static fl_status device_properties(int32_t device, fl_device_properties* out) {
  enum { kMaxDevices = 64 };
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static ngDeviceInfo kept[kMaxDevices];
  ngDeviceInfo info;
  ngResult result = ngDeviceGetInfo(device, &info);
  if (result != NG_SUCCESS) return failed(result);
  if (device >= kMaxDevices) return failed(NG_ERROR_INVALID_VALUE);
  pthread_mutex_lock(&mutex);
  if (kept[device].total_memory == 0) kept[device] = info;
  pthread_mutex_unlock(&mutex);
  out->struct_size = sizeof(*out);
  out->capabilities =
      FL_CAP_POINTERS | FL_CAP_IN_PLACE | FL_CAP_PEER | (info.unified ? (uint32_t)FL_CAP_HOST_VISIBLE : 0u);
  out->uuid = kept[device].uuid;
  out->name = kept[device].name;
  out->arch = kept[device].arch;
  out->total_memory = info.total_memory;
  out->alignment = info.alignment;
  out->multi_processor_count = info.cores;
  return FL_STATUS_OK;
}

static fl_status memory_info(int32_t device, uint64_t* out_free, uint64_t* out_total) {
  return status(ngDeviceMemory(device, out_free, out_total));
}

static fl_status device_synchronize(int32_t device) { return status(ngDeviceSynchronize(device)); }

/* ---------------------------------------------------------------- memory */

static fl_status memory_alloc(int32_t device, uint64_t bytes, fl_memory* out_memory) {
  memset(out_memory, 0, sizeof(*out_memory));
  return status(ngMalloc(device, bytes, &out_memory->address));
}

static fl_status memory_free(int32_t device, fl_memory memory) { return status(ngFree(device, memory.address)); }

static fl_status host_alloc(int32_t device, uint64_t bytes, void** out_address) {
  (void)device; /* pinned memory serves all devices */
  return status(ngMallocHost(bytes, out_address));
}

static fl_status host_free(int32_t device, void* address) {
  (void)device;
  return status(ngFreeHost(address));
}

static fl_status copy_h2d(fl_stream stream, fl_memory dst, const void* src, uint64_t bytes) {
  return status(ngMemcpyHtoDAsync((ngStream)stream, dst.address, src, bytes));
}

static fl_status copy_d2h(fl_stream stream, void* dst, fl_memory src, uint64_t bytes) {
  return status(ngMemcpyDtoHAsync((ngStream)stream, dst, src.address, bytes));
}

static fl_status copy_d2d(fl_stream stream, fl_memory dst, fl_memory src, uint64_t bytes) {
  return status(ngMemcpyDtoDAsync((ngStream)stream, dst.address, src.address, bytes));
}

static fl_status copy_peer(fl_stream stream, int32_t dst_device, fl_memory dst, int32_t src_device, fl_memory src,
                           uint64_t bytes) {
  return status(ngMemcpyPeerAsync((ngStream)stream, dst_device, dst.address, src_device, src.address, bytes));
}

static fl_status fill(fl_stream stream, fl_memory dst, uint8_t value, uint64_t bytes) {
  return status(ngMemsetAsync((ngStream)stream, dst.address, value, bytes));
}

/* -------------------------------------------------------- virtual memory */

static fl_status granularity(int32_t device, uint64_t* out_bytes) {
  return status(ngMemGetGranularity(device, out_bytes));
}

static fl_status range_reserve(int32_t device, uint64_t bytes, void** out_address) {
  return status(ngMemAddressReserve(device, bytes, out_address));
}

static fl_status range_free(int32_t device, void* address, uint64_t bytes) {
  return status(ngMemAddressFree(device, address, bytes));
}

static fl_status range_map(int32_t device, void* address, uint64_t bytes) {
  return status(ngMemMap(device, address, bytes));
}

static fl_status range_unmap(int32_t device, void* address, uint64_t bytes) {
  return status(ngMemUnmap(device, address, bytes));
}

static const fl_virtual_memory virtual_memory = {
    .head = {sizeof(fl_virtual_memory), FL_EXTENSION_VIRTUAL_MEMORY, NULL},
    .granularity = granularity,
    .range_reserve = range_reserve,
    .range_free = range_free,
    .range_map = range_map,
    .range_unmap = range_unmap,
};

/* ----------------------------------------------------- streams and events */

static fl_status stream_create(int32_t device, int32_t priority, fl_stream* out_stream) {
  return status(ngStreamCreate(device, priority, (ngStream*)out_stream));
}

static fl_status stream_destroy(fl_stream stream) { return status(ngStreamDestroy((ngStream)stream)); }

static fl_status stream_query(fl_stream stream) { return status(ngStreamQuery((ngStream)stream)); }

static fl_status stream_synchronize(fl_stream stream) { return status(ngStreamSynchronize((ngStream)stream)); }

static fl_status stream_wait_event(fl_stream stream, fl_event event) {
  return status(ngStreamWaitEvent((ngStream)stream, (ngEvent)event));
}

static fl_status event_create(int32_t device, uint32_t flags, fl_event* out_event) {
  return status(ngEventCreate(device, (flags & FL_EVENT_TIMING) != 0, (ngEvent*)out_event));
}

static fl_status event_destroy(fl_event event) { return status(ngEventDestroy((ngEvent)event)); }

static fl_status event_record(fl_event event, fl_stream stream) {
  return status(ngEventRecord((ngEvent)event, (ngStream)stream));
}

static fl_status event_query(fl_event event) { return status(ngEventQuery((ngEvent)event)); }

static fl_status event_synchronize(fl_event event) { return status(ngEventSynchronize((ngEvent)event)); }

static fl_status event_elapsed(fl_event start, fl_event end, double* out_ms) {
  return status(ngEventElapsedTime((ngEvent)start, (ngEvent)end, out_ms));
}

/* --------------------------------------------------------------- kernels */

/* NG_DATA_TYPE_COUNT for a type that the chip does not have. */
static ngDataType data_type(fl_dtype dtype) {
  enum { kNone = NG_DATA_TYPE_COUNT };
  static const uint8_t table[7][5] = {
      /*              8 bits    16           32           64            128 */
      [FL_INT] =     {NG_INT8,  NG_INT16,    NG_INT32,    NG_INT64,     kNone},
      [FL_UINT] =    {NG_UINT8, kNone,       kNone,       kNone,        kNone},
      [FL_FLOAT] =   {kNone,    NG_FLOAT16,  NG_FLOAT32,  NG_FLOAT64,   kNone},
      [3] =          {kNone,    kNone,       kNone,       kNone,        kNone},
      [FL_BFLOAT] =  {kNone,    NG_BFLOAT16, kNone,       kNone,        kNone},
      [FL_COMPLEX] = {kNone,    kNone,       kNone,       NG_COMPLEX64, NG_COMPLEX128},
      [FL_BOOL] =    {NG_BOOL,  kNone,       kNone,       kNone,        kNone},
  };
  const int column = dtype.bits >= 8 ? __builtin_ctz(dtype.bits) - 3 : -1;
  if (dtype.code >= 7 || column < 0 || dtype.bits != 8 << column) return NG_DATA_TYPE_COUNT;
  return (ngDataType)table[dtype.code][column];
}

static void convert(const fl_tensor* from, int32_t count, ngTensor* to) {
  for (int32_t i = 0; i < count; ++i, ++from, ++to) {
    to->data = from->memory.address;
    to->sizes = from->sizes;
    to->strides = from->strides;
    to->ndim = from->ndim;
    to->type = (uint8_t)data_type(from->dtype);
    to->absent = (from->flags & FL_TENSOR_ABSENT) != 0;
    to->immediate = (from->flags & FL_TENSOR_IMMEDIATE) != 0;
    to->reserved = 0;
    if (to->immediate) memcpy(to->value, from->immediate, sizeof(to->value));
  }
}

_Static_assert(sizeof(fl_scalar) == sizeof(ngScalar) && FL_SCALAR_COMPLEX == 4, "attributes are passed as they are");

static fl_status launch(const fl_op_call* call) {
  enum { kOnStack = 8 };
  ngTensor on_stack[kOnStack];
  const int32_t count = call->num_inputs + call->num_outputs;
  ngTensor* tensors = count <= kOnStack ? on_stack : malloc((size_t)count * sizeof(ngTensor));
  if (tensors == NULL) return failed(NG_ERROR_OUT_OF_MEMORY);
  convert(call->inputs, call->num_inputs, tensors);
  convert(call->outputs, call->num_outputs, tensors + call->num_inputs);
  const ngResult result =
      ngOperatorLaunch((ngOperator)call->kernel_data, (ngStream)call->stream, tensors, call->num_inputs,
                       tensors + call->num_inputs, call->num_outputs, (const ngScalar*)call->attrs, call->num_attrs);
  if (tensors != on_stack) free(tensors);
  return status(result);
}

static fl_status kernel_find(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* out_kernel) {
  ngOperator op = NULL;
  const ngResult result = ngOperatorFind(device, uniop, data_type(in), data_type(out), &op);
  if (result != NG_SUCCESS) return failed(result);
  memset(out_kernel, 0, sizeof(*out_kernel)); /* no constraints: any strides, any size */
  out_kernel->struct_size = sizeof(*out_kernel);
  out_kernel->fn = launch;
  out_kernel->data = op;
  return FL_STATUS_OK;
}

/* ----------------------------------------------------------------- table */

const fl_adapter* fl_get_adapter(void) {
  static const fl_adapter adapter = {
      .struct_size = sizeof(fl_adapter),
      .abi_major = FL_ABI_MAJOR,
      .abi_minor = FL_ABI_MINOR,
      .extensions = &virtual_memory.head,
      .name = "ninguang",
      .vendor = "FlagOS",
      .version = "1.0.0",
      .last_error = last_error,
      .device_count = device_count,
      .device_properties = device_properties,
      .memory_info = memory_info,
      .device_synchronize = device_synchronize,
      .memory_alloc = memory_alloc,
      .memory_free = memory_free,
      .host_alloc = host_alloc,
      .host_free = host_free,
      .copy_h2d = copy_h2d,
      .copy_d2h = copy_d2h,
      .copy_d2d = copy_d2d,
      .copy_peer = copy_peer,
      .fill = fill,
      .stream_create = stream_create,
      .stream_destroy = stream_destroy,
      .stream_query = stream_query,
      .stream_synchronize = stream_synchronize,
      .stream_wait_event = stream_wait_event,
      .event_create = event_create,
      .event_destroy = event_destroy,
      .event_record = event_record,
      .event_query = event_query,
      .event_synchronize = event_synchronize,
      .event_elapsed = event_elapsed,
      .kernel_find = kernel_find,
  };
  return &adapter;
}
