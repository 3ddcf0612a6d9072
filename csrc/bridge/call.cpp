// Launching UniOps: the hot path. See call.h.
#include "bridge/call.h"

#include <ATen/Dispatch.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include "bridge/allocator.h"
#include "bridge/debug.h"
#include "bridge/settings.h"
#include "core/error.h"
#include "core/make_room.h"

namespace fl::bridge {

namespace {

// Frees temporaries of the current stream when the call was queued: the allocator reuses them in stream order.
struct Temporaries {
  c10::SmallVector<Block*, 4> blocks;
  ~Temporaries() {
    for (Block* b : blocks) b->device->allocator->free(b);
  }
};

uint32_t alignment_of(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address) | 4096u;
  return static_cast<uint32_t>(value & (~value + 1));
}

template <class T>
void store(fl_tensor& t, T value) {
  static_assert(sizeof(T) <= sizeof(t.immediate));
  std::memcpy(t.immediate, &value, sizeof(T));
}

// value as PyTorch would cast it to `type`.
void store_immediate(fl_tensor& t, const c10::Scalar& value, c10::ScalarType type) {
  t.flags = FL_TENSOR_IMMEDIATE;
  t.dtype = abi_dtype(type);
  t.alignment = 16;
  using S = c10::ScalarType;
  auto integer = [&] {
    return value.isFloatingPoint() ? static_cast<int64_t>(value.toDouble())
           : value.isComplex()     ? static_cast<int64_t>(value.toComplexDouble().real())
           : value.isBoolean()     ? static_cast<int64_t>(value.toBool())
                                   : value.toLong();
  };
  auto real = [&] { return value.isComplex() ? value.toComplexDouble().real() : value.toDouble(); };
  switch (type) {
    case S::Bool:
      store(t, static_cast<uint8_t>(value.isComplex() ? value.toComplexDouble() != 0.0 : value.toDouble() != 0));
      break;
    case S::Byte:
      store(t, static_cast<uint8_t>(integer()));
      break;
    case S::Char:
      store(t, static_cast<int8_t>(integer()));
      break;
    case S::Short:
      store(t, static_cast<int16_t>(integer()));
      break;
    case S::Int:
      store(t, static_cast<int32_t>(integer()));
      break;
    case S::Half:
      store(t, c10::Half(static_cast<float>(real())));
      break;
    case S::BFloat16:
      store(t, c10::BFloat16(static_cast<float>(real())));
      break;
    case S::Float:
      store(t, static_cast<float>(real()));
      break;
    case S::Double:
      store(t, real());
      break;
    case S::ComplexFloat:
      store(t, c10::complex<float>(value.toComplexDouble()));
      break;
    case S::ComplexDouble:
      store(t, value.toComplexDouble());
      break;
    default:
      store(t, integer());
      break;
  }
}

c10::Scalar read_scalar(const void* data, c10::ScalarType type) {
  auto as = [data](auto zero) {
    std::memcpy(&zero, data, sizeof(zero));
    return zero;
  };
  using S = c10::ScalarType;
  switch (type) {
    case S::Bool:
      return c10::Scalar(as(uint8_t{}) != 0);
    case S::Byte:
      return c10::Scalar(as(uint8_t{}));
    case S::Char:
      return c10::Scalar(as(int8_t{}));
    case S::Short:
      return c10::Scalar(as(int16_t{}));
    case S::Int:
      return c10::Scalar(as(int32_t{}));
    case S::Half:
      return c10::Scalar(static_cast<float>(as(c10::Half{})));
    case S::BFloat16:
      return c10::Scalar(static_cast<float>(as(c10::BFloat16{})));
    case S::Float:
      return c10::Scalar(as(float{}));
    case S::Double:
      return c10::Scalar(as(double{}));
    case S::ComplexFloat:
      return c10::Scalar(as(c10::complex<float>{}));
    case S::ComplexDouble:
      return c10::Scalar(as(c10::complex<double>{}));
    default:
      return c10::Scalar(as(int64_t{}));
  }
}

bool constrained(const fl_kernel& k) {
  return (k.flags | static_cast<uint32_t>(k.max_ndim) | k.alignment) != 0 || k.max_numel != 0;
}

// An iterator's operands in the ABI's terms: dims reversed (fastest last), strides in elements.
class IterOperands {
 public:
  explicit IterOperands(at::TensorIteratorBase& iter) : iter_(iter), ndim_(iter.ndim()) {
    const auto shape = iter.shape();
    dims_.resize(static_cast<size_t>(ndim_) * (2 + iter.ntensors()));
    for (int d = 0; d < ndim_; ++d) dims_[d] = shape[ndim_ - 1 - d];
  }

