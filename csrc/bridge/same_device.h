// The check of a wrapper that all its tensors are on one device, as PyTorch's own wrappers for CUDA make it:
//   SameDevice("aten::mm")(self, "self")(mat2, "mat2");
// Counterpart for calls without a wrapper: device_check.h.
#pragma once
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

namespace fl::bridge {

// PyTorch's error. `argument` is on `found`, which is not `other`.
[[noreturn]] inline void raise_two_devices(const char* overload, const char* argument, c10::Device found,
                                           c10::Device other) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", found, " and ",
              other, "! (when checking argument ", argument, " of ", overload, ")");
}

class SameDevice {
 public:
  explicit SameDevice(const char* overload) : overload_(overload) {}

  SameDevice& operator()(const at::Tensor& t, const char* argument) {
    if (!t.defined()) return *this;
    if (!first_) first_ = t.device();
    if (__builtin_expect(*first_ != t.device(), 0)) raise_two_devices(overload_, argument, *first_, t.device());
    return *this;
  }
  SameDevice& operator()(const std::optional<at::Tensor>& t, const char* argument) {
    return t ? (*this)(*t, argument) : *this;
  }
  SameDevice& operator()(at::ITensorListRef tensors, const char* argument) {
    for (const at::Tensor& t : tensors) (*this)(t, argument);
    return *this;
  }
  SameDevice& operator()(const c10::List<std::optional<at::Tensor>>& tensors, const char* argument) {
    for (const std::optional<at::Tensor>& t : tensors) (*this)(t, argument);
    return *this;
  }

 private:
  const char* overload_;
  std::optional<c10::Device> first_;
};

}  // namespace fl::bridge
