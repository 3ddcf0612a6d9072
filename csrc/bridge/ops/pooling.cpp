// Pooling in two and three dimensions (one-dimensional pooling is composed of these by ATen).
#include <ATen/native/Pool.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_ops.h>
#include <ATen/ops/max_pool3d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool3d_with_indices_ops.h>
#include <torch/library.h>

#include "bridge/device_context.h"
#include "bridge/lower.h"
#include "bridge/same_device.h"
#include "lowerings.h"

namespace fl::bridge {

namespace {

// Kernels see [N, C, *spatial]; PyTorch also allows [C, *spatial].
at::Tensor batched(const at::Tensor& t, int64_t spatial) { return t.dim() == spatial + 1 ? t.unsqueeze(0) : t; }

c10::DimVector spread(at::IntArrayRef values, int64_t spatial, at::IntArrayRef if_empty = {}) {
  if (values.empty()) values = if_empty;
  c10::DimVector out(values.begin(), values.end());
  while (static_cast<int64_t>(out.size()) < spatial) out.push_back(out.back());
  return out;
}

struct Window {
  int64_t spatial;
  c10::DimVector kernel, stride, padding;
  Window(int64_t spatial, at::IntArrayRef k, at::IntArrayRef s, at::IntArrayRef p)
      : spatial(spatial), kernel(spread(k, spatial)), stride(spread(s, spatial, kernel)), padding(spread(p, spatial)) {}
};

bool max_pool(const Window& w, const at::Tensor& self, at::IntArrayRef dilation, const at::Tensor& out,
              const at::Tensor& indices, int overload) {
  if (out.numel() == 0) return true;
  const at::Tensor x = batched(self, w.spatial), y = batched(out, w.spatial), i = batched(indices, w.spatial);
  return Call(Uniop::max_pool, self)
      .in(x)
      .out(y)
      .out(i)
      .attr(w.spatial)
      .attrs(w.kernel)
      .attrs(w.stride)
      .attrs(w.padding)
      .attrs(spread(dilation, w.spatial))
      .launch(self.scalar_type(), overload);
}

bool max_pool_backward(int64_t spatial, const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& grad_input,
                       int overload) {
  if (!has_kernel(Uniop::max_pool_backward, grad_input)) return false;
  if (grad.numel() == 0) return lower_fill(grad_input, 0);
  const at::Tensor g = batched(grad, spatial), i = batched(indices, spatial), out = batched(grad_input, spatial);
  return Call(Uniop::max_pool_backward, grad_input)
      .in(g)
      .in(i)
      .out(out)
      .attr(spatial)
      .launch(grad_input.scalar_type(), overload);
}

bool avg_pool(const Window& w, const at::Tensor& self, bool count_include_pad, std::optional<int64_t> divisor,
              const at::Tensor& out) {
  if (out.numel() == 0) return true;
  const at::Tensor x = batched(self, w.spatial), y = batched(out, w.spatial);
  return Call(Uniop::avg_pool, self)
      .in(x)
      .out(y)
      .attr(w.spatial)
      .attrs(w.kernel)
      .attrs(w.stride)
      .attrs(w.padding)
      .attr(count_include_pad)
      .attr(divisor.value_or(0))
      .launch(self.scalar_type());
}

bool avg_pool_backward(const Window& w, const at::Tensor& grad, bool count_include_pad, std::optional<int64_t> divisor,
                       const at::Tensor& grad_input) {
  if (!has_kernel(Uniop::avg_pool_backward, grad_input)) return false;
  if (grad.numel() == 0) return lower_fill(grad_input, 0);
  const at::Tensor g = batched(grad, w.spatial), out = batched(grad_input, w.spatial);
  return Call(Uniop::avg_pool_backward, grad_input)
      .in(g)
      .out(out)
      .attr(w.spatial)
      .attrs(w.kernel)
      .attrs(w.stride)
      .attrs(w.padding)
      .attr(count_include_pad)
      .attr(divisor.value_or(0))
      .launch(grad_input.scalar_type());
}

template <class Op>
at::Tensor adaptive(int64_t spatial, int overload, const at::Tensor& self, at::IntArrayRef output_size) {
  TORCH_CHECK(static_cast<int64_t>(output_size.size()) == spatial, "adaptive_avg_pool", spatial,
              "d: output_size must be ", spatial);
  TORCH_CHECK(self.dim() == spatial + 1 || self.dim() == spatial + 2, "adaptive_avg_pool", spatial, "d(): Expected ",
              spatial + 1, "D or ", spatial + 2, "D tensor, but got ", self.sizes());
  for (int64_t d = 1; d <= spatial + 1; ++d)
    TORCH_CHECK(self.size(-d) > 0, "adaptive_avg_pool", spatial,
                "d(): Expected input to have non-zero size for non-batch dimensions, but input has sizes ",
                self.sizes(), " with dimension ", self.dim() - d, " being empty");
  DeviceContext context(self.device());
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  for (int64_t d = 0; d < spatial; ++d) sizes[sizes.size() - spatial + d] = output_size[d];
  at::Tensor out = empty(sizes, self.scalar_type(), self.device(),
                         self.dim() == spatial + 2 ? self.suggest_memory_format() : c10::MemoryFormat::Contiguous);
  if (out.numel() == 0) return out;
  const at::Tensor x = batched(self, spatial), y = batched(out, spatial);
  if (!Call(Uniop::adaptive_avg_pool, self).in(x).out(y).attr(spatial).launch(self.scalar_type(), overload))
    return next_tier<Op>(self, output_size);
  return out;
}

template <class Op>
at::Tensor adaptive_backward(int64_t spatial, int overload, const at::Tensor& grad, const at::Tensor& self) {
  TORCH_CHECK(grad.dim() == self.dim(), "adaptive_avg_pool", spatial, "d_backward(): Expected dimensions ", self.dim(),
              " for `gradOutput` but got dimensions ", grad.dim());
  TORCH_CHECK(grad.scalar_type() == self.scalar_type(), "expected dtype ", self.scalar_type(),
              " for `grad_output` but got dtype ", grad.scalar_type());
  DeviceContext context(self.device());
  at::Tensor out = empty(self.sizes(), self.scalar_type(), self.device(),
                         self.dim() == spatial + 2 ? self.suggest_memory_format() : c10::MemoryFormat::Contiguous);
  if (out.numel() == 0) return out;
  if (grad.numel() == 0) return lower_fill(out, 0), out;
  const at::Tensor g = batched(grad, spatial), y = batched(out, spatial);
  if (!Call(Uniop::adaptive_avg_pool_backward, self).in(g).out(y).attr(spatial).launch(self.scalar_type(), overload))
    return next_tier<Op>(grad, self);
  return out;
}

std::tuple<at::Tensor, at::Tensor> max_pool3d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                                              at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  static const int overload = overload_id("aten::max_pool3d_with_indices");
  const auto fallback = [&] {
    return next_tier<at::_ops::max_pool3d_with_indices>(self, kernel, stride, padding, dilation, ceil_mode);
  };
  const bool plain = (self.dim() == 4 || self.dim() == 5) && (kernel.size() == 1 || kernel.size() == 3) &&
                     (stride.size() <= 1 || stride.size() == 3) && (padding.size() == 1 || padding.size() == 3) &&
                     (dilation.size() == 1 || dilation.size() == 3);
  if (!plain || self.numel() == 0 || !has_kernel(Uniop::max_pool, self))
    return fallback();  // the CPU kernel words the errors
  const Window w(3, kernel, stride, padding);
  const auto d = spread(dilation, 3);
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  for (int64_t i = 0; i < 3; ++i) {
    if (w.stride[i] < 1 || w.kernel[i] < 1 || d[i] < 1 || w.padding[i] < 0 ||
        w.padding[i] > ((w.kernel[i] - 1) * d[i] + 1) / 2)
      return fallback();
    auto& size = sizes[sizes.size() - 3 + i];
    size = at::native::pooling_output_shape<int64_t>(size, w.kernel[i], w.padding[i], w.stride[i], d[i], ceil_mode);
    if (size < 1) return fallback();
  }
  DeviceContext context(self.device());
  const auto format = self.dim() == 5 ? self.suggest_memory_format() : c10::MemoryFormat::Contiguous;
  at::Tensor out = empty(sizes, self.scalar_type(), self.device(), format),
             indices = empty(sizes, at::kLong, self.device(), format);
  return max_pool(w, self, dilation, out, indices, overload) ? std::make_tuple(out, indices) : fallback();
}

at::Tensor max_pool3d_backward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                               at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                               bool ceil_mode, const at::Tensor& indices) {
  static const int overload = overload_id("aten::max_pool3d_with_indices_backward");
  DeviceContext context(self.device());
  at::Tensor out = empty(self.sizes(), self.scalar_type(), self.device(),
                         self.dim() == 5 ? self.suggest_memory_format() : c10::MemoryFormat::Contiguous);
  if (out.numel() == 0 || max_pool_backward(3, grad, indices, out, overload)) return out;
  return next_tier<at::_ops::max_pool3d_with_indices_backward>(grad, self, kernel, stride, padding, dilation, ceil_mode,
                                                               indices);
}

}  // namespace

