// What a kernel of the library sees and how it registers. Kernels run on a stream's worker thread, know no queue, and
// see tensors whose `data` is already the chip's own mapping of the memory. The counterpart is operator.cpp.
#pragma once
#include <cstdint>

#include "ng.h"

namespace ng {

struct Tensor {
  void* data;  // nullptr if absent; for an immediate: its value
  const int64_t* sizes;
  const int64_t* strides;  // elements
  int32_t ndim;
  ngDataType type;
  bool immediate;

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= sizes[i];
    return n;
  }
  template <class T> T* as() const { return static_cast<T*>(data); }
};

struct Args {
  const Tensor* in;
  const Tensor* out;
  const ngScalar* attrs;
  int32_t num_in, num_out, num_attrs;
  int32_t device;

  int64_t i(int k) const { return attrs[k].kind == 2 ? static_cast<int64_t>(attrs[k].v.f) : attrs[k].v.i; }
  double f(int k) const { return attrs[k].kind == 2 ? attrs[k].v.f : static_cast<double>(attrs[k].v.i); }
  bool has(int k) const { return k < num_attrs && attrs[k].kind != 0; }
};

// Runs the operation. A failure is reported with fail() (message kept for the stream) or a plain code.
using Kernel = ngResult (*)(const Args&);
// Optional, on the launching thread: NG_SUCCESS or NG_ERROR_NOT_SUPPORTED for these operands.
using Accepts = ngResult (*)(const Args&);

// Keeps a printf-style message for the stream's next report and returns `code`.
ngResult fail(ngResult code, const char* format, ...) __attribute__((format(printf, 2, 3)));

struct Registration {
  const char* name;
  // Bit t of in_types: the kernel computes in ngDataType t. out_types: 0 = same as in.
  Registration(const char* name, uint32_t in_types, Kernel kernel, uint32_t out_types = 0, Accepts accepts = nullptr);
};

constexpr uint32_t bit(ngDataType t) { return 1u << t; }
constexpr uint32_t kHalfTypes = bit(NG_FLOAT16) | bit(NG_BFLOAT16);
constexpr uint32_t kFloatTypes = kHalfTypes | bit(NG_FLOAT32) | bit(NG_FLOAT64);
constexpr uint32_t kIntTypes = bit(NG_UINT8) | bit(NG_INT8) | bit(NG_INT16) | bit(NG_INT32) | bit(NG_INT64);
constexpr uint32_t kRealTypes = kFloatTypes | kIntTypes;
constexpr uint32_t kAllTypes = kRealTypes | bit(NG_BOOL);
constexpr uint32_t kComplexTypes = bit(NG_COMPLEX64) | bit(NG_COMPLEX128);

#define NG_CONCAT2(a, b) a##b
#define NG_CONCAT(a, b) NG_CONCAT2(a, b)
// NG_KERNEL("add", kAllTypes, run_add) at namespace scope.
#define NG_KERNEL(...) static const ::ng::Registration NG_CONCAT(registration_, __LINE__)(__VA_ARGS__)

// Splits [0, n) over the chip's cores (OpenMP); body(begin, end). Serial when n * cost is small.
// cost: rough nanoseconds per item. Defined in parallel.h.

}  // namespace ng
