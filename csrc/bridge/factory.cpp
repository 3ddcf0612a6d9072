// empty, resize_, set_, views and the other operators that move no data. Registered for PrivateUse1.
#include "bridge/factory.h"

#include <ATen/InferSize.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <torch/library.h>

#include "bridge/hooks.h"

namespace fl::bridge {

namespace {

c10::Device resolve(std::optional<c10::Device> device) {
  const c10::Device d = device.value_or(c10::Device(c10::kPrivateUse1));
  const auto index = d.has_index() ? d.index() : static_cast<c10::DeviceIndex>(current_device());
  fl::device(index);  // raises for a device that does not exist
  return c10::Device(c10::kPrivateUse1, index);
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::kStrided) == c10::kStrided,
                              "fl devices have strided tensors only, not layout ", *layout,
                              "; make the tensor on the CPU");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty_memory_format(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin_memory);
  return empty(size, dtype_or_default(dtype), resolve(device), format);
}

at::Tensor empty_strided_op(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                            std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                            std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  return empty_strided(size, stride, dtype_or_default(dtype), resolve(device));
}

void grow_storage(const at::Tensor& self, int64_t size_bytes) {
  const auto& storage = self.storage();
  if (static_cast<int64_t>(storage.nbytes()) < size_bytes) {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, static_cast<size_t>(size_bytes));
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  DeviceContext context(self.device());
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    const auto itemsize = static_cast<int64_t>(self.itemsize());
    impl->set_sizes_contiguous(size);
    if (impl->numel() > 0) grow_storage(self, (impl->storage_offset() + impl->numel()) * itemsize);
  }
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                               c10::IntArrayRef stride) {
  DeviceContext context(self.device());
  at::native::checkSetStorage(self, source, offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  std::optional<c10::IntArrayRef> strides = stride.data() != nullptr ? std::make_optional(stride) : std::nullopt;
  if (strides)
    impl->set_sizes_and_strides(size, *strides);
  else
    impl->set_sizes_contiguous(size);
  if (self.numel() > 0) {
    const auto bytes =
        at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(offset));
    grow_storage(self, static_cast<int64_t>(bytes));
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (!self.is_same(source))
    set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  DeviceContext context(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true);
  return set_storage_offset(self, std::move(storage), 0, {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  static_cast<c10::DeviceAllocator*>(device_allocator())->recordStream(self.storage().data_ptr(), stream);
}

// Strided tensors of any device may take each other's place in Module.to(): parameters stay the same Python objects, so
// an optimizer made before .to() keeps updating them.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& t) {
    return t.layout() == c10::kStrided && !t.is_quantized() && (t.is_cpu() || t.is_privateuseone());
  };
  return dense(self) && dense(from);
}

}  // namespace

void resize_out(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                const c10::TensorOptions& options) {
  TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(), ", but got ",
              out.dtype(), " instead");
  TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ", options.device(), ", but got ",
              out.device(), " instead");
  const bool resized = at::native::resize_output(out, sizes);
  if (!resized) return;
  if (!strides.empty())
    out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  else if (options.memory_format_opt())
    out.unsafeGetTensorImpl()->empty_tensor_restride(*options.memory_format_opt());
}

void check_inplace(const at::Tensor& self, at::IntArrayRef sizes, const c10::TensorOptions& options) {
  TORCH_CHECK(options.dtype() == self.dtype(), "Bad in-place call: input tensor dtype ", self.dtype(),
              " and output tensor dtype ", options.dtype(), " should match");
  TORCH_CHECK(options.device() == self.device(), "Bad in-place call: input tensor device ", self.device(),
              " and output tensor device ", options.device(), " should match");
  TORCH_CHECK(sizes == self.sizes(), "Bad in-place call: input tensor size ", self.sizes(), " and output tensor size ",
              sizes, " should match");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided_op);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("record_stream", record_stream);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("view", [](const at::Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); });
  m.impl("as_strided",
         [](const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
           return at::native::as_strided_tensorimpl(self, size, stride, offset);
         });
  m.impl("_reshape_alias", [](const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
    return at::native::_reshape_alias(self, size, stride);
  });
  m.impl("unfold", [](const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
    return at::native::unfold(self, dim, size, step);
  });
  m.impl("view_as_real", [](const at::Tensor& self) { return at::native::view_as_real(self); });
  m.impl("view_as_complex", [](const at::Tensor& self) { return at::native::view_as_complex(self); });
}

}  // namespace fl::bridge
