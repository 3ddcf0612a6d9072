// The kernel library's registry and the launch of an operator: operands are checked and packed into a command, in the
// form in which the kernel will see them, by the calling thread. The counterpart for kernels is kernel.h.
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "stream.h"

struct ngOperator_st {
  const char* name;
  uint32_t in_types, out_types;
  ng::Kernel kernel;
  ng::Accepts accepts;
};

namespace ng {
namespace {

using Registry = std::unordered_map<std::string, std::vector<ngOperator>>;

Registry& registry() {
  static Registry* const registry = new Registry;  // leaked: handles live as long as the process
  return *registry;
}

constexpr uint8_t kTypeBytes[NG_DATA_TYPE_COUNT] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
const char* const kTypeNames[NG_DATA_TYPE_COUNT] = {"bool",     "uint8",   "int8",    "int16",     "int32",  "int64",
                                                    "float16", "bfloat16", "float32", "float64", "complex64",
                                                    "complex128"};

// What a queued launch carries. Its arrays follow it in the slot, or lie in `spill` if they are too large.
struct Launch {
  ngOperator op;
  Args args;
  char* spill;
  bool fail, lose_device;  // injected faults
};
constexpr size_t kInlineBytes = sizeof(Command::payload) - sizeof(Launch);

// The operands of one call while they are packed.
struct Operands {
  const ngTensor* tensors;
  int32_t count;
  const char* role;  // "input" or "output"
};

ngResult operand_failed(ngOperator op, const Operands& operands, int32_t index, ngResult result) {
  return fail(result, "%s, %s %d: %s", op->name, operands.role, index, message());
}

size_t packed_bytes(const Operands& operands) {
  size_t bytes = static_cast<size_t>(operands.count) * sizeof(Tensor);
  for (int32_t i = 0; i < operands.count; ++i) {
    const ngTensor& tensor = operands.tensors[i];
    bytes += static_cast<size_t>(tensor.ndim) * 2 * sizeof(int64_t) + (tensor.immediate ? sizeof(tensor.value) : 0);
  }
  return bytes;
}

ngResult check_shape(const ngTensor& tensor) {
  if (tensor.absent) return NG_SUCCESS;
  if (tensor.type >= NG_DATA_TYPE_COUNT) return fail(NG_ERROR_INVALID_VALUE, "unknown data type %d", tensor.type);
  if (tensor.ndim < 0 || tensor.ndim > 64) return fail(NG_ERROR_INVALID_VALUE, "%d dimensions", tensor.ndim);
  if (tensor.ndim > 0 && (tensor.sizes == nullptr || tensor.strides == nullptr)) {
    return fail(NG_ERROR_INVALID_VALUE, "sizes or strides are NULL");
  }
  return NG_SUCCESS;
}

// Every element lies in the device's memory, and the base fits the element.
ngResult check_place(const Device& device, const ngTensor& tensor) {
  const int64_t element = kTypeBytes[tensor.type];
  int64_t low = 0, high = element;
  bool overflow = false;
  for (int32_t d = 0; d < tensor.ndim; ++d) {
    if (tensor.sizes[d] <= 0) {
      return tensor.sizes[d] == 0 ? NG_SUCCESS : fail(NG_ERROR_INVALID_VALUE, "a size is negative");
    }
    int64_t span;
    overflow |= __builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d] * element, &span);
    overflow |= __builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high);
  }
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(element) != 0) {
    return fail(NG_ERROR_MISALIGNED, "%p is not aligned for %s", tensor.data, kTypeNames[tensor.type]);
  }
  const char* const begin = static_cast<const char*>(tensor.data) + low;
  const uint64_t bytes = static_cast<uint64_t>(high - low);
  const bool inside = !overflow && device.memory.contains(begin, bytes) &&
                      (!runtime().check_bounds || device.memory.allocated(begin, bytes));
  if (inside) return NG_SUCCESS;
  return fail(NG_ERROR_ILLEGAL_ADDRESS, "%llu bytes at %p lie outside the memory of device %d",
              static_cast<unsigned long long>(bytes), static_cast<const void*>(begin), device.index);
}

