// Reductions and scans. A reduction is lowered from a TensorIterator whose outputs have stride 0 in the reduced dims.
#include <ATen/TensorIterator.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/_cummax_helper_ops.h>
#include <ATen/ops/_cummin_helper_ops.h>
#include <ATen/ops/_logcumsumexp_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/std_mean_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>
#include <torch/library.h>

#include "bridge/device_context.h"
#include "bridge/lower.h"
#include "lowerings.h"

namespace fl::bridge {

namespace {

// `out` seen with the input's dims: reduced ones have size 1 and stride 0.
at::Tensor restride(const at::Tensor& out, int64_t ndim, const at::DimVector& dims, bool keepdim,
                    at::IntArrayRef in_sizes) {
  std::bitset<at::dim_bitset_size> mask;
  for (int64_t d : dims) mask.set(static_cast<size_t>(d));
  c10::DimVector sizes(static_cast<size_t>(ndim)), strides(static_cast<size_t>(ndim));
  int64_t next = 0;
  for (int64_t d = 0; d < ndim; ++d) {
    const bool reduced = mask[static_cast<size_t>(d)];
    sizes[d] = reduced ? 1 : in_sizes[d];
    strides[d] = reduced ? 0 : out.stride(keepdim ? d : next);
    if (!reduced || keepdim) ++next;
  }
  return out.as_strided(sizes, strides);
}

at::DimVector normalize(at::OptionalIntArrayRef dims, int64_t ndim) {
  at::DimVector result;
  if (!dims.has_value() || dims->empty()) {
    for (int64_t d = 0; d < ndim; ++d) result.push_back(d);
  } else {
    for (int64_t d : *dims) result.push_back(c10::maybe_wrap_dim(d, ndim));
  }
  return result;
}

struct Reduction {
  Uniop uniop;
  c10::ScalarType in, out;
  int overload = kUncounted;
};

bool reduce(const Reduction& what, const at::Tensor& self, const at::DimVector& dims, bool keepdim,
            const at::Tensor& out, const at::Tensor& second = {}, at::ArrayRef<fl_scalar> attrs = {}) {
  const at::Tensor viewed = restride(out, self.dim(), dims, keepdim, self.sizes());
  if (!second.defined()) {
    auto iter = at::TensorIterator::reduce_op(const_cast<at::Tensor&>(viewed), self);
    return lower_reduction(what.uniop, iter, what.in, what.out, attrs.data(), static_cast<int>(attrs.size()),
                           what.overload);
  }
  const at::Tensor viewed2 = restride(second, self.dim(), dims, keepdim, self.sizes());
  auto iter = at::TensorIteratorConfig()
                  .set_check_mem_overlap(false)
                  .add_output(viewed)
                  .add_output(viewed2)
                  .add_const_input(self)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .is_reduction(true)
                  .build();
  return lower_reduction(what.uniop, iter, what.in, what.out, attrs.data(), static_cast<int>(attrs.size()),
                         what.overload);
}

// Reduces `self` (cast to `in` if the chip wants it) into `out`; over nothing it fills `identity`.
bool reduce_or_fill(Uniop uniop, const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, c10::ScalarType in,
                    const at::Tensor& out, const c10::Scalar& identity, at::ArrayRef<fl_scalar> attrs = {}) {
  if (out.numel() == 0) return true;
  if (!has_kernel(uniop, out, in, out.scalar_type())) {
    if (in == out.scalar_type() || !has_kernel(uniop, out, out.scalar_type(), out.scalar_type())) return false;
    in = out.scalar_type();
  }
  if (self.numel() == 0) return lower_fill(out, identity);
  const at::Tensor source = self.scalar_type() == in ? self : self.to(in);
  return reduce({uniop, in, out.scalar_type()}, source, normalize(dim, self.dim()), keepdim, out, {}, attrs);
}

bool is_small_float(c10::ScalarType t) { return t == at::kHalf || t == at::kBFloat16; }

}  // namespace

namespace lower {

bool sum_dim_IntList(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType>,
                     const at::Tensor& out) {
  return reduce_or_fill(Uniop::sum, self, dim, keepdim, self.scalar_type(), out, 0);
}

bool mean_dim(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType>,
              const at::Tensor& out) {
  if (out.numel() == 0) return true;
  if (self.numel() == 0) return lower_fill(out, std::numeric_limits<double>::quiet_NaN());
  // Half types sum in float32, so that the sum cannot overflow before the division.
  const bool wide = is_small_float(out.scalar_type());
  at::Tensor total = wide ? empty(out.sizes(), at::kFloat, out.device()) : out;
  if (!reduce_or_fill(Uniop::sum, self, dim, keepdim, self.scalar_type(), total, 0)) return false;
  const at::DimVector dims = normalize(dim, self.dim());
  int64_t count = 1;
  for (int64_t d : dims) count *= self.dim() == 0 ? 1 : self.size(d);
  total.div_(count);
  if (wide) const_cast<at::Tensor&>(out).copy_(total);
  return true;
}

bool prod_dim_int(const at::Tensor& self, int64_t dim, bool keepdim, std::optional<at::ScalarType>,
                  const at::Tensor& out) {
  return reduce_or_fill(Uniop::prod, self, at::IntArrayRef{dim}, keepdim, self.scalar_type(), out, 1);
}
bool amax(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, const at::Tensor& out) {
  return self.numel() != 0 && reduce_or_fill(Uniop::amax, self, dim, keepdim, self.scalar_type(), out, 0);
}
bool amin(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, const at::Tensor& out) {
  return self.numel() != 0 && reduce_or_fill(Uniop::amin, self, dim, keepdim, self.scalar_type(), out, 0);
}

// any / all: bool results, or uint8 for uint8 inputs.
static bool truth(Uniop uniop, const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, const at::Tensor& out,
                  bool identity) {
  if (out.scalar_type() == at::kBool)
    return reduce_or_fill(uniop, self, dim, keepdim, self.scalar_type(), out, identity);
  at::Tensor flags = empty(out.sizes(), at::kBool, out.device());
  if (!reduce_or_fill(uniop, self, dim, keepdim, self.scalar_type(), flags, identity)) return false;
  const_cast<at::Tensor&>(out).copy_(flags);
  return true;
}
bool any_dim(const at::Tensor& self, int64_t dim, bool keepdim, const at::Tensor& out) {
  return truth(Uniop::any, self, at::IntArrayRef{dim}, keepdim, out, false);
}
bool any_dims(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, const at::Tensor& out) {
  if (dim.has_value() && dim->empty()) return false;  // no dim reduced: elementwise, left to the next tier
  return truth(Uniop::any, self, dim, keepdim, out, false);
}
bool any(const at::Tensor& self, const at::Tensor& out) {
  return truth(Uniop::any, self, std::nullopt, false, out, false);
}
bool all_dim(const at::Tensor& self, int64_t dim, bool keepdim, const at::Tensor& out) {
  return truth(Uniop::all, self, at::IntArrayRef{dim}, keepdim, out, true);
}
bool all_dims(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, const at::Tensor& out) {
  if (dim.has_value() && dim->empty()) return false;
  return truth(Uniop::all, self, dim, keepdim, out, true);
}
bool all(const at::Tensor& self, const at::Tensor& out) {
  return truth(Uniop::all, self, std::nullopt, false, out, true);
}

static bool arg_reduce(Uniop uniop, const at::Tensor& self, std::optional<int64_t> dim, bool keepdim,
                       const at::Tensor& out) {
  if (!has_kernel(uniop, self, self.scalar_type(), at::kLong)) return false;
  if (dim && self.dim() > 0) {
    return reduce({uniop, self.scalar_type(), at::kLong}, self, {c10::maybe_wrap_dim(*dim, self.dim())}, keepdim, out);
  }
  // Over everything: the position counts in row-major order.
  const at::Tensor flat = self.reshape({-1});
  return reduce({uniop, self.scalar_type(), at::kLong}, flat, {0}, false,
                out.dim() == 0 ? out : out.view(at::IntArrayRef{}));
}
bool argmax(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim, const at::Tensor& out) {
  return arg_reduce(Uniop::argmax, self, dim, keepdim, out);
}
bool argmin(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim, const at::Tensor& out) {
  return arg_reduce(Uniop::argmin, self, dim, keepdim, out);
}

static bool extreme_dim(Uniop uniop, const at::Tensor& self, int64_t dim, bool keepdim, const at::Tensor& values,
                        const at::Tensor& indices) {
  if (values.numel() == 0) return true;
  if (!has_kernel(uniop, self)) return false;
  if (self.dim() == 0) {
    const_cast<at::Tensor&>(values).copy_(self);
    return lower_fill(indices, 0);
  }
  return reduce({uniop, self.scalar_type(), self.scalar_type()}, self, {c10::maybe_wrap_dim(dim, self.dim())}, keepdim,
                values, indices);
}
bool max_dim(const at::Tensor& self, int64_t dim, bool keepdim, const at::Tensor& values, const at::Tensor& indices) {
  return extreme_dim(Uniop::max_dim, self, dim, keepdim, values, indices);
}
bool min_dim(const at::Tensor& self, int64_t dim, bool keepdim, const at::Tensor& values, const at::Tensor& indices) {
  return extreme_dim(Uniop::min_dim, self, dim, keepdim, values, indices);
}

bool linalg_vector_norm(const at::Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<at::ScalarType>, const at::Tensor& out) {
  if (self.is_complex() || self.numel() == 0 || ord.isComplex()) return false;
  const fl_scalar attrs[] = {scalar(ord.toDouble())};
  return reduce_or_fill(Uniop::vector_norm, self, dim, keepdim, out.scalar_type(), out, 0, attrs);
}
bool norm_ScalarOpt_dim(const at::Tensor& self, at::OptionalScalarRef p, at::IntArrayRef dim, bool keepdim,
                        const at::Tensor& out) {
  return linalg_vector_norm(self, p.has_value() ? p.get() : at::Scalar(2.0), dim, keepdim, std::nullopt, out);
}

static bool scan(Uniop uniop, const at::Tensor& self, int64_t dim, const at::Tensor& out) {
  if (!has_kernel(uniop, out)) return false;
  if (out.numel() == 0) return true;
  const at::Tensor source = self.scalar_type() == out.scalar_type() ? self : self.to(out.scalar_type());
  if (source.dim() == 0) return const_cast<at::Tensor&>(out).copy_(source), true;
  return Call(uniop, out).in(source).out(out).attr(c10::maybe_wrap_dim(dim, self.dim())).launch(out.scalar_type());
}
bool cumsum(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType>, const at::Tensor& out) {
  return scan(Uniop::cumsum, self, dim, out);
}
bool cumprod(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType>, const at::Tensor& out) {
  return scan(Uniop::cumprod, self, dim, out);
}

}  // namespace lower

namespace {

c10::ScalarType integral_sum_type(const at::Tensor& self, std::optional<c10::ScalarType> dtype) {
  return dtype.value_or(c10::isIntegralType(self.scalar_type(), true) ? at::kLong : self.scalar_type());
}

at::Tensor prod(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  static const int overload = overload_id("aten::prod");
  at::Tensor out = empty({}, integral_sum_type(self, dtype), self.device());
  if (!reduce_or_fill(Uniop::prod, self, std::nullopt, false, self.scalar_type(), out, 1))
    return next_tier<at::_ops::prod>(self, dtype);
  count_native_call(out, overload);
  return out;
}

template <class Op>
at::Tensor extreme(Uniop uniop, int overload, const char* name, const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0, name,
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
              "'dim' argument.");
  at::Tensor out = empty({}, self.scalar_type(), self.device());
  if (!reduce_or_fill(uniop, self, std::nullopt, false, self.scalar_type(), out, 0)) return next_tier<Op>(self);
  count_native_call(out, overload);
  return out;
}
at::Tensor max(const at::Tensor& self) {
  return extreme<at::_ops::max>(Uniop::amax, overload_id("aten::max"), "max", self);
}
at::Tensor min(const at::Tensor& self) {
  return extreme<at::_ops::min>(Uniop::amin, overload_id("aten::min"), "min", self);
}

c10::DimVector reduced_sizes(const at::Tensor& self, const at::DimVector& dims, bool keepdim) {
  c10::DimVector sizes;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const bool reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
    if (!reduced)
      sizes.push_back(self.size(d));
    else if (keepdim)
      sizes.push_back(1);
  }
  return sizes;
}

