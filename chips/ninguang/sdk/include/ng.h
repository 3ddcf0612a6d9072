/* The ninguang SDK: the vendor's own C API of a software AI chip. Knows nothing of PyTorch or Torch-FL.
 *
 * Devices have private memory of fixed size, asynchronous in-order streams, events, a kernel library addressed by
 * operator name, and faults that can be switched on. All calls but those on one stream or event may come from any
 * thread. Work is queued and executed later; its failure is sticky on the stream until the next synchronize or query,
 * which returns it once. NG_ERROR_DEVICE_LOST is sticky for the device for ever.
 *
 * Environment: docs in README.md (NINGUANG_DEVICES, NINGUANG_MEMORY_MB, NINGUANG_UNIFIED, NINGUANG_THREADS,
 * NINGUANG_CHECK_BOUNDS, NINGUANG_FAULT). Read once, at the first call.
 */
#ifndef NG_H_
#define NG_H_
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define NG_API __attribute__((visibility("default")))

typedef enum ngResult {
  NG_SUCCESS = 0,
  NG_ERROR_INVALID_VALUE = 1,
  NG_ERROR_OUT_OF_MEMORY = 2,
  NG_ERROR_NOT_READY = 3,
  NG_ERROR_MISALIGNED = 4,
  NG_ERROR_ILLEGAL_ADDRESS = 5,   /* a place outside every allocation of the device */
  NG_ERROR_NOT_SUPPORTED = 6,     /* no kernel for these types or this shape */
  NG_ERROR_LAUNCH_FAILED = 7,
  NG_ERROR_INDEX_OUT_OF_RANGE = 8,
  NG_ERROR_DEVICE_LOST = 9,
  NG_ERROR_NO_DEVICE = 10,
  NG_ERROR_DIVISION_BY_ZERO = 11,
  NG_ERROR_TIMEOUT = 12,
  NG_ERROR_INTERNAL = 13
} ngResult;

typedef enum ngDataType {
  NG_BOOL = 0, NG_UINT8, NG_INT8, NG_INT16, NG_INT32, NG_INT64,
  NG_FLOAT16, NG_BFLOAT16, NG_FLOAT32, NG_FLOAT64, NG_COMPLEX64, NG_COMPLEX128, NG_DATA_TYPE_COUNT
} ngDataType;

typedef struct ngStream_st* ngStream;
typedef struct ngEvent_st* ngEvent;
typedef struct ngOperator_st* ngOperator; /* never freed */

typedef struct ngDeviceInfo {
  char uuid[40];
  char name[64];
  char arch[32];
  uint64_t total_memory;
  uint32_t alignment;
  uint32_t cores;
  int32_t unified; /* the host may touch device memory */
} ngDeviceInfo;

/* An operand. data is a device address, or NULL with `absent`, or ignored with `immediate`. */
typedef struct ngTensor {
  void* data;
  const int64_t* sizes;
  const int64_t* strides; /* elements */
  int32_t ndim;
  uint8_t type; /* ngDataType */
  uint8_t absent;
  uint8_t immediate;
  uint8_t reserved;
  uint8_t value[16]; /* the immediate */
} ngTensor;

typedef struct ngScalar {
  uint8_t kind; /* 0 none, 1 int, 2 float, 3 bool, 4 complex */
  uint8_t reserved[7];
  union { int64_t i; double f; double c[2]; } v;
} ngScalar;

NG_API const char* ngErrorName(ngResult result);     /* "NG_ERROR_MISALIGNED" */
NG_API const char* ngGetLastErrorString(void);       /* this thread's last failure, with its values */

/* Replaces the armed faults, as NINGUANG_FAULT does at start; see README.md. NULL or "": none. */
NG_API ngResult ngFaultSet(const char* faults);

NG_API ngResult ngDeviceCount(int32_t* count);
NG_API ngResult ngDeviceGetInfo(int32_t device, ngDeviceInfo* info);
NG_API ngResult ngDeviceMemory(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes);
NG_API ngResult ngDeviceSynchronize(int32_t device);

NG_API ngResult ngMalloc(int32_t device, uint64_t bytes, void** address);
NG_API ngResult ngFree(int32_t device, void* address);
NG_API ngResult ngMallocHost(uint64_t bytes, void** address);
NG_API ngResult ngFreeHost(void* address);

NG_API ngResult ngMemcpyHtoDAsync(ngStream stream, void* dst, const void* src, uint64_t bytes);
NG_API ngResult ngMemcpyDtoHAsync(ngStream stream, void* dst, const void* src, uint64_t bytes);
NG_API ngResult ngMemcpyDtoDAsync(ngStream stream, void* dst, const void* src, uint64_t bytes);
NG_API ngResult ngMemcpyPeerAsync(ngStream stream, int32_t dst_device, void* dst, int32_t src_device, const void* src, uint64_t bytes);
NG_API ngResult ngMemsetAsync(ngStream stream, void* dst, uint8_t value, uint64_t bytes);

NG_API ngResult ngStreamCreate(int32_t device, int32_t priority, ngStream* stream);
NG_API ngResult ngStreamDestroy(ngStream stream);
NG_API ngResult ngStreamQuery(ngStream stream);
NG_API ngResult ngStreamSynchronize(ngStream stream);
NG_API ngResult ngStreamWaitEvent(ngStream stream, ngEvent event);

NG_API ngResult ngEventCreate(int32_t device, int32_t timing, ngEvent* event);
NG_API ngResult ngEventDestroy(ngEvent event);
NG_API ngResult ngEventRecord(ngEvent event, ngStream stream);
NG_API ngResult ngEventQuery(ngEvent event);
NG_API ngResult ngEventSynchronize(ngEvent event);
NG_API ngResult ngEventElapsedTime(ngEvent start, ngEvent end, double* milliseconds);

/* NG_ERROR_NOT_SUPPORTED if the library has no such operator for these types. */
NG_API ngResult ngOperatorFind(int32_t device, const char* name, ngDataType in, ngDataType out, ngOperator* op);
/* Copies its arguments and queues. NG_ERROR_NOT_SUPPORTED, at once, if this operator refuses these operands. */
NG_API ngResult ngOperatorLaunch(ngOperator op, ngStream stream, const ngTensor* inputs, int32_t num_inputs,
                                 const ngTensor* outputs, int32_t num_outputs, const ngScalar* attrs, int32_t num_attrs);
#ifdef __cplusplus
}
#endif
#endif /* NG_H_ */
