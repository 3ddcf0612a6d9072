// The part of OpenCL that this adapter uses: types, constants and functions, declared here because the ABI is stable
// and a build must not need OpenCL's headers. Functions are looked up at run time in the ICD loader:
// cl().Finish(queue). Counterpart: cl_api.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_long = int64_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;
using cl_properties = cl_ulong;

using cl_platform_id = struct _cl_platform_id*;
using cl_device_id = struct _cl_device_id*;
using cl_context = struct _cl_context*;
using cl_command_queue = struct _cl_command_queue*;
using cl_mem = struct _cl_mem*;
using cl_program = struct _cl_program*;
using cl_kernel = struct _cl_kernel*;
using cl_event = struct _cl_event*;

using cl_device_type = cl_bitfield;
using cl_mem_flags = cl_bitfield;
using cl_map_flags = cl_bitfield;
using cl_context_properties = intptr_t;
using cl_queue_properties = cl_properties;
using cl_name_version = struct {
  cl_uint version;
  char name[64];
};

// An enumeration of the specification: its names keep their spelling, and a value converts to any OpenCL type.
enum : cl_int {
  CL_SUCCESS = 0,
  CL_DEVICE_NOT_FOUND = -1,
  CL_DEVICE_NOT_AVAILABLE = -2,
  CL_COMPILER_NOT_AVAILABLE = -3,
  CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
  CL_OUT_OF_RESOURCES = -5,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_PROFILING_INFO_NOT_AVAILABLE = -7,
  CL_MEM_COPY_OVERLAP = -8,
  CL_BUILD_PROGRAM_FAILURE = -11,
  CL_MISALIGNED_SUB_BUFFER_OFFSET = -13,
  CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST = -14,
  CL_LINK_PROGRAM_FAILURE = -17,
  CL_INVALID_VALUE = -30,
  CL_INVALID_PLATFORM = -32,
  CL_INVALID_DEVICE = -33,
  CL_INVALID_OPERATION = -59,
  CL_PLATFORM_NOT_FOUND_KHR = -1001,
};

enum : cl_uint {
  CL_FALSE = 0,
  CL_TRUE = 1,

  CL_PLATFORM_VERSION = 0x0901,
  CL_PLATFORM_NAME = 0x0902,
  CL_PLATFORM_VENDOR = 0x0903,
  CL_PLATFORM_EXTENSIONS = 0x0904,

  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_VENDOR_ID = 0x1001,
  CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_ENDIAN_LITTLE = 0x1026,
  CL_DEVICE_AVAILABLE = 0x1027,
  CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032,
  CL_DEVICE_HALF_FP_CONFIG = 0x1033,
  CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DEVICE_OPENCL_C_VERSION = 0x103D,
  CL_DEVICE_BUILT_IN_KERNELS = 0x103F,
  CL_DEVICE_SVM_CAPABILITIES = 0x1053,
  CL_DEVICE_MAX_NUM_SUB_GROUPS = 0x105C,
  CL_DEVICE_OPENCL_C_ALL_VERSIONS = 0x1066,
  CL_DEVICE_UUID_KHR = 0x106A,
  CL_DEVICE_PCI_BUS_INFO_KHR = 0x410F,
  CL_DEVICE_PCI_BUS_ID_NV = 0x4008,
  CL_DEVICE_PCI_SLOT_ID_NV = 0x4009,
  CL_DEVICE_TOPOLOGY_AMD = 0x4037,
  CL_DEVICE_HOST_MEM_CAPABILITIES_INTEL = 0x4190,
  CL_DEVICE_DEVICE_MEM_CAPABILITIES_INTEL = 0x4191,
  CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL = 0x4192,

