// From fl_kernel_fn to a queued OpenCL kernel: the registry of operations, kernel_find, arguments and the launch.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "kernel.h"

namespace ocl {
namespace {

using Registry = std::unordered_multimap<std::string, Registration>;

Registry& registry() {
  static auto* all = new Registry;  // filled while the library is loaded, in any order
  return *all;
}

// Instances live as long as the process, like the host's kernel table that points to them.
Instance& instance_of(Device& device, const Registration& registration, Type in, Type out) {
  static std::mutex mutex;
  static auto* all = new std::map<std::tuple<int, const Registration*, Type, Type>, std::unique_ptr<Instance>>;
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Instance>& slot = (*all)[{device.ordinal, &registration, in, out}];
  if (!slot) {
    slot = std::make_unique<Instance>();
    slot->registration = &registration;
    slot->device = &device;
    slot->in = in;
    slot->out = out;
  }
  return *slot;
}

fl_status run(const fl_op_call* call) {
  return guarded([call] {
    auto& instance = *static_cast<Instance*>(call->kernel_data);
    Op op(*call, instance);
    std::lock_guard<std::mutex> lock(op.stream.mutex);
    return instance.registration->run(op);
  });
}

}  // namespace

Registrar::Registrar(const Registration& registration) { registry().emplace(registration.uniop, registration); }

fl_status kernel_find(int32_t ordinal, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* out_kernel) {
  return guarded([&] {
    Device& on = device(ordinal);
    const Type in_type = type_of(in), out_type = type_of(out);
    if (in_type == Type::None || out_type == Type::None || ((bit(in_type) | bit(out_type)) & ~on.types) != 0)
      return fl_status{FL_STATUS_UNIMPLEMENTED};
    const auto [first, last] = registry().equal_range(uniop);
    for (auto it = first; it != last; ++it) {
      const Registration& registration = it->second;
      const uint32_t outs = registration.out_types != 0 ? registration.out_types : bit(in_type);
      if ((registration.in_types & bit(in_type)) == 0 || (outs & bit(out_type)) == 0) continue;
      std::memset(out_kernel, 0, sizeof(*out_kernel));
      out_kernel->struct_size = sizeof(*out_kernel);
      out_kernel->flags = registration.flags;
      out_kernel->fn = run;
      out_kernel->data = &instance_of(on, registration, in_type, out_type);
      out_kernel->max_ndim = kMaxDims;
      return fl_status{FL_STATUS_OK};
    }
    return fl_status{FL_STATUS_UNIMPLEMENTED};
  });
}

bool dense(const fl_tensor& t) {
  int64_t step = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.sizes[d] != 1 && t.strides[d] != step) return false;
    step *= t.sizes[d];
  }
  return true;
}

// ---------------------------------------------------------------- attributes and values

namespace {

double as_double(const fl_scalar& s) {
  switch (s.tag) {
    case FL_SCALAR_FLOAT: return s.v.f;
    case FL_SCALAR_COMPLEX: return s.v.c[0];
    case FL_SCALAR_NONE: return 0;
    default: return static_cast<double>(s.v.i);
  }
}

int64_t as_int(const fl_scalar& s) {
  switch (s.tag) {
    case FL_SCALAR_FLOAT: return static_cast<int64_t>(s.v.f);
    case FL_SCALAR_COMPLEX: return static_cast<int64_t>(s.v.c[0]);
    case FL_SCALAR_NONE: return 0;
    default: return s.v.i;
  }
}

template <class T>
size_t put(unsigned char* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(value));
  return sizeof(value);
}

size_t put_integer(unsigned char* bytes, Type type, int64_t value) {
  switch (type) {
    case Type::Bool: return put(bytes, static_cast<uint8_t>(value != 0));
    case Type::UInt8: return put(bytes, static_cast<uint8_t>(value));
    case Type::Int8: return put(bytes, static_cast<int8_t>(value));
    case Type::Int16: return put(bytes, static_cast<int16_t>(value));
    case Type::Int32: return put(bytes, static_cast<int32_t>(value));
    default: return put(bytes, value);
  }
}

bool is_float(Type type) { return (bit(type) & kFloatTypes) != 0; }

size_t put_float(unsigned char* bytes, Type type, double value) {
  return type == Type::Float64 ? put(bytes, value) : put(bytes, static_cast<float>(value));
}

}  // namespace