namespace lower {

bool max_pool2d_with_indices(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef dilation, bool, const at::Tensor& out,
                             const at::Tensor& indices) {
  return max_pool(Window(2, kernel, stride, padding), self, dilation, out, indices, kUncounted);
}
bool max_pool2d_with_indices_backward(const at::Tensor& grad, const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
                                      at::IntArrayRef, at::IntArrayRef, bool, const at::Tensor& indices,
                                      const at::Tensor& grad_input) {
  return max_pool_backward(2, grad, indices, grad_input, kUncounted);
}
bool avg_pool2d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding, bool,
                bool count_include_pad, std::optional<int64_t> divisor, const at::Tensor& out) {
  return avg_pool(Window(2, kernel, stride, padding), self, count_include_pad, divisor, out);
}
bool avg_pool3d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding, bool,
                bool count_include_pad, std::optional<int64_t> divisor, const at::Tensor& out) {
  return avg_pool(Window(3, kernel, stride, padding), self, count_include_pad, divisor, out);
}
bool avg_pool2d_backward(const at::Tensor& grad, const at::Tensor&, at::IntArrayRef kernel, at::IntArrayRef stride,
                         at::IntArrayRef padding, bool, bool count_include_pad, std::optional<int64_t> divisor,
                         const at::Tensor& grad_input) {
  return avg_pool_backward(Window(2, kernel, stride, padding), grad, count_include_pad, divisor, grad_input);
}
bool avg_pool3d_backward(const at::Tensor& grad, const at::Tensor&, at::IntArrayRef kernel, at::IntArrayRef stride,
                         at::IntArrayRef padding, bool, bool count_include_pad, std::optional<int64_t> divisor,
                         const at::Tensor& grad_input) {
  return avg_pool_backward(Window(3, kernel, stride, padding), grad, count_include_pad, divisor, grad_input);
}

}  // namespace lower

