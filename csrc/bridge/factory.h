// New tensors on a device. All go through the caching allocator of the named device, whatever the current one is.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "bridge/allocator.h"
#include "bridge/device_context.h"

namespace fl::bridge {

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType type,
                                c10::Device device) {
  DeviceContext context(device);
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, device_allocator(),
                                                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type));
}

inline at::Tensor empty(at::IntArrayRef sizes, c10::ScalarType type, c10::Device device,
                        std::optional<c10::MemoryFormat> format = std::nullopt) {
  DeviceContext context(device);
  return at::Tensor(at::detail::empty_generic(sizes, device_allocator(),
                                              c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type, format));
}
inline at::Tensor empty_like(const at::Tensor& t, at::IntArrayRef sizes) {
  return empty(sizes, t.scalar_type(), t.device());
}
inline at::Tensor empty_like(const at::Tensor& t) {
  return empty(t.sizes(), t.scalar_type(), t.device(), t.suggest_memory_format());
}

// A structured kernel's output: strides empty = contiguous.
inline at::Tensor new_output(at::IntArrayRef sizes, at::IntArrayRef strides, const c10::TensorOptions& options) {
  const auto type = options.dtype().toScalarType();
  if (strides.empty()) return empty(sizes, type, options.device(), options.memory_format_opt());
  return empty_strided(sizes, strides, type, options.device());
}

// Resizes an out= argument as PyTorch does (with its warning) and gives it the wanted strides if it was resized.
void resize_out(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                const c10::TensorOptions& options);
void check_inplace(const at::Tensor& self, at::IntArrayRef sizes, const c10::TensorOptions& options);

}  // namespace fl::bridge
