// Tensors made of a rule: arange, eye, linspace. Their functional forms are PyTorch's composites over these out= ones.
#include "bridge/ops/operands.h"

#include <ATen/Dispatch.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/eye_ops.h>
#include <ATen/ops/linspace_ops.h>
#include <torch/library.h>

namespace fl::bridge {

namespace {

// Runs launch(dense) with `out` seen as one dense dimension, through a temporary if it has other strides.
template <class Launch>
bool fill_flat(const at::Tensor& out, const Launch& launch) {
  if (out.is_contiguous()) return launch(out.view({-1}));
  const at::Tensor dense = empty({out.numel()}, out.scalar_type(), out.device());
  if (!launch(dense)) return false;
  out.copy_(dense.view(out.sizes()));
  return true;
}

// In the type PyTorch computes a range of `type` in: integers in int64, the rest in double.
fl_scalar range_scalar(const c10::Scalar& value, c10::ScalarType type) {
  return c10::isIntegralType(type, true) ? scalar(value.to<int64_t>()) : scalar(value.to<double>());
}

at::Tensor& arange_out(const c10::Scalar& start, const c10::Scalar& end, const c10::Scalar& step, at::Tensor& out) {
  static const int overload = overload_id("aten::arange.start_out");
  const c10::ScalarType type = out.scalar_type();
  int64_t size = 0;
  AT_DISPATCH_ALL_TYPES_AND2(c10::kHalf, c10::kBFloat16, type, "arange",
                             [&] { size = at::native::compute_arange_size<scalar_t>(start, end, step); });
  DeviceContext context(out.device());
  if (out.numel() != size) {
    if (out.numel() > 0) {
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
                 " which does not match the computed number of elements ", size,
                 ". Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor "
                 "of shape (",
                 size, ",).");
    }
    out.resize_({size});
  }
  if (size == 0) {
    count_native_call(out, overload);
    return out;
  }
  const bool done = fill_flat(out, [&](const at::Tensor& flat) {
    Call call(Uniop::arange, flat);
    return call.out(flat).attr(range_scalar(start, type)).attr(range_scalar(step, type)).launch(type, overload);
  });
  if (!done) return next_tier<at::_ops::arange_start_out>(start, end, step, out);
  return out;
}

at::Tensor& eye_m_out(int64_t n, int64_t m, at::Tensor& out) {
  static const int overload = overload_id("aten::eye.m_out");
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  DeviceContext context(out.device());
  out.resize_({n, m});
  if (out.numel() == 0) {
    count_native_call(out, overload);
    return out;
  }
  if (Call(Uniop::eye, out).out(out).launch(out.scalar_type(), overload)) return out;
  return next_tier<at::_ops::eye_m_out>(n, m, out);
}

// Counted as eye.m_out, which does the work.
at::Tensor& eye_out(int64_t n, at::Tensor& out) { return eye_m_out(n, n, out); }

at::Tensor& linspace_out(const c10::Scalar& start, const c10::Scalar& end, int64_t steps, at::Tensor& out) {
  static const int overload = overload_id("aten::linspace.out");
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  const c10::ScalarType type = out.scalar_type();
  DeviceContext context(out.device());
  if (out.numel() != steps) out.resize_({steps});
  if (steps == 0) {
    count_native_call(out, overload);
    return out;
  }
  if (c10::isComplexType(type) || type == c10::kBool || start.isComplex() || end.isComplex()) {
    return next_tier<at::_ops::linspace_out>(start, end, steps, out);
  }
  const bool done = fill_flat(out, [&](const at::Tensor& flat) {
    Call call(Uniop::linspace, flat);
    return call.out(flat).attr(range_scalar(start, type)).attr(range_scalar(end, type)).launch(type, overload);
  });
  if (!done) return next_tier<at::_ops::linspace_out>(start, end, steps, out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("arange.start_out", arange_out);
  m.impl("eye.out", eye_out);
  m.impl("eye.m_out", eye_m_out);
  m.impl("linspace.out", linspace_out);
}

}  // namespace fl::bridge
