// Makes a device current for a scope. Every hand-registered kernel that allocates needs it: the storage must land on
// the tensor's device, not on the thread's current one.
#pragma once
#include <c10/core/Device.h>

#include "core/device.h"

namespace fl::bridge {

class DeviceContext {
 public:
  explicit DeviceContext(c10::Device device) {
    if (device.has_index() && device.is_privateuseone() && device.index() != current_device())
      previous_ = exchange_device(device.index());
  }
  ~DeviceContext() {
    if (previous_ >= 0) exchange_device(previous_);
  }
  DeviceContext(const DeviceContext&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace fl::bridge
