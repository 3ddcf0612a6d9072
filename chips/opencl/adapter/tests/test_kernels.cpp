// Kernels as far as the runtime is concerned: programs built, cached and launched; their errors reported late; a faulty
// OpenCL library (fault_loader.c, option library=…) underneath.
#include <cstring>

#include "driver.h"

namespace {

const fl_dtype kFloat = {FL_FLOAT, 32, 1}, kLong = {FL_INT, 64, 1};

struct Vector {
  int64_t size, stride = 1;
  fl_tensor tensor{};
  Vector(fl_memory memory, fl_dtype dtype, int64_t count) : size(count) {
    tensor.memory = memory;
    tensor.sizes = &size;
    tensor.strides = &stride;
    tensor.ndim = 1;
    tensor.dtype = dtype;
    tensor.alignment = 64;
  }
  Vector(const Vector&) = delete;
};

fl_status call(const Bench& bench, const fl_kernel& kernel, const std::vector<fl_tensor>& inputs, fl_tensor output,
               const std::vector<fl_scalar>& attrs) {
  fl_op_call c{};
  c.struct_size = sizeof(c);
  c.device = bench.device;
  c.stream = bench.stream;
  c.kernel_data = kernel.data;
  c.inputs = inputs.data();
  c.outputs = &output;
  c.attrs = attrs.data();
  c.num_inputs = static_cast<int32_t>(inputs.size());
  c.num_outputs = 1;
  c.num_attrs = static_cast<int32_t>(attrs.size());
  return kernel.fn(&c);
}

bool find(int device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel& kernel) {
  kernel = fl_kernel{};
  kernel.struct_size = sizeof(kernel);
  const fl_status status = a->kernel_find(device, uniop, in, out, &kernel);
  CHECK(status == FL_STATUS_OK || status == FL_STATUS_UNIMPLEMENTED);
  return status == FL_STATUS_OK;
}

void additions() {
  for (int device = 0; device < num_devices(); ++device) {
    const Bench bench(device);
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const fl_memory x = bench.put(values), y = bench.alloc(values.size() * sizeof(float));
    CHECK(run_add(bench, plus(x, 256), plus(y, 256), 900));
    const std::vector<float> result = bench.get<float>(plus(y, 256), 900);
    for (size_t i = 0; i < 900; ++i) CHECK(result[i] == 2 * values[i + 64]);
    bench.free(x);
    bench.free(y);
  }
}

// Integer division by zero is found by the kernel and told by the next synchronisation, once.
void late_errors() {
  for (int device = 0; device < num_devices(); ++device) {
    const Bench bench(device);
    fl_kernel kernel;
    if (!find(device, "div_floor", kLong, kLong, kernel)) {
      std::printf("no div_floor\n");
      continue;
    }
    const fl_memory ones = bench.put(std::vector<int64_t>(64, 1)), zeros = bench.put(std::vector<int64_t>(64, 0));
    const fl_memory out = bench.alloc(512);
    const Vector one(ones, kLong, 64), zero(zeros, kLong, 64), result(out, kLong, 64);
    OK(call(bench, kernel, {one.tensor, one.tensor}, result.tensor, {}));
    OK(a->stream_synchronize(bench.stream));
    for (const bool by_event : {false, true}) {
      OK(call(bench, kernel, {one.tensor, zero.tensor}, result.tensor, {}));
      fl_event event;
      OK(a->event_create(device, 0, &event));
      OK(a->event_record(event, bench.stream));
      const fl_status status = by_event ? a->event_synchronize(event) : a->stream_synchronize(bench.stream);
      CHECK(status == FL_STATUS_INVALID_ARGUMENT && std::strcmp(a->last_error()->message, "ZeroDivisionError") == 0);
      OK(a->event_synchronize(event));
      OK(a->event_destroy(event));
      OK(a->stream_synchronize(bench.stream));
    }
    for (const fl_memory memory : {ones, zeros, out}) bench.free(memory);
  }
}

// What a fault underneath becomes: prints the status and the text of the first call that fails.
void faults() {
  const Bench bench(0);
  const fl_memory x = bench.put(std::vector<float>(64, 1)), y = bench.alloc(256);
  fl_status status = FL_STATUS_OK;
  CHECK(run_add(bench, x, y, 64, &status));
  fl_event event;
  if (status == FL_STATUS_OK) {
    OK(a->event_create(0, 0, &event));
    status = a->event_record(event, bench.stream);
    if (status == FL_STATUS_OK) status = a->event_synchronize(event);
    if (status == FL_STATUS_OK) status = a->event_query(event);
  }
  if (status == FL_STATUS_OK) status = a->stream_synchronize(bench.stream);
  std::printf("%d\t%s\n", status, last_text().c_str());
  std::fflush(stdout);
  std::_Exit(0);  // what the fault left behind cannot be put in order
}

}  // namespace

bool run_add(const Bench& bench, fl_memory x, fl_memory y, int64_t count, fl_status* status) {
  fl_kernel kernel;
  if (!find(bench.device, "add", kFloat, kFloat, kernel)) return false;
  const Vector in(x, kFloat, count), out(y, kFloat, count);
  fl_scalar alpha{};
  alpha.tag = FL_SCALAR_FLOAT;
  alpha.v.f = 1;
  const fl_status result = call(bench, kernel, {in.tensor, in.tensor}, out.tensor, {alpha});
  if (status != nullptr) {
    *status = result;
  } else {
    OK(result);
  }
  return true;
}

const std::vector<Scenario> kernel_scenarios = {{"add", additions}, {"late_errors", late_errors}, {"faults", faults}};