#define OVERLOAD(name)                                \
  ([] {                                               \
    static const int id = overload_id("aten::" name); \
    return id;                                        \
  }())

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_adaptive_avg_pool2d", [](const at::Tensor& self, at::IntArrayRef size) {
    return adaptive<at::_ops::_adaptive_avg_pool2d>(2, OVERLOAD("_adaptive_avg_pool2d"), self, size);
  });
  m.impl("_adaptive_avg_pool3d", [](const at::Tensor& self, at::IntArrayRef size) {
    return adaptive<at::_ops::_adaptive_avg_pool3d>(3, OVERLOAD("_adaptive_avg_pool3d"), self, size);
  });
  m.impl("_adaptive_avg_pool2d_backward", [](const at::Tensor& grad, const at::Tensor& self) {
    SameDevice("aten::_adaptive_avg_pool2d_backward")(grad, "grad_output")(self, "self");
    return adaptive_backward<at::_ops::_adaptive_avg_pool2d_backward>(2, OVERLOAD("_adaptive_avg_pool2d_backward"),
                                                                      grad, self);
  });
  m.impl("_adaptive_avg_pool3d_backward", [](const at::Tensor& grad, const at::Tensor& self) {
    SameDevice("aten::_adaptive_avg_pool3d_backward")(grad, "grad_output")(self, "self");
    return adaptive_backward<at::_ops::_adaptive_avg_pool3d_backward>(3, OVERLOAD("_adaptive_avg_pool3d_backward"),
                                                                      grad, self);
  });
  m.impl("max_pool3d_with_indices", max_pool3d);
  m.impl("max_pool3d_with_indices_backward", max_pool3d_backward);
}

}  // namespace fl::bridge
