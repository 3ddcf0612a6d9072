// Everything without a wrapper of its own arrives here, boxed, and takes the tiers after native. Also: tensors with
// lazy bits (conjugate, negative, zero), which PyTorch resolves by clone() and copy_() before an operator sees them.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include "bridge/route.h"
#include "core/device.h"

namespace fl::bridge {

namespace {

// A tensor of zeros without memory: autograd hands it on where a gradient is zero.
at::Tensor efficient_zero_tensor(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                 std::optional<at::Device> device, std::optional<bool>) {
  const auto index = device && device->has_index() ? device->index() : static_cast<c10::DeviceIndex>(current_device());
  at::native::ZeroTensorAllocator allocator(c10::Device(c10::kPrivateUse1, index));
  const auto keys =
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, &allocator, keys, dtype.value_or(c10::get_default_dtype_as_scalartype()),
                                   std::nullopt);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&route>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_efficientzerotensor", efficient_zero_tensor);
  // ATen's own kernel for every device refuses ours by name.
  m.impl("mode.values", torch::CppFunction::makeFromBoxedFunction<&route>());
  m.impl("conj_physical_", torch::CppFunction::makeFromBoxedFunction<&route>());
}

// copy_() resolves the bits itself, and resolving them before it would call copy_() again, for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_local_scalar_dense", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_local_scalar_dense", torch::CppFunction::makeFallthrough());
}

}  // namespace fl::bridge