  CL_CONTEXT_PLATFORM = 0x1084,
  CL_QUEUE_PROPERTIES = 0x1093,
  CL_QUEUE_PRIORITY_KHR = 0x1096,
  CL_QUEUE_PRIORITY_HIGH_KHR = 1u << 0,
  CL_QUEUE_PRIORITY_MED_KHR = 1u << 1,
  CL_QUEUE_PRIORITY_LOW_KHR = 1u << 2,

  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_NUM_DEVICES = 0x1162,
  CL_PROGRAM_DEVICES = 0x1163,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,

  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_PROFILING_COMMAND_START = 0x1282,
  CL_PROFILING_COMMAND_END = 0x1283,
};
constexpr cl_int CL_COMPLETE = 0;  // an event's status; larger: not yet, negative: an error

constexpr cl_device_type CL_DEVICE_TYPE_CPU = 1 << 1, CL_DEVICE_TYPE_GPU = 1 << 2, CL_DEVICE_TYPE_ACCELERATOR = 1 << 3,
                         CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;
constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
constexpr cl_mem_flags CL_MEM_READ_WRITE = 1 << 0, CL_MEM_ALLOC_HOST_PTR = 1 << 4,
                       CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
constexpr cl_map_flags CL_MAP_READ = 1 << 0, CL_MAP_WRITE = 1 << 1;
constexpr cl_bitfield CL_DEVICE_SVM_COARSE_GRAIN_BUFFER = 1 << 0, CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;
constexpr cl_bitfield CL_UNIFIED_SHARED_MEMORY_ACCESS_INTEL = 1 << 0;