// A fraction is true, though its integer part is 0.
Value::Value(Type type, const fl_scalar& scalar)
    : size(is_float(type)       ? put_float(bytes, type, as_double(scalar))
           : type == Type::Bool ? put_integer(bytes, type, as_double(scalar) != 0)
                                : put_integer(bytes, type, as_int(scalar))) {}

Value::Value(Type type, double value)
    : size(is_float(type) ? put_float(bytes, type, value) : put_integer(bytes, type, static_cast<int64_t>(value))) {}

int64_t Op::attr_int(int i) const { return i < call.num_attrs ? as_int(call.attrs[i]) : 0; }

double Op::attr_float(int i) const { return i < call.num_attrs ? as_double(call.attrs[i]) : 0; }

// ---------------------------------------------------------------- arguments and launch

const Program& Op::add(uint64_t key, const Source& source) {
  auto* entry = new Instance::Entry{key, &device.programs->get(source), nullptr};
  const Instance::Entry* head = instance_.entries.load(std::memory_order_relaxed);
  do {
    entry->next = head;
  } while (!instance_.entries.compare_exchange_weak(head, entry, std::memory_order_release,
                                                    std::memory_order_relaxed));
  return *entry->program;
}

namespace {

void set_bytes(cl_kernel kernel, int& at, size_t size, const void* value) {
  const cl_int code = cl().SetKernelArg(kernel, static_cast<cl_uint>(at), size, value);
  if (__builtin_expect(code != CL_SUCCESS, 0)) fail(code, "clSetKernelArg of argument " + std::to_string(at));
  ++at;
}

void set_place(const Device& device, cl_kernel kernel, int& at, const Place& place, int item) {
  const auto index = static_cast<cl_uint>(at);
  cl_int code = CL_SUCCESS;
  int64_t offset = 0;
  if (place.buffer != nullptr) {
    code = cl().SetKernelArg(kernel, index, sizeof(cl_mem), &place.buffer);
    offset = static_cast<int64_t>(place.offset) / item;
  } else if (device.mode == MemoryMode::Usm) {
    code = device.platform->usm.SetKernelArgMemPointer(kernel, index, place.pointer);
  } else {
    code = cl().SetKernelArgSVMPointer(kernel, index, place.pointer);
  }
  if (__builtin_expect(code != CL_SUCCESS, 0)) fail(code, "memory as argument " + std::to_string(at));
  ++at;
  set_bytes(kernel, at, sizeof(offset), &offset);
}

}  // namespace

void Op::set(cl_kernel kernel, int& at, const fl_tensor& t) {
  set_place(device, kernel, at, Place::of(t.memory), (t.dtype.bits + 7) / 8);
}
void Op::set(cl_kernel kernel, int& at, const Sized& sized) { set_place(device, kernel, at, sized.place, sized.item); }
void Op::set(cl_kernel kernel, int& at, int32_t value) { set_bytes(kernel, at, sizeof(value), &value); }
void Op::set(cl_kernel kernel, int& at, int64_t value) { set_bytes(kernel, at, sizeof(value), &value); }
void Op::set(cl_kernel kernel, int& at, float value) { set_bytes(kernel, at, sizeof(value), &value); }
void Op::set(cl_kernel kernel, int& at, double value) { set_bytes(kernel, at, sizeof(value), &value); }
void Op::set(cl_kernel kernel, int& at, const Local& local) { set_bytes(kernel, at, local.bytes, nullptr); }
void Op::set(cl_kernel kernel, int& at, const Bytes& bytes) { set_bytes(kernel, at, bytes.size, bytes.data); }
void Op::set(cl_kernel kernel, int& at, const Value& value) { set_bytes(kernel, at, value.size, value.bytes); }

void Op::enqueue(const Program::Kernel& kernel, const Extent& global, const Extent& local) {
  Grid sizes{}, groups{};
  size_t items = 1;
  for (int d = 0; d < global.dims; ++d) {
    // Never NULL: PoCL would compile again for each new size.
    groups[d] = std::max<size_t>(1, std::min(local.size[d], kernel.max_group / items));
    items *= groups[d];
    sizes[d] = (std::max<size_t>(1, global.size[d]) + groups[d] - 1) / groups[d] * groups[d];
  }
  const cl_int code = cl().EnqueueNDRangeKernel(stream.queue, kernel.handle, static_cast<cl_uint>(global.dims), nullptr,
                                                sizes.data(), groups.data(), 0, nullptr, nullptr);
  if (__builtin_expect(code != CL_SUCCESS, 0)) fail(code, std::string("launch of ") + instance_.registration->uniop);
  stream.queued();
}

}  // namespace ocl