void check_moments(const char* name, const at::Tensor& self) {
  TORCH_CHECK(self.is_floating_point() || self.is_complex(), name, " only support floating point and complex dtypes");
}

// var and std into `out`, which has the right sizes. False: next tier.
bool moments(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
             bool keepdim, bool root, const at::Tensor& out, const at::Tensor& mean) {
  const Uniop uniop = mean.defined() ? Uniop::var_mean : Uniop::var;
  if (self.is_complex() || self.numel() == 0 || !has_kernel(uniop, self) || out.scalar_type() != self.scalar_type())
    return false;
  const fl_scalar attrs[] = {scalar(correction.value_or(1).toDouble()), scalar(root)};
  return reduce({uniop, self.scalar_type(), self.scalar_type()}, self, normalize(dim, self.dim()), keepdim, out, mean,
                attrs);
}

template <class Op>
at::Tensor moment(const char* name, int overload, bool root, const at::Tensor& self, at::OptionalIntArrayRef dim,
                  const std::optional<at::Scalar>& correction, bool keepdim) {
  check_moments(name, self);
  at::native::make_dim_mask(dim, self.dim());
  at::Tensor out = empty(reduced_sizes(self, normalize(dim, self.dim()), keepdim), self.scalar_type(), self.device());
  if (!moments(self, dim, correction, keepdim, root, out, {})) return next_tier<Op>(self, dim, correction, keepdim);
  count_native_call(self, overload);
  return out;
}

