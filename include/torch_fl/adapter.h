/* The C ABI between Torch-FL and a chip adapter, version 1.0.
 *
 * A vendor builds one shared library that exports one symbol, fl_get_adapter(), which returns a const table of
 * functions. Torch-FL opens it at run time (RTLD_LOCAL | RTLD_NOW, never closed) and knows nothing else of the chip.
 * This file is C11 and C++17, needs only <stddef.h> and <stdint.h>, and knows nothing of PyTorch.
 *
 * Rules
 *  - Everything is append-only. Structs that may grow start with `struct_size`; the side that fills a struct writes
 *    the size it knows, the side that reads it looks at no byte past that size.
 *  - abi_major must be equal on both sides; both use the smaller abi_minor.
 *  - A function returns fl_status: 0 is success. The text and the vendor's own code come from last_error(), valid on
 *    the same thread until its next call. No exception and no longjmp may cross this border.
 *  - NULL function = the chip does not have the feature (the host does without). FL_STATUS_UNIMPLEMENTED = not for
 *    these arguments (the host tries its next way). FL_STATUS_UNAVAILABLE = no hardware or library on this machine.
 *  - There is no current device: each call names a device ordinal (0 … count-1) or an object bound to one.
 *  - What is queued on a stream runs in order on that stream and is not waited for. A failure of queued work is
 *    reported by the next synchronize or query of that stream or of an event recorded after it.
 *  - Strings are borrowed for the life of the process. Arrays belong to the caller and live only for the call.
 *  - Threads: [any] any thread at any time; [object] one thread at a time per stream or event.
 *    After fork() the child must not call; the host guards that.
 */
#ifndef TORCH_FL_ADAPTER_H_
#define TORCH_FL_ADAPTER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FL_ABI_MAJOR 1
#define FL_ABI_MINOR 0

#if defined(_WIN32)
#define FL_EXPORT __declspec(dllexport)
#else
#define FL_EXPORT __attribute__((visibility("default")))
#endif

/* ---------------------------------------------------------------- status */

typedef int32_t fl_status;
enum {
  FL_STATUS_OK = 0,
  FL_STATUS_CANCELLED = 1,
  FL_STATUS_UNKNOWN = 2,
  FL_STATUS_INVALID_ARGUMENT = 3,
  FL_STATUS_TIMEOUT = 4,
  FL_STATUS_NOT_FOUND = 5,
  FL_STATUS_ALREADY_EXISTS = 6,
  FL_STATUS_PERMISSION_DENIED = 7,
  FL_STATUS_OUT_OF_MEMORY = 8,
  FL_STATUS_FAILED_PRECONDITION = 9,
  FL_STATUS_ABORTED = 10,
  FL_STATUS_OUT_OF_RANGE = 11, /* an index operand points outside its tensor: becomes IndexError */
  FL_STATUS_UNIMPLEMENTED = 12,
  FL_STATUS_INTERNAL = 13,
  FL_STATUS_UNAVAILABLE = 14,
  FL_STATUS_DEVICE_LOST = 15,
  FL_STATUS_NOT_READY = 16,     /* stream_query, event_query: work is still queued; not an error */
  FL_STATUS_VENDOR_FIRST = 4096 /* 4096 … 65535: the vendor's own; the host treats them as INTERNAL */
};

typedef struct fl_error {
  uint32_t struct_size;
  int32_t vendor_code;     /* the SDK's own number, 0 if none */
  const char* vendor_name; /* e.g. "NG_ERROR_MISALIGNED"; NULL if none */
  const char* message;     /* one sentence; NULL if none. Valid until this thread's next call */
} fl_error;

/* ------------------------------------------------------------ data types */

/* Layout and codes of DLPack's DLDataType. */
typedef struct fl_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes; /* always 1 */
} fl_dtype;
enum { FL_INT = 0, FL_UINT = 1, FL_FLOAT = 2, FL_BFLOAT = 4, FL_COMPLEX = 5, FL_BOOL = 6 };

/* --------------------------------------------------------------- objects */

typedef struct fl_stream_s* fl_stream; /* the vendor's; NULL is never passed */
typedef struct fl_event_s* fl_event;

/* A place in device memory. Pointer-like chips (FL_CAP_POINTERS) use `address` alone: handle is NULL and offset 0.
 * Chips with opaque buffers use handle + offset: address is then only the host's name for the place. */
typedef struct fl_memory {
  void* address;
  void* handle;
  uint64_t offset; /* bytes from the start of the buffer behind handle */
} fl_memory;

enum {
  FL_CAP_POINTERS = 1u << 0,     /* memory has addresses; address + n is a valid place */
  FL_CAP_IN_PLACE = 1u << 1,     /* kernels write the buffers they are given; else outputs[i].memory is replaced */
  FL_CAP_HOST_VISIBLE = 1u << 2, /* the host may read and write device addresses once the stream is idle */
  FL_CAP_COMPILER = 1u << 3,     /* has the compile extension */
  FL_CAP_PEER = 1u << 4          /* copy_d2d works between two devices of this adapter */
};

