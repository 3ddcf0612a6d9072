// Order: sort, topk, and looking up in sorted sequences: searchsorted, bucketize; and counting: bincount.
#define AT_PER_OPERATOR_HEADERS  // BucketizationUtils.h would include all operators
#include "bridge/ops/operands.h"

#include <ATen/native/BucketizationUtils.h>
#include <ATen/ops/bincount_ops.h>
#include <ATen/ops/bucketize_ops.h>
#include <ATen/ops/searchsorted_ops.h>
#include <torch/library.h>

#include "lowerings.h"

namespace fl::bridge {

namespace {

// ---- searchsorted: the sequence and the values dense and of one type

struct Search {
  at::Tensor sequence, values, sorter;
  bool right;
};

bool lower_search(const Search& what, const at::Tensor& out, int overload) {
  if (out.numel() == 0) {
    count_native_call(out, overload);
    return true;
  }
  if (what.sequence.numel() == 0) {
    DeviceContext context(out.device());
    out.zero_();
    count_native_call(out, overload);
    return true;
  }
  if (!has_kernel(Uniop::searchsorted, out, at::result_type(what.sequence, what.values), out.scalar_type()))
    return false;
  at::Tensor sequence = what.sequence, values = what.values,
             sorter = what.sorter.defined() ? what.sorter : at::Tensor();
  const c10::ScalarType type = at::result_type(sequence, values);
  sequence = sequence.to(type).contiguous();
  values = values.to(type).contiguous();
  if (sorter.defined()) sorter = sorter.contiguous();
  const at::Tensor dense = out.is_contiguous() ? out : empty(out.sizes(), out.scalar_type(), out.device());
  Call call(Uniop::searchsorted, out);
  call.in(sequence).in(values).in_optional(sorter).out(dense).attr(what.right);
  if (!call.launch(type, out.scalar_type(), overload)) return false;
  if (!dense.is_same(out)) out.copy_(dense);
  return true;
}

// PyTorch's checks, but for the sorter's values: the kernel checks those without a wait.
Search check_search(const at::Tensor& sequence, const at::Tensor& values, const at::Tensor& out, bool out_int32,
                    bool right, std::optional<std::string_view> side, const std::optional<at::Tensor>& sorter) {
  at::Tensor order = sorter.value_or(at::Tensor());
  at::native::searchsorted_pre_check(sequence, values, out, out_int32, right, side, at::Tensor());
  if (order.defined()) {
    TORCH_CHECK(order.device() == sequence.device(),
                "torch.searchsorted(): sorter and boundary tensors should have same device "
                "type, but got sorter tensor device type ",
                order.device(), " and input value tensor device type ", sequence.device());
    TORCH_CHECK(order.sizes() == sequence.sizes(),
                "torch.searchsorted(): boundary and sorter must have the same size, but got "
                "boundary tensor ",
                sequence.sizes(), "and got sorter tensor ", order.sizes());
    TORCH_CHECK(order.scalar_type() == c10::kLong,
                "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype ", order.scalar_type());
  }
  return {sequence, values, order, right || (side && *side == "right")};
}

at::Tensor new_positions(const at::Tensor& like, at::IntArrayRef sizes, bool out_int32) {
  return empty(sizes, out_int32 ? c10::kInt : c10::kLong, like.device());
}

using Side = std::optional<std::string_view>;
using Sorter = const std::optional<at::Tensor>&;

at::Tensor searchsorted(const at::Tensor& sequence, const at::Tensor& values, bool out_int32, bool right, Side side,
                        Sorter sorter) {
  static const int overload = overload_id("aten::searchsorted.Tensor");
  const at::Tensor out = new_positions(sequence, values.sizes(), out_int32);
  const Search what = check_search(sequence, values, out, out_int32, right, side, sorter);
  if (lower_search(what, out, overload)) return out;
  return next_tier<at::_ops::searchsorted_Tensor>(sequence, values, out_int32, right, side, sorter);
}

at::Tensor& searchsorted_out(const at::Tensor& sequence, const at::Tensor& values, bool out_int32, bool right,
                             Side side, Sorter sorter, at::Tensor& out) {
  static const int overload = overload_id("aten::searchsorted.Tensor_out");
  const Search what = check_search(sequence, values, out, out_int32, right, side, sorter);
  check_device("searchsorted", "out", out, sequence);
  resize_to(out, values.sizes());
  if (!lower_search(what, out, overload)) {
    return next_tier<at::_ops::searchsorted_Tensor_out>(sequence, values, out_int32, right, side, sorter, out);
  }
  return out;
}

at::Tensor searchsorted_scalar(const at::Tensor& sequence, const c10::Scalar& value, bool out_int32, bool right,
                               Side side, Sorter sorter) {
  return searchsorted(sequence, at::native::searchsorted_scalar_tensor(value, sequence.device()), out_int32, right,
                      side, sorter);
}

at::Tensor& searchsorted_scalar_out(const at::Tensor& sequence, const c10::Scalar& value, bool out_int32, bool right,
                                    Side side, Sorter sorter, at::Tensor& out) {
  const at::Tensor values = at::native::searchsorted_scalar_tensor(value, sequence.device());
  return searchsorted_out(sequence, values, out_int32, right, side, sorter, out);
}

void check_boundaries(const at::Tensor& boundaries) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
}

at::Tensor bucketize(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  static const int overload = overload_id("aten::bucketize.Tensor");
  check_boundaries(boundaries);
  const at::Tensor out = new_positions(boundaries, self.sizes(), out_int32);
  if (lower_search(check_search(boundaries, self, out, out_int32, right, {}, {}), out, overload)) return out;
  return next_tier<at::_ops::bucketize_Tensor>(self, boundaries, out_int32, right);
}

at::Tensor& bucketize_out(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right,
                          at::Tensor& out) {
  static const int overload = overload_id("aten::bucketize.Tensor_out");
  check_boundaries(boundaries);
  const Search what = check_search(boundaries, self, out, out_int32, right, {}, {});
  check_device("bucketize", "out", out, boundaries);
  resize_to(out, self.sizes());
  if (!lower_search(what, out, overload))
    return next_tier<at::_ops::bucketize_Tensor_out>(self, boundaries, out_int32, right, out);
  return out;
}

at::Tensor bucketize_scalar(const c10::Scalar& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  return bucketize(at::native::searchsorted_scalar_tensor(self, boundaries.device()), boundaries, out_int32, right);
}

// ---- bincount: the largest value decides the length, so the host waits for it

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights_, int64_t minlength) {
  static const int overload = overload_id("aten::bincount");
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(self.scalar_type(), false), "bincount is not implemented for ",
                              self.scalar_type());
  at::Tensor weights = weights_.value_or(at::Tensor());
  if (self.dim() == 1 && self.numel() == 0) {
    const at::Tensor out = empty({minlength}, c10::kLong, self.device());
    DeviceContext context(self.device());
    return out.zero_();
  }
  check_device("bincount", "weights", weights, self);
  const bool vector = self.dim() == 1;
  const int64_t smallest = vector ? self.min().item().toLong() : -1;
  TORCH_CHECK(smallest >= 0, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weights.defined() || (weights.dim() == 1 && weights.numel() == self.numel()),
              "weights should be 1-d and have the same length as input");
  const int64_t bins = std::max(self.max().item().toLong() + 1, minlength);
  if (weights.defined() && weights.scalar_type() != c10::kFloat) weights = weights.to(c10::kDouble);
  const c10::ScalarType type = weights.defined() ? weights.scalar_type() : self.scalar_type();
  const at::Tensor out = empty({bins}, weights.defined() ? type : c10::kLong, self.device());
  Call call(Uniop::bincount, self);
  if (call.in(self).in_optional(weights).out(out).launch(type, out.scalar_type(), overload)) return out;
  return next_tier<at::_ops::bincount>(self, weights_, minlength);
}

}  // namespace