// Puts the operands into `packed` and their arrays at `arrays`, which moves on.
ngResult pack(ngOperator op, const Device& device, const Operands& operands, Tensor* packed, char** arrays) {
  for (int32_t i = 0; i < operands.count; ++i) {
    const ngTensor& tensor = operands.tensors[i];
    Tensor& to = packed[i];
    to = Tensor{};
    to.type = static_cast<ngDataType>(tensor.type);
    if (tensor.absent) continue;
    auto* const sizes = reinterpret_cast<int64_t*>(*arrays);
    auto* const strides = sizes + tensor.ndim;
    for (int32_t d = 0; d < tensor.ndim; ++d) {  // a few numbers: a loop is quicker than two memcpy calls
      sizes[d] = tensor.sizes[d];
      strides[d] = tensor.strides[d];
    }
    *arrays = reinterpret_cast<char*>(strides + tensor.ndim);
    to.sizes = sizes;
    to.strides = strides;
    to.ndim = tensor.ndim;
    if (tensor.immediate) {
      to.immediate = true;
      to.data = memcpy(*arrays, tensor.value, sizeof(tensor.value));
      *arrays += sizeof(tensor.value);
      continue;
    }
    const ngResult result = check_place(device, tensor);
    if (result != NG_SUCCESS) return operand_failed(op, operands, i, result);
    to.data = device.memory.to_chip(tensor.data);
  }
  return NG_SUCCESS;
}

ngResult run_launch(void* payload, Device& device, bool execute) {
  Launch& launch = *static_cast<Launch*>(payload);
  struct Release {
    char* spill;
    ~Release() {
      if (__builtin_expect(spill != nullptr, 0)) free(spill);
    }
  } release{launch.spill};
  if (!execute) return NG_SUCCESS;
  delay(Work::kKernel, device.index);
  if (__builtin_expect(launch.lose_device, 0)) {
    device.lost = true;
    return refuse_lost(device);
  }
  const char* const name = launch.op->name;
  if (__builtin_expect(launch.fail, 0)) {
    return fail(NG_ERROR_LAUNCH_FAILED, "%s on device %d: injected fault", name, device.index);
  }
  ngResult result;
  try {
    result = launch.op->kernel(launch.args);
  } catch (...) {
    result = convert_exception("kernel");
  }
  if (result == NG_SUCCESS) return NG_SUCCESS;
  // NOT_SUPPORTED means that nothing was queued; it is too late for that answer.
  if (result == NG_ERROR_NOT_SUPPORTED) result = NG_ERROR_LAUNCH_FAILED;
  return fail(result, "%s on device %d: %s", name, device.index, *message() ? message() : ngErrorName(result));
}

ngResult check_operands(ngOperator op, const Operands& operands) {
  if (operands.count < 0 || (operands.count > 0 && operands.tensors == nullptr)) return null_argument(op->name);
  for (int32_t i = 0; i < operands.count; ++i) {
    const ngResult result = check_shape(operands.tensors[i]);
    if (result != NG_SUCCESS) return operand_failed(op, operands, i, result);
  }
  return NG_SUCCESS;
}