template <class Op>
std::tuple<at::Tensor, at::Tensor> moment_pair(const char* name, int overload, bool root, const at::Tensor& self,
                                               at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
                                               bool keepdim) {
  check_moments(name, self);
  at::native::make_dim_mask(dim, self.dim());
  const auto sizes = reduced_sizes(self, normalize(dim, self.dim()), keepdim);
  at::Tensor out = empty(sizes, self.scalar_type(), self.device()),
             mean = empty(sizes, self.scalar_type(), self.device());
  if (!moments(self, dim, correction, keepdim, root, out, mean)) return next_tier<Op>(self, dim, correction, keepdim);
  count_native_call(self, overload);
  return {out, mean};
}

void cum_extreme(Uniop uniop, const char* name, const at::Tensor& self, at::Tensor& values, at::Tensor& indices,
                 int64_t dim, bool& done) {
  static const int max_overload = overload_id("aten::_cummax_helper"),
                   min_overload = overload_id("aten::_cummin_helper");
  done = values.numel() == 0 ||
         Call(uniop, self)
             .in(self)
             .out(values)
             .out(indices)
             .attr(c10::maybe_wrap_dim(dim, self.dim()))
             .launch(self.scalar_type(), self.scalar_type(), uniop == Uniop::cummax ? max_overload : min_overload);
}
void cummax_helper(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim) {
  bool done = false;
  cum_extreme(Uniop::cummax, "cummax", self, values, indices, dim, done);
  if (!done) next_tier<at::_ops::_cummax_helper>(self, values, indices, dim);
}
void cummin_helper(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim) {
  bool done = false;
  cum_extreme(Uniop::cummin, "cummin", self, values, indices, dim, done);
  if (!done) next_tier<at::_ops::_cummin_helper>(self, values, indices, dim);
}