namespace lower {

namespace {
// 0-dimensional tensors are sorted already.
bool single(const at::Tensor& self, const at::Tensor& values, const at::Tensor& indices) {
  values.copy_(self);
  indices.zero_();
  return true;
}
}  // namespace

bool sort_stable(const at::Tensor& self, std::optional<bool>, int64_t dim, bool descending, const at::Tensor& values,
                 const at::Tensor& indices) {
  if (values.numel() == 0) return true;
  if (self.dim() == 0) return single(self, values, indices);
  return Call(Uniop::sort, self)
      .in(self)
      .out(values)
      .out(indices)
      .attr(at::maybe_wrap_dim(dim, self.dim()))
      .attr(descending)
      .launch(self.scalar_type());
}

bool topk(const at::Tensor& self, int64_t k, int64_t dim, bool largest, bool, const at::Tensor& values,
          const at::Tensor& indices) {
  if (values.numel() == 0) return true;
  if (self.dim() == 0) return single(self, values, indices);
  return Call(Uniop::topk, self)
      .in(self)
      .out(values)
      .out(indices)
      .attr(k)
      .attr(at::maybe_wrap_dim(dim, self.dim()))
      .attr(largest)
      .launch(self.scalar_type());
}

}  // namespace lower

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("searchsorted.Tensor", searchsorted);
  m.impl("searchsorted.Tensor_out", searchsorted_out);
  m.impl("searchsorted.Scalar", searchsorted_scalar);
  m.impl("searchsorted.Scalar_out", searchsorted_scalar_out);
  m.impl("bucketize.Tensor", bucketize);
  m.impl("bucketize.Tensor_out", bucketize_out);
  m.impl("bucketize.Scalar", bucketize_scalar);
  m.impl("bincount", bincount);
}

}  // namespace fl::bridge