// Checks, packs and queues. On any failure nothing is queued.
ngResult launch(ngOperator op, Stream& stream, const Operands& in, const Operands& out, const ngScalar* attrs,
                int32_t num_attrs) {
  ngResult result = check_operands(op, in);
  if (result == NG_SUCCESS) result = check_operands(op, out);
  if (result != NG_SUCCESS) return result;
  if (num_attrs < 0 || (num_attrs > 0 && attrs == nullptr)) return null_argument("ngOperatorLaunch");

  Stream::Slot slot(stream);
  auto* const launch = new (slot.payload()) Launch{};
  const size_t attr_bytes = static_cast<size_t>(num_attrs) * sizeof(ngScalar);
  const size_t bytes = packed_bytes(in) + packed_bytes(out) + attr_bytes;
  if (bytes > kInlineBytes && (launch->spill = static_cast<char*>(malloc(bytes))) == nullptr) throw std::bad_alloc();
  auto* const tensors = reinterpret_cast<Tensor*>(launch->spill != nullptr ? launch->spill
                                                                           : reinterpret_cast<char*>(launch + 1));
  auto* const scalars = reinterpret_cast<ngScalar*>(tensors + in.count + out.count);
  char* arrays = reinterpret_cast<char*>(scalars + num_attrs);
  for (int32_t i = 0; i < num_attrs; ++i) scalars[i] = attrs[i];
  const Device& device = stream.device();
  launch->op = op;
  launch->args = Args{tensors, tensors + in.count, scalars, in.count, out.count, num_attrs, device.index};

  result = pack(op, device, in, tensors, &arrays);
  if (result == NG_SUCCESS) result = pack(op, device, out, tensors + in.count, &arrays);
  if (result == NG_SUCCESS && op->accepts != nullptr) {
    clear_message();
    result = op->accepts(launch->args);
    if (result != NG_SUCCESS) fail(result, "%s: %s", op->name, *message() ? message() : "not for these operands");
  }
  if (result != NG_SUCCESS) {
    free(launch->spill);
    return result;
  }
  launch->fail = fault_due(Fault::kLaunch, device.index);
  launch->lose_device = fault_due(Fault::kLost, device.index);
  slot.commit(run_launch);
  return NG_SUCCESS;
}

}  // namespace

Registration::Registration(const char* operator_name, uint32_t in_types, Kernel kernel, uint32_t out_types,
                           Accepts accepts)
    : name(operator_name) {
  registry()[name].push_back(new ngOperator_st{name, in_types, out_types, kernel, accepts});
}

}  // namespace ng

using namespace ng;

ngResult ngOperatorFind(int32_t device, const char* name, ngDataType in, ngDataType out, ngOperator* op) {
  return call_on("ngOperatorFind", device, [&](Device&) {
    if (name == nullptr || op == nullptr) return null_argument("ngOperatorFind");
    *op = nullptr;
    if (in >= NG_DATA_TYPE_COUNT || out >= NG_DATA_TYPE_COUNT) {
      return fail(NG_ERROR_NOT_SUPPORTED, "'%s': the chip does not have this data type", name);
    }
    const auto found = registry().find(name);
    if (found == registry().end()) return fail(NG_ERROR_NOT_SUPPORTED, "the library has no operator '%s'", name);
    for (const ngOperator candidate : found->second) {
      const bool fits_out = candidate->out_types == 0 ? in == out : (candidate->out_types & bit(out)) != 0;
      if ((candidate->in_types & bit(in)) == 0 || !fits_out) continue;
      *op = candidate;
      return NG_SUCCESS;
    }
    return fail(NG_ERROR_NOT_SUPPORTED, "'%s' does not compute from %s to %s", name, kTypeNames[in], kTypeNames[out]);
  });
}

ngResult ngOperatorLaunch(ngOperator op, ngStream stream, const ngTensor* inputs, int32_t num_inputs,
                          const ngTensor* outputs, int32_t num_outputs, const ngScalar* attrs, int32_t num_attrs) {
  if (op == nullptr) return null_argument("ngOperatorLaunch");
  return call_on("ngOperatorLaunch", stream, [&](Stream& found) {
    Device& device = found.device();
    if (__builtin_expect(device.workspace_wanted.load(std::memory_order_relaxed) != 0, 0)) {
      const ngResult taken = take_workspace(device);
      if (taken != NG_SUCCESS) return taken;
    }
    return launch(op, found, {inputs, num_inputs, "input"}, {outputs, num_outputs, "output"}, attrs, num_attrs);
  });
}
