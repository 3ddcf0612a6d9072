// nonzero and masked_select: results whose length depends on values. The kernel fills a buffer for the longest result
// and counts; the host waits for the count.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/masked_select_ops.h>
#include <ATen/ops/nonzero_ops.h>
#include <torch/library.h>

#include "bridge/ops/operands.h"

namespace fl::bridge {

namespace {

// The first rows of a buffer as a tensor of their own: a view would keep the whole buffer alive.
at::Tensor first_rows(const at::Tensor& buffer, int64_t count) {
  if (count == buffer.size(0)) return buffer;
  at::DimVector sizes(buffer.sizes());
  sizes[0] = count;
  at::Tensor result = empty_like(buffer, sizes);
  if (count > 0) result.copy_(buffer.narrow(0, 0, count));
  return result;
}

// nullopt: the chip has no kernel.
std::optional<at::Tensor> find_nonzero(const at::Tensor& self, int overload) {
  if (self.numel() == 0) {
    count_native_call(self, overload);
    return empty({0, self.dim()}, c10::kLong, self.device());
  }
  at::Tensor buffer = empty({self.numel(), std::max<int64_t>(self.dim(), 1)}, c10::kLong, self.device());
  const at::Tensor count = empty({}, c10::kLong, self.device());
  Call call(Uniop::nonzero, self);
  in_along(call, self);
  if (!call.out(buffer).out(count).launch(self.scalar_type(), c10::kLong, overload)) return std::nullopt;
  const int64_t found = count.item<int64_t>();
  if (self.dim() == 0) return empty({found, 0}, c10::kLong, self.device());
  return first_rows(buffer, found);
}

at::Tensor nonzero(const at::Tensor& self) {
  static const int overload = overload_id("aten::nonzero");
  const auto found = find_nonzero(self, overload);
  return found ? *found : next_tier<at::_ops::nonzero>(self);
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  static const int overload = overload_id("aten::nonzero.out");
  TORCH_CHECK(out.scalar_type() == c10::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type", out.scalar_type());
  check_out("nonzero", out, c10::kLong, self);
  at::assert_no_overlap(out, self);
  const auto found = find_nonzero(self, overload);
  if (!found) return next_tier<at::_ops::nonzero_out>(self, out);
  resize_to(out, found->sizes());
  out.copy_(*found);
  return out;
}

void check_masked_select(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_select: expected BoolTensor for mask");
  check_device("masked_select", "mask", mask, self);
}

std::optional<at::Tensor> select_masked(const at::Tensor& self, const at::Tensor& mask, int overload) {
  const auto [expanded_self, expanded_mask] = at::expand_outplace(self, mask, "masked_select");
  if (expanded_self->numel() == 0) {
    count_native_call(self, overload);
    return empty_like(self, {0});
  }
  const at::Tensor buffer = empty_like(self, {expanded_self->numel()});
  const at::Tensor count = empty({}, c10::kLong, self.device());
  Call call(Uniop::masked_select, self);
  in_along(call, *expanded_self);
  in_along(call, *expanded_mask);
  if (!call.out(buffer).out(count).launch(self.scalar_type(), overload)) return std::nullopt;
  return first_rows(buffer, count.item<int64_t>());
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  static const int overload = overload_id("aten::masked_select");
  check_masked_select(self, mask);
  const auto selected = select_masked(self, mask, overload);
  return selected ? *selected : next_tier<at::_ops::masked_select>(self, mask);
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  static const int overload = overload_id("aten::masked_select.out");
  check_masked_select(self, mask);
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  check_out("masked_select", out, self.scalar_type(), self);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const auto selected = select_masked(self, mask, overload);
  if (!selected) return next_tier<at::_ops::masked_select_out>(self, mask, out);
  resize_to(out, selected->sizes());
  out.copy_(*selected);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", nonzero);
  m.impl("nonzero.out", nonzero_out);
  m.impl("masked_select", masked_select);
  m.impl("masked_select.out", masked_select_out);
}

}  // namespace fl::bridge