  const int64_t* sizes() const { return dims_.data(); }
  int64_t* scratch() { return dims_.data() + static_cast<size_t>(ndim_) * (1 + iter_.ntensors()); }

  fl_tensor describe(Device& device, int arg) {
    fl_tensor t;
    const auto strides = iter_.strides(arg);
    const auto size = static_cast<int64_t>(iter_.element_size(arg));
    int64_t* out = dims_.data() + static_cast<size_t>(ndim_) * (1 + arg);
    for (int d = 0; d < ndim_; ++d) out[d] = strides[ndim_ - 1 - d] / size;
    t.sizes = dims_.data();
    t.strides = out;
    t.ndim = ndim_;
    t.dtype = abi_dtype(iter_.dtype(arg));
    t.flags = 0;
    void* address = iter_.data_ptr(arg);
    t.memory = device.has(FL_CAP_POINTERS) ? fl_memory{address, nullptr, 0}
                                           : memory_of(device, iter_.tensor_base(arg), address);
    t.alignment = alignment_of(address);
    return t;
  }

 private:
  at::TensorIteratorBase& iter_;
  int ndim_;
  c10::SmallVector<int64_t, 40> dims_;
};

// A dense temporary with `like`'s sizes.
fl_tensor temporary(Device& device, Stream& stream, const fl_tensor& like, const int64_t* dense_strides,
                    c10::ScalarType type, Temporaries& keep) {
  int64_t numel = 1;
  for (int d = 0; d < like.ndim; ++d) numel *= like.sizes[d];
  Block* block = device.allocator->allocate(static_cast<uint64_t>(numel) * c10::elementSize(type), stream);
  keep.blocks.push_back(block);
  fl_tensor t = like;
  t.memory = memory_at(*block, block->ptr);
  t.strides = dense_strides;
  t.dtype = abi_dtype(type);
  t.flags = 0;
  t.alignment = alignment_of(block->ptr);
  return t;
}

void dense_strides(const int64_t* sizes, int ndim, int64_t* out) {
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    out[d] = step;
    step *= sizes[d];
  }
}

c10::ScalarType out_type(OutType kind, c10::ScalarType compute, c10::ScalarType actual) {
  switch (kind) {
    case OutType::Same:
      return compute;
    case OutType::Bool:
      return c10::ScalarType::Bool;
    case OutType::Int64:
      return c10::ScalarType::Long;
    default:
      return actual;
  }
}

}  // namespace

Settings settings;
thread_local int forbid_cpu_depth = 0;

fl_scalar scalar(const c10::Scalar& value) {
  if (value.isBoolean()) return scalar(value.toBool());
  if (value.isFloatingPoint()) return scalar(value.toDouble());
  if (value.isComplex()) {
    fl_scalar s{};
    s.tag = FL_SCALAR_COMPLEX;
    s.v.c[0] = value.toComplexDouble().real();
    s.v.c[1] = value.toComplexDouble().imag();
    return s;
  }
  return scalar(value.toLong());
}

fl_memory memory_of(Device& device, const at::TensorBase& tensor, void* address) {
  if (device.has(FL_CAP_POINTERS)) return fl_memory{address, nullptr, 0};
  const c10::Storage& storage = tensor.storage();
  if (const Block* block = block_of(storage.data_ptr())) return memory_at(*block, address);
  if (storage.nbytes() == 0) return {};  // no elements, so no place
  return device.allocator->locate(address);
}