at::Tensor logcumsumexp(const at::Tensor& self, int64_t dim) {
  static const int overload = overload_id("aten::_logcumsumexp");
  at::Tensor out = empty_like(self, self.sizes());
  if (self.numel() == 0) return out;
  if (self.dim() == 0 || !Call(Uniop::logcumsumexp, self)
                              .in(self)
                              .out(out)
                              .attr(c10::maybe_wrap_dim(dim, self.dim()))
                              .launch(self.scalar_type(), overload))
    return next_tier<at::_ops::_logcumsumexp>(self, dim);
  return out;
}

at::Tensor logsumexp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  static const int overload = overload_id("aten::logsumexp");
  const auto type = c10::isIntegralType(self.scalar_type(), true) ? c10::typeMetaToScalarType(c10::get_default_dtype())
                                                                  : self.scalar_type();
  if (self.is_complex() || self.numel() == 0 || !has_kernel(Uniop::logsumexp, self, type, type))
    return next_tier<at::_ops::logsumexp>(self, dim, keepdim);
  at::native::make_dim_mask(dim, self.dim());
  at::Tensor out = empty(reduced_sizes(self, normalize(dim, self.dim()), keepdim), type, self.device());
  if (!reduce_or_fill(Uniop::logsumexp, self, dim, keepdim, type, out, 0))
    return next_tier<at::_ops::logsumexp>(self, dim, keepdim);
  count_native_call(self, overload);
  return out;
}

}  // namespace

#define OVERLOAD(name)                                \
  ([] {                                               \
    static const int id = overload_id("aten::" name); \
    return id;                                        \
  }())

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("prod", prod);
  m.impl("max", max);
  m.impl("min", min);
  m.impl("var.correction", [](const at::Tensor& self, at::OptionalIntArrayRef dim,
                              const std::optional<at::Scalar>& correction, bool keepdim) {
    return moment<at::_ops::var_correction>("var", OVERLOAD("var.correction"), false, self, dim, correction, keepdim);
  });
  m.impl("std.correction", [](const at::Tensor& self, at::OptionalIntArrayRef dim,
                              const std::optional<at::Scalar>& correction, bool keepdim) {
    return moment<at::_ops::std_correction>("std", OVERLOAD("std.correction"), true, self, dim, correction, keepdim);
  });
  m.impl("var_mean.correction", [](const at::Tensor& self, at::OptionalIntArrayRef dim,
                                   const std::optional<at::Scalar>& correction, bool keepdim) {
    return moment_pair<at::_ops::var_mean_correction>("var_mean", OVERLOAD("var_mean.correction"), false, self, dim,
                                                      correction, keepdim);
  });
  m.impl("std_mean.correction", [](const at::Tensor& self, at::OptionalIntArrayRef dim,
                                   const std::optional<at::Scalar>& correction, bool keepdim) {
    return moment_pair<at::_ops::std_mean_correction>("std_mean", OVERLOAD("std_mean.correction"), true, self, dim,
                                                      correction, keepdim);
  });
  m.impl("_cummax_helper", cummax_helper);
  m.impl("_cummin_helper", cummin_helper);
  m.impl("_logcumsumexp", logcumsumexp);
  m.impl("logsumexp", logsumexp);
}

}  // namespace fl::bridge
