// Operands on several devices; see device_check.h. The list is generated from the installed torch.
#include "bridge/device_check.h"

#include <algorithm>
#include <cstring>

#include "bridge/same_device.h"
#include "core/device.h"
#include "device_checks.h"  // generated: kNoDeviceCheck, kOnlyChecked

namespace fl::bridge {

namespace {

// index and its like: "indices should be either on cpu or on the same device as the indexed tensor".
bool are_indices(const c10::Argument& argument) {
  static const auto type = c10::ListType::create(c10::OptionalType::create(c10::TensorType::get()));
  return *argument.type() == *type;
}

template <class List>
bool contains(const List& sorted, const std::string& name) {
  const auto less = [](const char* a, const char* b) { return std::strcmp(a, b) < 0; };
  return std::binary_search(std::begin(sorted), std::end(sorted), name.c_str(), less);
}

}  // namespace

bool only_checked(const std::string& overload) { return contains(kOnlyChecked, overload); }

DeviceRule device_rule(const std::string& overload) {
  if (overload.rfind("aten::", 0) != 0) return DeviceRule::Custom;
  if (overload == "aten::equal") return DeviceRule::SeveralOfOurs;
  return contains(kNoDeviceCheck, overload) ? DeviceRule::HostScalars : DeviceRule::Same;
}

c10::Device operands_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack, DeviceRule rule) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(stack, arguments.size());
  std::optional<c10::Device> first, ours;
  for (size_t i = 0; i < arguments.size(); ++i)
    visit_tensors(values[i], [&](const at::Tensor& t) {
      const c10::Device device = t.device();
      if (!ours && device.is_privateuseone()) ours = device;
      if (device.is_cpu()) {
        if (rule == DeviceRule::Custom) return;
        if (rule == DeviceRule::HostScalars && (t.dim() == 0 || are_indices(arguments[i]))) return;
      }
      if (!first) first = device;
      if (rule == DeviceRule::SeveralOfOurs && first->type() == device.type()) return;
      if (*first != device)
        raise_two_devices(toString(op.operator_name()).c_str(), arguments[i].name().c_str(), *first, device);
    });
  if (ours) return *ours;
  for (const c10::IValue& value : values)
    if (value.isDevice() && value.toDevice().is_privateuseone() && value.toDevice().has_index())
      return value.toDevice();
  return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device()));
}

}  // namespace fl::bridge