Call& Call::absent(Operands& list) {
  fl_tensor t{};
  t.flags = FL_TENSOR_ABSENT;
  list.push_back(t);
  return *this;
}

Call& Call::operand(Operands& list, const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
  TORCH_CHECK(t.is_privateuseone() && t.device().index() == device_.index,
              "Expected all tensors to be on the same device, but found at least two devices, ", t.device(),
              " and ", c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device_.index)), "! (in ", uniop_name(static_cast<int>(uniop_)), ")");
  list.emplace_back();
  fl_tensor& d = list.back();
  void* address =
      static_cast<char*>(t.storage().mutable_data()) + t.storage_offset() * static_cast<int64_t>(t.itemsize());
  d.memory = memory_of(device_, t, address);
  d.sizes = sizes.data();
  d.strides = strides.data();
  d.ndim = static_cast<int32_t>(sizes.size());
  d.dtype = abi_dtype(t.scalar_type());
  d.flags = 0;
  d.alignment = alignment_of(address);
  return *this;
}

Call& Call::immediate(const c10::Scalar& value, c10::ScalarType type) {
  fl_tensor t{};
  store_immediate(t, value, type);
  inputs_.push_back(t);
  return *this;
}

bool Call::launch(c10::ScalarType in, c10::ScalarType out, int overload) {
  return bridge::launch(device_, static_cast<int>(uniop_), to_dtype(in), to_dtype(out), inputs_.data(),
                        static_cast<int>(inputs_.size()), outputs_.data(), static_cast<int>(outputs_.size()),
                        attrs_.data(), static_cast<int>(attrs_.size()), overload);
}

bool launch(Device& device, int uniop, DType in, DType out, fl_tensor* inputs, int num_inputs, fl_tensor* outputs,
            int num_outputs, const fl_scalar* attrs, int num_attrs, int overload) {
  const Kernel* kernel = device.kernel(uniop, in, out);
  if (kernel == nullptr) return false;
  Stream& stream = current_stream(device.index);
  fl_op_call call;
  call.struct_size = sizeof(call);
  call.device = device.ordinal;
  call.stream = stream.handle;
  call.kernel_data = kernel->k.data;
  call.inputs = inputs;
  call.outputs = outputs;
  call.attrs = attrs;
  call.num_inputs = num_inputs;
  call.num_outputs = num_outputs;
  call.num_attrs = num_attrs;
  if (__builtin_expect(constrained(kernel->k), 0)) {
    if (!launch_legalized(device, *kernel, call)) return false;
  } else {
    const fl_status status = with_room(device, [&] { return kernel->k.fn(&call); });
    if (__builtin_expect(status != FL_STATUS_OK, 0)) {
      if (status == FL_STATUS_UNIMPLEMENTED) return false;
      raise_status(*device.adapter, device.index, status,
                   debugging() ? operation_name(uniop, overload).c_str() : uniop_name(uniop));
    }
    if (debugging()) debug_launch(stream, call, uniop, overload);
  }
  stream.note(uniop);
  if (overload >= 0) count(device.index, overload, Tier::Native);
  return true;
}

bool copy_operand(Device& device, Stream&, const fl_tensor& src, const fl_tensor& dst) {
  auto type = [](const fl_dtype& t) {
    for (int i = 0; i < kNumDTypes; ++i) {
      const fl_dtype other = to_abi(static_cast<DType>(i));
      if (other.code == t.code && other.bits == t.bits) return static_cast<DType>(i);
    }
    return DType::Unsupported;
  };
  fl_tensor in = src, out = dst;
  return launch(device, static_cast<int>(Uniop::copy), type(src.dtype), type(dst.dtype), &in, 1, &out, 1, nullptr, 0,
                kUncounted);
}

