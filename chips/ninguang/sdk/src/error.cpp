// Results, their names, and the last message of each thread. The counterpart is error.h; fail() is in kernel.h.
#include "error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace ng {
namespace {

// Plain storage: it needs no destructor, so late callers at thread or process exit find it alive.
thread_local char last_message[kMessageBytes];

}  // namespace

const char* message() { return last_message; }
void clear_message() { last_message[0] = 0; }

ngResult fail(ngResult code, const char* format, ...) {
  char text[kMessageBytes];  // an argument may be the old message itself
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof(text), format, list);
  va_end(list);
  memcpy(last_message, text, sizeof(text));
  return code;
}

ngResult convert_exception(const char* where) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return fail(NG_ERROR_OUT_OF_MEMORY, "%s: the host is out of memory", where);
  } catch (const std::exception& e) {
    return fail(NG_ERROR_INTERNAL, "%s: %s", where, e.what());
  } catch (...) {
    return fail(NG_ERROR_INTERNAL, "%s: unknown exception", where);
  }
}

}  // namespace ng

const char* ngGetLastErrorString(void) { return ng::message(); }

const char* ngErrorName(ngResult result) {
  switch (result) {
    case NG_SUCCESS: return "NG_SUCCESS";
    case NG_ERROR_INVALID_VALUE: return "NG_ERROR_INVALID_VALUE";
    case NG_ERROR_OUT_OF_MEMORY: return "NG_ERROR_OUT_OF_MEMORY";
    case NG_ERROR_NOT_READY: return "NG_ERROR_NOT_READY";
    case NG_ERROR_MISALIGNED: return "NG_ERROR_MISALIGNED";
    case NG_ERROR_ILLEGAL_ADDRESS: return "NG_ERROR_ILLEGAL_ADDRESS";
    case NG_ERROR_NOT_SUPPORTED: return "NG_ERROR_NOT_SUPPORTED";
    case NG_ERROR_LAUNCH_FAILED: return "NG_ERROR_LAUNCH_FAILED";
    case NG_ERROR_INDEX_OUT_OF_RANGE: return "NG_ERROR_INDEX_OUT_OF_RANGE";
    case NG_ERROR_DEVICE_LOST: return "NG_ERROR_DEVICE_LOST";
    case NG_ERROR_NO_DEVICE: return "NG_ERROR_NO_DEVICE";
    case NG_ERROR_DIVISION_BY_ZERO: return "NG_ERROR_DIVISION_BY_ZERO";
    case NG_ERROR_TIMEOUT: return "NG_ERROR_TIMEOUT";
    case NG_ERROR_INTERNAL: return "NG_ERROR_INTERNAL";
  }
  return "NG_ERROR_UNKNOWN";
}