namespace ocl {

// X(name, result, parameters): functions that every OpenCL 1.2 loader has.
#define OCL_FUNCTIONS(X)                                                                                               \
  X(GetPlatformIDs, cl_int, (cl_uint, cl_platform_id*, cl_uint*))                                                      \
  X(GetPlatformInfo, cl_int, (cl_platform_id, cl_uint, size_t, void*, size_t*))                                        \
  X(GetDeviceIDs, cl_int, (cl_platform_id, cl_device_type, cl_uint, cl_device_id*, cl_uint*))                          \
  X(GetDeviceInfo, cl_int, (cl_device_id, cl_uint, size_t, void*, size_t*))                                            \
  X(CreateContext, cl_context,                                                                                         \
    (const cl_context_properties*, cl_uint, const cl_device_id*, void (*)(const char*, const void*, size_t, void*),    \
     void*, cl_int*))                                                                                                  \
  X(ReleaseContext, cl_int, (cl_context))                                                                              \
  X(CreateCommandQueue, cl_command_queue, (cl_context, cl_device_id, cl_bitfield, cl_int*))                            \
  X(ReleaseCommandQueue, cl_int, (cl_command_queue))                                                                   \
  X(Flush, cl_int, (cl_command_queue))                                                                                 \
  X(Finish, cl_int, (cl_command_queue))                                                                                \
  X(CreateBuffer, cl_mem, (cl_context, cl_mem_flags, size_t, void*, cl_int*))                                          \
  X(ReleaseMemObject, cl_int, (cl_mem))                                                                                \
  X(EnqueueReadBuffer, cl_int,                                                                                         \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*, cl_event*))                   \
  X(EnqueueWriteBuffer, cl_int,                                                                                        \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*, cl_event*))             \
  X(EnqueueCopyBuffer, cl_int,                                                                                         \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*, cl_event*))                   \
  X(EnqueueFillBuffer, cl_int,                                                                                         \
    (cl_command_queue, cl_mem, const void*, size_t, size_t, size_t, cl_uint, const cl_event*, cl_event*))              \
  X(EnqueueMapBuffer, void*,                                                                                           \
    (cl_command_queue, cl_mem, cl_bool, cl_map_flags, size_t, size_t, cl_uint, const cl_event*, cl_event*, cl_int*))   \
  X(EnqueueUnmapMemObject, cl_int, (cl_command_queue, cl_mem, void*, cl_uint, const cl_event*, cl_event*))             \
  X(CreateProgramWithSource, cl_program, (cl_context, cl_uint, const char**, const size_t*, cl_int*))                  \
  X(CreateProgramWithBinary, cl_program,                                                                               \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*, cl_int*))                \
  X(BuildProgram, cl_int, (cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*)) \
  X(GetProgramInfo, cl_int, (cl_program, cl_uint, size_t, void*, size_t*))                                             \
  X(GetProgramBuildInfo, cl_int, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))                          \
  X(ReleaseProgram, cl_int, (cl_program))                                                                              \
  X(CreateKernel, cl_kernel, (cl_program, const char*, cl_int*))                                                       \
  X(ReleaseKernel, cl_int, (cl_kernel))                                                                                \
  X(GetKernelWorkGroupInfo, cl_int, (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                        \
  X(SetKernelArg, cl_int, (cl_kernel, cl_uint, size_t, const void*))                                                   \
  X(EnqueueNDRangeKernel, cl_int,                                                                                      \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*,      \
     cl_event*))                                                                                                       \
  X(EnqueueMarkerWithWaitList, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                        \
  X(EnqueueBarrierWithWaitList, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                       \
  X(WaitForEvents, cl_int, (cl_uint, const cl_event*))                                                                 \
  X(GetEventInfo, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))                                                 \
  X(GetEventProfilingInfo, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))                                        \
  X(ReleaseEvent, cl_int, (cl_event))                                                                                  \
  X(GetExtensionFunctionAddressForPlatform, void*, (cl_platform_id, const char*))

// Functions of OpenCL 2: null with an older loader.
#define OCL_FUNCTIONS_2(X)                                                                        \
  X(CreateCommandQueueWithProperties, cl_command_queue,                                           \
    (cl_context, cl_device_id, const cl_queue_properties*, cl_int*))                              \
  X(SVMAlloc, void*, (cl_context, cl_bitfield, size_t, cl_uint))                                  \
  X(SVMFree, void, (cl_context, void*))                                                           \
  X(SetKernelArgSVMPointer, cl_int, (cl_kernel, cl_uint, const void*))                            \
  X(EnqueueSVMMemcpy, cl_int,                                                                     \
    (cl_command_queue, cl_bool, void*, const void*, size_t, cl_uint, const cl_event*, cl_event*)) \
  X(EnqueueSVMMemFill, cl_int,                                                                    \
    (cl_command_queue, void*, const void*, size_t, size_t, cl_uint, const cl_event*, cl_event*))

// cl_intel_unified_shared_memory, by platform: clDeviceMemAllocINTEL … .
#define OCL_FUNCTIONS_USM(X)                                                                           \
  X(DeviceMemAlloc, void*, (cl_context, cl_device_id, const cl_properties*, size_t, cl_uint, cl_int*)) \
  X(HostMemAlloc, void*, (cl_context, const cl_properties*, size_t, cl_uint, cl_int*))                 \
  X(SharedMemAlloc, void*, (cl_context, cl_device_id, const cl_properties*, size_t, cl_uint, cl_int*)) \
  X(MemFree, cl_int, (cl_context, void*))                                                              \
  X(SetKernelArgMemPointer, cl_int, (cl_kernel, cl_uint, const void*))                                 \
  X(EnqueueMemcpy, cl_int,                                                                             \
    (cl_command_queue, cl_bool, void*, const void*, size_t, cl_uint, const cl_event*, cl_event*))      \
  X(EnqueueMemFill, cl_int, (cl_command_queue, void*, const void*, size_t, size_t, cl_uint, const cl_event*, cl_event*))

#define OCL_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
struct Api {
  OCL_FUNCTIONS(OCL_MEMBER)
  OCL_FUNCTIONS_2(OCL_MEMBER)
};
struct UsmApi {
  OCL_FUNCTIONS_USM(OCL_MEMBER)
};
#undef OCL_MEMBER

// Opens `path` or, if it is empty, the loader found by the usual names and then by those of `more`. Once: later calls
// return the same table. Throws Failure FL_STATUS_UNAVAILABLE, which names what to install.
const Api& load_api(const std::string& path, const std::vector<std::string>& more = {});

extern const Api* loaded_api;
inline const Api& cl() { return __builtin_expect(loaded_api != nullptr, 1) ? *loaded_api : load_api(""); }

// Null functions if the platform lacks any of them.
UsmApi usm_of(cl_platform_id platform);

}  // namespace ocl