typedef struct fl_device_properties {
  uint32_t struct_size;
  uint32_t capabilities; /* FL_CAP_* */
  const char* uuid;      /* the same card keeps it across restarts; bus id if there is no uuid */
  const char* name;      /* e.g. "Ninguang NG-1" */
  const char* arch;      /* e.g. "tgpu-v2" */
  uint64_t total_memory; /* bytes */
  uint32_t alignment;    /* bytes; memory_alloc results and kernel operands' bases */
  uint32_t multi_processor_count;
  uint64_t max_allocation; /* most bytes of one memory_alloc; 0: no limit but the memory itself */
} fl_device_properties;

/* ----------------------------------------------------------- kernel calls */

typedef struct fl_scalar {
  uint8_t tag; /* FL_SCALAR_* */
  uint8_t reserved[7];
  union {
    int64_t i; /* also bool: 0 or 1 */
    double f;
    double c[2]; /* real, imaginary */
  } v;
} fl_scalar;
enum { FL_SCALAR_NONE = 0, FL_SCALAR_INT = 1, FL_SCALAR_FLOAT = 2, FL_SCALAR_BOOL = 3, FL_SCALAR_COMPLEX = 4 };

enum {
  FL_TENSOR_ABSENT = 1u << 0,   /* an optional operand that was not given; nothing else is set */
  FL_TENSOR_IMMEDIATE = 1u << 1 /* a one-element input whose value is in `immediate`, not in memory */
};

/* One operand. sizes and strides point into the host's arrays: copy what outlives the call. */
typedef struct fl_tensor {
  fl_memory memory; /* of element [0, …, 0] */
  const int64_t* sizes;
  const int64_t* strides; /* in elements; never negative; 0 = broadcast */
  int32_t ndim;
  fl_dtype dtype;
  uint32_t flags;     /* FL_TENSOR_* */
  uint32_t alignment; /* largest power of two ≤ 4096 that divides the address, in bytes */
  uint8_t immediate[16];
} fl_tensor;

typedef struct fl_op_call {
  uint32_t struct_size;
  int32_t device;
  fl_stream stream;
  void* kernel_data; /* fl_kernel.data */
  const fl_tensor* inputs;
  fl_tensor* outputs; /* allocated by the host. Without FL_CAP_IN_PLACE the kernel replaces outputs[i].memory */
  const fl_scalar* attrs; /* meaning by position: docs/ops.md */
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_attrs;
} fl_op_call;

/* Queues one operation on call->stream. [any] Does not block.
 * FL_STATUS_UNIMPLEMENTED, returned before anything was queued, sends this call to the next tier. */
typedef fl_status (*fl_kernel_fn)(const fl_op_call* call);

/* What a kernel cannot take; the host copies, casts or splits until it fits, or goes to the next tier. */
enum {
  FL_KERNEL_CONTIGUOUS = 1u << 0,    /* all operands dense and row-major */
  FL_KERNEL_NO_IMMEDIATE = 1u << 1,  /* scalars must be in memory */
  FL_KERNEL_NO_BROADCAST = 1u << 2   /* no stride 0 */
};

typedef struct fl_kernel {
  uint32_t struct_size;
  uint32_t flags; /* FL_KERNEL_* */
  fl_kernel_fn fn;
  void* data;
  int32_t max_ndim;    /* 0 = any */
  uint32_t alignment;  /* bytes each operand's address must be a multiple of; 0 = its element size */
  uint64_t max_numel;  /* per operand; 0 = any */
} fl_kernel;

/* ------------------------------------------------------------ extensions */

enum { FL_EXTENSION_COMPILE = 1, FL_EXTENSION_COMM = 2, FL_EXTENSION_PROFILER = 3, FL_EXTENSION_GRAPH = 4,
       FL_EXTENSION_TELEMETRY = 5, FL_EXTENSION_VIRTUAL_MEMORY = 6 };

/* Optional tables hang in a chain; each is declared in its own ext_*.h and starts with this head. */
typedef struct fl_extension {
  uint32_t struct_size;
  uint32_t type; /* FL_EXTENSION_*; unknown types are skipped */
  const struct fl_extension* next;
} fl_extension;

/* ----------------------------------------------------------------- table */

enum { FL_EVENT_TIMING = 1u << 0 };

