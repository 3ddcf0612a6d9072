// Whether an operator's tensors may be on several devices, by PyTorch's own list (native_functions.yaml), for calls that
// no native kernel took: the tiers after native would copy whatever they are given. Native calls check in Call and in
// TensorIterator.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace fl::bridge {

enum class DeviceRule : uint8_t {
  Same,         // every tensor on one device
  SeveralOfOurs,  // equal(): the answer is the host's, so tensors of several fl devices are compared
  HostScalars,  // as TensorIterator: tensors of the CPU without dimensions are values; indices may be on the CPU
  Custom        // not PyTorch's operator: what its tensors on the CPU are for is its own affair
};

// "aten::add.Tensor".
DeviceRule device_rule(const std::string& overload);

// True for an overload whose registration only checks its operands and then calls PyTorch's composite kernel: it is no
// way to run the operator.
bool only_checked(const std::string& overload);

// The device that a call runs on: its tensors' one, else that of its device argument, else the current one.
// Raises PyTorch's error, which names two of them, if the rule does not allow them.
c10::Device operands_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack, DeviceRule rule);

// Calls visit(tensor) for each defined tensor of a value, also in lists.
template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) visit_tensors(item, visit);
  }
}

}  // namespace fl::bridge
