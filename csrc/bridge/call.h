// Builds one fl_op_call from tensors or a TensorIterator and launches it on the operands' device and current stream.
// launch() returns false when the chip has no kernel that fits: the caller goes to the next tier.
// Counterparts: core/device.h (kernel table), legalize.cpp (constraints), route.h (the next tiers).
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include "bridge/dtype.h"
#include "core/allocator.h"
#include "core/counters.h"
#include "uniops.h"  // generated: enum Uniop

namespace fl::bridge {

inline fl_scalar scalar(int64_t value) {
  fl_scalar s{};
  s.tag = FL_SCALAR_INT;
  s.v.i = value;
  return s;
}
inline fl_scalar scalar(int value) { return scalar(static_cast<int64_t>(value)); }
inline fl_scalar scalar(double value) {
  fl_scalar s{};
  s.tag = FL_SCALAR_FLOAT;
  s.v.f = value;
  return s;
}
inline fl_scalar scalar(bool value) {
  fl_scalar s{};
  s.tag = FL_SCALAR_BOOL;
  s.v.i = value;
  return s;
}
fl_scalar scalar(const c10::Scalar& value);
inline fl_scalar scalar(const std::optional<c10::Scalar>& value) { return value ? scalar(*value) : fl_scalar{}; }
inline fl_scalar scalar(const std::optional<double>& value) { return value ? scalar(*value) : fl_scalar{}; }

// What type a UniOp's first output has, given the computing type (uniops.yaml: `out`).
enum class OutType : uint8_t { Same, Bool, Int64, Any };

constexpr int kUncounted = -1;

class Call {
 public:
  Call(Uniop uniop, const at::Tensor& like) : Call(uniop, like.device().index()) {}
  Call(Uniop uniop, c10::DeviceIndex index) : uniop_(uniop), device_(device(index)) {}

  Call& in(const at::Tensor& t) { return operand(inputs_, t, t.sizes(), t.strides()); }
  Call& in(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return operand(inputs_, t, sizes, strides);
  }
  Call& in_optional(const at::Tensor& t) { return t.defined() ? in(t) : absent(inputs_); }
  Call& in_optional(const std::optional<at::Tensor>& t) { return t && t->defined() ? in(*t) : absent(inputs_); }
  Call& immediate(const c10::Scalar& value, c10::ScalarType type);
  Call& out(const at::Tensor& t) { return operand(outputs_, t, t.sizes(), t.strides()); }
  Call& out(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return operand(outputs_, t, sizes, strides);
  }
  Call& out_optional(const at::Tensor& t) { return t.defined() ? out(t) : absent(outputs_); }
  Call& raw_in(const fl_tensor& t) {
    inputs_.push_back(t);
    return *this;
  }
  Call& raw_out(const fl_tensor& t) {
    outputs_.push_back(t);
    return *this;
  }

  template <class T>
  Call& attr(const T& value) {
    attrs_.push_back(scalar(value));
    return *this;
  }
  Call& attr(const fl_scalar& value) {
    attrs_.push_back(value);
    return *this;
  }
  Call& attrs(at::IntArrayRef values) {
    for (int64_t v : values) attr(v);
    return *this;
  }

  // Types of the kernel table's key. Counts one native call of `overload` unless kUncounted.
  bool launch(c10::ScalarType in, c10::ScalarType out, int overload = kUncounted);
  bool launch(c10::ScalarType type, int overload = kUncounted) { return launch(type, type, overload); }

 private:
  using Operands = c10::SmallVector<fl_tensor, 6>;
  Call& operand(Operands& list, const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides);
  Call& absent(Operands& list);

  Uniop uniop_;
  Device& device_;
  Operands inputs_, outputs_;
  c10::SmallVector<fl_scalar, 8> attrs_;
};

// Launches what is fully described: shared by Call and lower_elementwise.
bool launch(Device& device, int uniop, DType in, DType out, fl_tensor* inputs, int num_inputs, fl_tensor* outputs,
            int num_outputs, const fl_scalar* attrs, int num_attrs, int overload);

fl_memory memory_of(Device& device, const at::TensorBase& tensor, void* address);

struct Elementwise {
  Uniop uniop;
  OutType out = OutType::Same;
  bool swap = false;             // ATen's iterator has the two inputs in the other order
  uint32_t keep_dtype_mask = 0;  // bit i: input i keeps its own type (where's condition)
  int overload = kUncounted;
  c10::ScalarType compute = c10::ScalarType::Undefined;  // else the iterator's common type, else the first input's
};

// One elementwise UniOp over a built iterator: one output, 0 to 8 inputs. CPU scalars become immediates; inputs are
// cast to the computing type and the result to the output's type where they differ. (No default arguments: a pointer
// with a default count would win over the array overload and drop the attributes.)
bool lower_elementwise(const Elementwise& what, at::TensorIteratorBase& iter, const fl_scalar* attrs, int num_attrs);
inline bool lower_elementwise(const Elementwise& what, at::TensorIteratorBase& iter) {
  return lower_elementwise(what, iter, nullptr, 0);
}
template <int N>
bool lower_elementwise(const Elementwise& what, at::TensorIteratorBase& iter, const fl_scalar (&attrs)[N]) {
  return lower_elementwise(what, iter, attrs, N);
}
// The copy UniOp over (output, input): converts the input's type to the output's.
bool lower_copy(at::TensorIteratorBase& iter, int overload);
// Same for a reduction iterator (TensorIterator::reduce_op): one input, one or two outputs.
bool lower_reduction(Uniop uniop, at::TensorIteratorBase& iter, c10::ScalarType in, c10::ScalarType out,
                     const fl_scalar* attrs, int num_attrs, int overload);

// Legalisation (legalize.cpp): launches through dense copies where a constrained kernel needs them; false if it cannot.
bool launch_legalized(Device& device, const Kernel& kernel, fl_op_call call);
// Copies one described operand into another of the same sizes, converting types. False: no copy kernel.
bool copy_operand(Device& device, Stream& stream, const fl_tensor& src, const fl_tensor& dst);

}  // namespace fl::bridge