typedef struct fl_adapter {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;
  const fl_extension* extensions; /* NULL if none */
  const char* name;               /* lower case, [a-z0-9_-]; e.g. "ninguang" */
  const char* vendor;
  const char* version; /* of the adapter */

  /* Details of this thread's last failed call. Required. [any] */
  const fl_error* (*last_error)(void);

  /* device. Required but for device_synchronize. [any]
   * device_count opens the SDK; UNAVAILABLE, with a message that names what to install, if there is none. */
  fl_status (*device_count)(int32_t* out_count);
  fl_status (*device_properties)(int32_t device, fl_device_properties* out_properties);
  fl_status (*memory_info)(int32_t device, uint64_t* out_free, uint64_t* out_total);
  fl_status (*device_synchronize)(int32_t device); /* blocks until all streams are idle */

  /* memory. Required but for host_*. [any]
   * memory_alloc: bytes > 0. May block. The host caches and reuses; memory_free comes when no queued work uses it. */
  fl_status (*memory_alloc)(int32_t device, uint64_t bytes, fl_memory* out_memory);
  fl_status (*memory_free)(int32_t device, fl_memory memory);
  /* Memory that copies reach asynchronously (pinned). NULL: pageable memory, copies block. */
  fl_status (*host_alloc)(int32_t device, uint64_t bytes, void** out_address);
  fl_status (*host_free)(int32_t device, void* address);

  /* copies, queued on stream. Required but for copy_peer. [object: stream]
   * copy_h2d from memory not of host_alloc has read the source when it returns; copy_d2h to such memory may block
   * until the copy is done. copy_peer: between two devices of this adapter, on a stream of the source device;
   * UNIMPLEMENTED, before anything was queued: these two do not reach each other, and the host copies through its own
   * memory. */
  fl_status (*copy_h2d)(fl_stream stream, fl_memory dst, const void* src, uint64_t bytes);
  fl_status (*copy_d2h)(fl_stream stream, void* dst, fl_memory src, uint64_t bytes);
  fl_status (*copy_d2d)(fl_stream stream, fl_memory dst, fl_memory src, uint64_t bytes);
  fl_status (*copy_peer)(fl_stream stream, int32_t dst_device, fl_memory dst, int32_t src_device, fl_memory src,
                         uint64_t bytes);
  fl_status (*fill)(fl_stream stream, fl_memory dst, uint8_t value, uint64_t bytes);

  /* streams. stream_create required. [object: stream] priority: 0 normal, negative = more urgent.
   * stream_query never blocks: OK idle, NOT_READY busy. stream_wait_event orders the later work of `stream` after
   * the event, which may be another device's, and does not block the host; UNIMPLEMENTED: these two devices do not know
   * each other's events, and the host waits instead. */
  fl_status (*stream_create)(int32_t device, int32_t priority, fl_stream* out_stream);
  fl_status (*stream_destroy)(fl_stream stream);
  fl_status (*stream_query)(fl_stream stream);
  fl_status (*stream_synchronize)(fl_stream stream);
  fl_status (*stream_wait_event)(fl_stream stream, fl_event event);

  /* events. NULL event_create: the host synchronizes instead. [object: event]
   * An event never recorded is complete. event_elapsed: both events created with FL_EVENT_TIMING and complete. */
  fl_status (*event_create)(int32_t device, uint32_t flags, fl_event* out_event);
  fl_status (*event_destroy)(fl_event event);
  fl_status (*event_record)(fl_event event, fl_stream stream);
  fl_status (*event_query)(fl_event event);
  fl_status (*event_synchronize)(fl_event event);
  fl_status (*event_elapsed)(fl_event start, fl_event end, double* out_ms);

  /* kernels. NULL: the chip has none. [any]
   * Asked once per (device, uniop, dtypes) and cached. uniop: a name of docs/ops.md, e.g. "add".
   * in: the type the operation computes in; out: the type of its first output (differs for casts, comparisons …).
   * UNIMPLEMENTED: no kernel for these types. */
  fl_status (*kernel_find)(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* out_kernel);

  /* options of the library as a whole. NULL: it has none. [any] Opens nothing, does not block.
   * Called once per option, before device_count. Both texts are borrowed for the call only.
   * The host's own keys, for which UNIMPLEMENTED means that the adapter has no use for them:
   *   "cache_dir"     folder for what the adapter keeps on disk between processes; made by the adapter when it first
   *                   writes there; "" = keep nothing on disk
   *   "cache_max_mb"  most MiB to keep there, a decimal number; given only where there is a limit
   * All other keys are the adapter's, from `options` of the chip's profile; numbers are decimal text, true and false
   * are "true" and "false". UNIMPLEMENTED = unknown key, INVALID_ARGUMENT = unknown value: an error for the user.
   * A second profile of the same library may come when devices are open already: the same key with the same value is
   * not given again; with another value the adapter answers FAILED_PRECONDITION if it cannot change it any more. */
  fl_status (*configure)(const char* key, const char* value);
} fl_adapter;

/* True if the table `a` is new enough to have `member` and the vendor filled it. */
#define FL_HAS(a, member) \
  ((a)->struct_size >= offsetof(fl_adapter, member) + sizeof((a)->member) && (a)->member != NULL)

/* The one exported symbol. Returns a table that lives as long as the process; NULL is an error. Opens nothing. */
#define FL_ENTRY_SYMBOL "fl_get_adapter"
typedef const fl_adapter* (*fl_get_adapter_fn)(void);
FL_EXPORT const fl_adapter* fl_get_adapter(void);

#ifdef __cplusplus
}
#endif
#endif /* TORCH_FL_ADAPTER_H_ */
