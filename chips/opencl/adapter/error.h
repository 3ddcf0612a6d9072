// Failures inside the adapter: thrown as Failure, turned into fl_status at the border (no exception crosses it).
#pragma once
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "cl_api.h"
#include "torch_fl/adapter.h"

namespace ocl {

struct Failure {
  fl_status status;
  cl_int code;       // OpenCL's own, 0 if none
  std::string text;  // one sentence with the values
};

const char* name_of(cl_int code);  // "CL_OUT_OF_RESOURCES"
fl_status status_of(cl_int code);  // the canonical status
// Throws Failure. `code`: OpenCL's own (negative), or, with no OpenCL code behind it, a canonical status (positive).
[[noreturn]] void fail(int32_t code, std::string text);
inline void check(cl_int code, const char* what) {
  if (__builtin_expect(code != CL_SUCCESS, 0)) fail(code, what);
}

fl_status remember(const Failure& failure) noexcept;  // for last_error(); returns failure.status
const fl_error* last_error();

// Runs `body`, which returns nothing or an fl_status, and turns what it throws into a status.
template <class Body>
fl_status guarded(const Body& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return FL_STATUS_OK;
    } else {
      return body();
    }
  } catch (const Failure& failure) {
    return remember(failure);
  } catch (const std::bad_alloc&) {
    return remember({FL_STATUS_OUT_OF_MEMORY, 0, "out of host memory"});
  } catch (const std::exception& error) {
    return remember({FL_STATUS_INTERNAL, 0, error.what()});
  }
}

}  // namespace ocl