bool lower_elementwise(const Elementwise& what, at::TensorIteratorBase& iter, const fl_scalar* attrs, int num_attrs) {
  if (iter.numel() == 0) return true;
  const int num_inputs = iter.ninputs();
  TORCH_INTERNAL_ASSERT(iter.noutputs() == 1 && num_inputs <= 8);
  Device& device = fl::device(iter.device(0).index());
  c10::ScalarType compute = what.compute;
  if (compute == c10::ScalarType::Undefined) compute = num_inputs == 0 ? iter.dtype(0) : iter.common_dtype();
  const c10::ScalarType actual = iter.dtype(0), wanted = out_type(what.out, compute, actual);
  if (device.kernel(static_cast<int>(what.uniop), to_dtype(compute), to_dtype(wanted)) == nullptr) return false;

  IterOperands operands(iter);
  Temporaries temporaries;
  Stream& stream = current_stream(device.index);
  auto dense = [&, made = false]() mutable -> const int64_t* {
    if (!made) dense_strides(operands.sizes(), iter.ndim(), operands.scratch());
    made = true;
    return operands.scratch();
  };
  fl_tensor inputs[8];
  for (int i = 0; i < num_inputs; ++i) {
    const int arg = 1 + i, slot = what.swap && i < 2 ? 1 - i : i;
    const bool keep = (what.keep_dtype_mask >> i) & 1u;
    const c10::ScalarType type = keep ? iter.dtype(arg) : compute;
    if (iter.is_cpu_scalar(arg)) {
      store_immediate(inputs[slot], read_scalar(iter.data_ptr(arg), iter.dtype(arg)), type);
      inputs[slot].sizes = inputs[slot].strides = nullptr;
      inputs[slot].ndim = 0;
      inputs[slot].memory = {};
      continue;
    }
    inputs[slot] = operands.describe(device, arg);
    if (__builtin_expect(iter.dtype(arg) != type, 0)) {
      const fl_tensor cast = temporary(device, stream, inputs[slot], dense(), type, temporaries);
      if (!copy_operand(device, stream, inputs[slot], cast)) return false;
      inputs[slot] = cast;
    }
  }
  fl_tensor out = operands.describe(device, 0);
  const fl_tensor target = out;
  if (__builtin_expect(actual != wanted, 0)) out = temporary(device, stream, out, dense(), wanted, temporaries);
  if (!launch(device, static_cast<int>(what.uniop), to_dtype(compute), to_dtype(wanted), inputs, num_inputs, &out, 1,
              attrs, num_attrs, what.overload)) {
    return false;
  }
  return actual == wanted || copy_operand(device, stream, out, target);
}

bool lower_copy(at::TensorIteratorBase& iter, int overload) {
  Device& device = fl::device(iter.device(0).index());
  IterOperands operands(iter);
  fl_tensor out = operands.describe(device, 0), in = operands.describe(device, 1);
  return launch(device, static_cast<int>(Uniop::copy), to_dtype(iter.dtype(1)), to_dtype(iter.dtype(0)), &in, 1, &out,
                1, nullptr, 0, overload);
}

bool lower_reduction(Uniop uniop, at::TensorIteratorBase& iter, c10::ScalarType in, c10::ScalarType out,
                     const fl_scalar* attrs, int num_attrs, int overload) {
  Device& device = fl::device(iter.device(0).index());
  IterOperands operands(iter);
  const int num_outputs = iter.noutputs(), ndim = iter.ndim();
  fl_tensor outputs[2];
  int64_t* out_sizes = operands.scratch();
  for (int i = 0; i < num_outputs; ++i) {
    outputs[i] = operands.describe(device, i);
    for (int d = 0; d < ndim; ++d) out_sizes[d] = outputs[i].strides[d] == 0 ? 1 : operands.sizes()[d];
    outputs[i].sizes = out_sizes;
  }
  fl_tensor input = operands.describe(device, num_outputs);
  return launch(device, static_cast<int>(uniop), to_dtype(in), to_dtype(out), &input, 1, outputs, num_outputs, attrs,
                num_attrs, overload);
}

}  // namespace fl::bridge
