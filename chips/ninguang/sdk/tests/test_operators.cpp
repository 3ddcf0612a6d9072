// Operators for the runtime's tests: they stand in for the kernel library.
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "kernel.h"
#include "parallel.h"

namespace {

using namespace ng;

ngResult run_add(const Args& args) {
  const float* a = args.in[0].as<float>();
  const float* b = args.in[1].as<float>();
  float* out = args.out[0].as<float>();
  const int64_t a_stride = args.in[0].immediate ? 0 : args.in[0].strides[0];
  const int64_t b_stride = args.in[1].immediate ? 0 : args.in[1].strides[0];
  for (int64_t i = 0; i < args.out[0].numel(); ++i) out[i] = a[i * a_stride] + b[i * b_stride];
  return NG_SUCCESS;
}

// out += each input that is there; any number of them.
ngResult run_add_all(const Args& args) {
  for (int k = 0; k < args.num_in; ++k) {
    if (!args.in[k]) continue;
    for (int64_t i = 0; i < args.out[0].numel(); ++i) args.out[0].as<float>()[i] += args.in[k].as<float>()[i];
  }
  return NG_SUCCESS;
}

ngResult run_sleep(const Args& args) {
  usleep(static_cast<useconds_t>(args.i(0)));
  return NG_SUCCESS;
}

ngResult run_fail(const Args& args) {
  return fail(NG_ERROR_INDEX_OUT_OF_RANGE, "index %lld is out of range", static_cast<long long>(args.i(0)));
}
ngResult run_fail_late(const Args&) { return NG_ERROR_NOT_SUPPORTED; }
// out[i] = how often item i was visited; attr 0: the item that throws, attr 1: the item that fails, -1 for none.
ngResult run_visit(const Args& args) {
  float* out = args.out[0].as<float>();
  std::atomic<bool> failed{false};
  parallel_for(args.out[0].numel(), 100.0, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i == args.i(0)) throw std::runtime_error("thrown in a part");
      if (i == args.i(1)) {
        fail(NG_ERROR_INDEX_OUT_OF_RANGE, "item %lld", static_cast<long long>(i));
        failed = true;
      }
      parallel_for(1, 1e9, [&](int64_t, int64_t) { out[i] += 1; });
    }
  });
  return failed ? NG_ERROR_INDEX_OUT_OF_RANGE : NG_SUCCESS;
}

ngResult run_throw(const Args&) { throw std::runtime_error("thrown by a kernel"); }
ngResult run_nothing(const Args&) { return NG_SUCCESS; }
ngResult accept_nothing(const Args& args) {
  return args.num_in > 0 ? fail(NG_ERROR_NOT_SUPPORTED, "takes no input") : NG_SUCCESS;
}

NG_KERNEL("test_add", bit(NG_FLOAT32), run_add);
NG_KERNEL("test_add_all", bit(NG_FLOAT32), run_add_all);
NG_KERNEL("test_sleep", bit(NG_FLOAT32), run_sleep);
NG_KERNEL("test_fail", bit(NG_FLOAT32), run_fail);
NG_KERNEL("test_fail_late", bit(NG_FLOAT32), run_fail_late);
NG_KERNEL("test_visit", bit(NG_FLOAT32), run_visit);
NG_KERNEL("test_throw", bit(NG_FLOAT32), run_throw);
NG_KERNEL("test_refuse", bit(NG_FLOAT32) | bit(NG_INT64), run_nothing, bit(NG_BOOL) | bit(NG_FLOAT32), accept_nothing);

}  // namespace
