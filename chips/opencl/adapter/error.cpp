// OpenCL's error codes in the words of Torch-FL's C ABI, and the last error of each thread.
#include "error.h"

namespace ocl {
namespace {

struct Code {
  cl_int code;
  const char* name;
  fl_status status;
};

// Codes that an OpenCL function or an event's status can have.
constexpr Code kCodes[] = {
    {0, "CL_SUCCESS", FL_STATUS_OK},
    {-1, "CL_DEVICE_NOT_FOUND", FL_STATUS_UNAVAILABLE},
    {-2, "CL_DEVICE_NOT_AVAILABLE", FL_STATUS_DEVICE_LOST},
    {-3, "CL_COMPILER_NOT_AVAILABLE", FL_STATUS_UNAVAILABLE},
    {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE", FL_STATUS_OUT_OF_MEMORY},
    {-5, "CL_OUT_OF_RESOURCES", FL_STATUS_ABORTED},
    {-6, "CL_OUT_OF_HOST_MEMORY", FL_STATUS_OUT_OF_MEMORY},
    {-7, "CL_PROFILING_INFO_NOT_AVAILABLE", FL_STATUS_FAILED_PRECONDITION},
    {-8, "CL_MEM_COPY_OVERLAP", FL_STATUS_INVALID_ARGUMENT},
    {-11, "CL_BUILD_PROGRAM_FAILURE", FL_STATUS_INTERNAL},
    {-12, "CL_MAP_FAILURE", FL_STATUS_OUT_OF_MEMORY},
    {-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET", FL_STATUS_INVALID_ARGUMENT},
    {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", FL_STATUS_ABORTED},
    {-15, "CL_COMPILE_PROGRAM_FAILURE", FL_STATUS_INTERNAL},
    {-16, "CL_LINKER_NOT_AVAILABLE", FL_STATUS_UNAVAILABLE},
    {-17, "CL_LINK_PROGRAM_FAILURE", FL_STATUS_INTERNAL},
    {-30, "CL_INVALID_VALUE", FL_STATUS_INVALID_ARGUMENT},
    {-31, "CL_INVALID_DEVICE_TYPE", FL_STATUS_INVALID_ARGUMENT},
    {-32, "CL_INVALID_PLATFORM", FL_STATUS_INVALID_ARGUMENT},
    {-33, "CL_INVALID_DEVICE", FL_STATUS_INVALID_ARGUMENT},
    {-34, "CL_INVALID_CONTEXT", FL_STATUS_DEVICE_LOST},  // contexts and queues are ours: the driver has given them up
    {-35, "CL_INVALID_QUEUE_PROPERTIES", FL_STATUS_INVALID_ARGUMENT},
    {-36, "CL_INVALID_COMMAND_QUEUE", FL_STATUS_DEVICE_LOST},
    {-37, "CL_INVALID_HOST_PTR", FL_STATUS_INVALID_ARGUMENT},
    {-38, "CL_INVALID_MEM_OBJECT", FL_STATUS_INVALID_ARGUMENT},
    {-42, "CL_INVALID_BINARY", FL_STATUS_INVALID_ARGUMENT},
    {-43, "CL_INVALID_BUILD_OPTIONS", FL_STATUS_INVALID_ARGUMENT},
    {-44, "CL_INVALID_PROGRAM", FL_STATUS_INVALID_ARGUMENT},
    {-45, "CL_INVALID_PROGRAM_EXECUTABLE", FL_STATUS_INVALID_ARGUMENT},
    {-46, "CL_INVALID_KERNEL_NAME", FL_STATUS_INVALID_ARGUMENT},
    {-47, "CL_INVALID_KERNEL_DEFINITION", FL_STATUS_INVALID_ARGUMENT},
    {-48, "CL_INVALID_KERNEL", FL_STATUS_INVALID_ARGUMENT},
    {-49, "CL_INVALID_ARG_INDEX", FL_STATUS_INVALID_ARGUMENT},
    {-50, "CL_INVALID_ARG_VALUE", FL_STATUS_INVALID_ARGUMENT},
    {-51, "CL_INVALID_ARG_SIZE", FL_STATUS_INVALID_ARGUMENT},
    {-52, "CL_INVALID_KERNEL_ARGS", FL_STATUS_INVALID_ARGUMENT},
    {-53, "CL_INVALID_WORK_DIMENSION", FL_STATUS_INVALID_ARGUMENT},
    {-54, "CL_INVALID_WORK_GROUP_SIZE", FL_STATUS_INVALID_ARGUMENT},
    {-55, "CL_INVALID_WORK_ITEM_SIZE", FL_STATUS_INVALID_ARGUMENT},
    {-56, "CL_INVALID_GLOBAL_OFFSET", FL_STATUS_INVALID_ARGUMENT},
    {-57, "CL_INVALID_EVENT_WAIT_LIST", FL_STATUS_INVALID_ARGUMENT},
    {-58, "CL_INVALID_EVENT", FL_STATUS_INVALID_ARGUMENT},
    {-59, "CL_INVALID_OPERATION", FL_STATUS_FAILED_PRECONDITION},
    {-61, "CL_INVALID_BUFFER_SIZE", FL_STATUS_OUT_OF_MEMORY},  // larger than the device allows
    {-63, "CL_INVALID_GLOBAL_WORK_SIZE", FL_STATUS_INVALID_ARGUMENT},
    {-64, "CL_INVALID_PROPERTY", FL_STATUS_INVALID_ARGUMENT},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR", FL_STATUS_UNAVAILABLE},
    {-9999, "CL_ILLEGAL_READ_OR_WRITE_NV", FL_STATUS_DEVICE_LOST},  // NVIDIA's; our name
};

const Code* find(cl_int code) {
  for (const Code& known : kCodes)
    if (known.code == code) return &known;
  return nullptr;
}

struct Last {
  fl_error error{};
  std::string text;
};

Last& last() {
  thread_local Last of_thread;
  return of_thread;
}

}  // namespace

const char* name_of(cl_int code) {
  const Code* known = find(code);
  return known != nullptr ? known->name : "unknown OpenCL error";
}

fl_status status_of(cl_int code) {
  const Code* known = find(code);
  return known != nullptr ? known->status : FL_STATUS_INTERNAL;
}

void fail(int32_t code, std::string text) {
  if (code > 0) throw Failure{code, 0, std::move(text)};
  throw Failure{status_of(code), code, std::move(text)};
}

fl_status remember(const Failure& failure) noexcept {
  Last& kept = last();
  kept.error = {sizeof(fl_error), failure.code, failure.code != 0 ? name_of(failure.code) : nullptr, nullptr};
  try {
    kept.text = failure.text;
    kept.error.message = kept.text.c_str();
  } catch (...) {  // no memory for the text
    kept.error.message = "out of host memory";
  }
  return failure.status;
}

const fl_error* last_error() {
  Last& kept = last();
  kept.error.struct_size = sizeof(fl_error);
  return &kept.error;
}

}  // namespace ocl
