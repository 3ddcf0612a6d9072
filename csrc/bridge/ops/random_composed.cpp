// Distributions composed of the random fills of random.cpp: log_normal_, cauchy_, geometric_, rrelu, randperm,
// multinomial.
#define AT_PER_OPERATOR_HEADERS  // DistributionTemplates.h would include all operators
#include "bridge/ops/operands.h"

#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/searchsorted.h>
#include <torch/library.h>

#include "bridge/generator.h"

namespace fl::bridge {

namespace {

using Generator = std::optional<at::Generator>;
namespace checked = at::native::templates;

// self itself if it has a type that the formula is exact enough in, else a float tensor of its sizes.
at::Tensor workspace(const at::Tensor& self) {
  const c10::ScalarType type = self.scalar_type();
  if (type == c10::kFloat || type == c10::kDouble) return self;
  const bool wide = type == c10::kLong || type == c10::kInt;
  return empty(self.sizes(), wide ? c10::kDouble : c10::kFloat, self.device());
}

void finish(const at::Tensor& self, const at::Tensor& work, int overload) {
  if (!work.is_same(self)) self.copy_(work);
  count_native_call(self, overload);
}

template <class>
struct LogNormalKernel {
  void operator()(at::TensorIteratorBase& iter, double mean, double std, const Generator& generator) const {
    static const int overload = overload_id("aten::log_normal_");
    const at::Tensor self = iter.tensor(0);
    at::Tensor work = workspace(self);
    finish(self, work.normal_(mean, std, generator).exp_(), overload);
  }
};

template <class>
struct CauchyKernel {
  void operator()(at::TensorIteratorBase& iter, double median, double sigma, const Generator& generator) const {
    static const int overload = overload_id("aten::cauchy_");
    constexpr double pi = 3.14159265358979323846;
    const at::Tensor self = iter.tensor(0);
    at::Tensor work = workspace(self);
    finish(self, work.uniform_(0, 1, generator).sub_(0.5).mul_(pi).tan_().mul_(sigma).add_(median), overload);
  }
};

// The number of trials up to a success is an exponential variate rounded up.
template <class>
struct GeometricKernel {
  void operator()(at::TensorIteratorBase& iter, double p, const Generator& generator) const {
    static const int overload = overload_id("aten::geometric_");
    const at::Tensor self = iter.tensor(0);
    at::Tensor work = workspace(self);
    finish(self, work.exponential_(-std::log1p(-p), generator).ceil_(), overload);
  }
};

at::Tensor& log_normal(at::Tensor& self, double mean, double std, Generator generator) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.scalar_type()), "log_normal_ is not implemented for ",
                              self.scalar_type());
  return checked::log_normal_impl_<LogNormalKernel, PhiloxGenerator>(self, mean, std, std::move(generator));
}
at::Tensor& cauchy(at::Tensor& self, double median, double sigma, Generator generator) {
  return checked::cauchy_impl_<CauchyKernel, PhiloxGenerator>(self, median, sigma, std::move(generator));
}
at::Tensor& geometric(at::Tensor& self, double p, Generator generator) {
  const c10::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(type) && type != c10::kBool, "geometric_ is not implemented for ",
                              type);
  return checked::geometric_impl_<GeometricKernel, PhiloxGenerator>(self, p, std::move(generator));
}

// ---- rrelu: negative elements get a random slope, which noise keeps for the backward pass

at::Tensor& rrelu_out(const at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                      bool training, Generator generator, at::Tensor& out) {
  static const int overload = overload_id("aten::rrelu_with_noise.out");
  TORCH_CHECK(self.sizes() == noise.sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sizes(),
              " noise.shape = ", noise.sizes());
  check_device("rrelu_with_noise", "noise", noise, self);
  count_native_call(self, overload);
  if (!training) return at::leaky_relu_out(out, self, (lower.to<double>() + upper.to<double>()) / 2);
  noise.uniform_(lower.to<double>(), upper.to<double>(), generator).masked_fill_(self.le(0).logical_not_(), 1);
  return at::mul_out(out, self, noise);
}

at::Tensor rrelu(const at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                 bool training, Generator generator) {
  at::Tensor out = bridge::empty_like(self);
  rrelu_out(self, noise, lower, upper, training, std::move(generator), out);
  return out;
}

at::Tensor& rrelu_(at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                   bool training, Generator generator) {
  return rrelu_out(self, noise, lower, upper, training, std::move(generator), self);
}

// ---- randperm: the order of random 64-bit keys. Equal keys, of which few ever are, keep their order.

at::Tensor& randperm_out(int64_t n, Generator generator, at::Tensor& out) {
  static const int overload = overload_id("aten::randperm.generator_out");
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  DeviceContext context(out.device());
  at::native::check_supported_max_int_with_precision(n, at::detail::empty_cpu({0}, out.scalar_type()));
  out.resize_({n});
  if (n > 0) {
    at::Tensor keys = empty({n}, c10::kLong, out.device());
    keys.random_(std::numeric_limits<int64_t>::min(), std::nullopt, generator);
    out.copy_(std::get<1>(keys.sort()));
  }
  count_native_call(out, overload);
  return out;
}

// ---- multinomial: ATen's own function, over exponential_ and topk; with replacement through the stub below

// Sample j of a row is the first category whose cumulated probability exceeds a uniform number.
void multinomial_with_replacement(at::Tensor& result, const at::Tensor& self, int64_t samples, Generator generator) {
  const at::Tensor probabilities = self.scalar_type() == c10::kDouble ? self : self.to(c10::kFloat);
  const at::Tensor sums = probabilities.cumsum(-1);
  const at::Tensor total = sums.narrow(-1, sums.size(-1) - 1, 1);
  const at::Tensor good =
      probabilities.ge(0).all().logical_and_(total.isfinite().all()).logical_and_(total.gt(0).all());
  TORCH_CHECK(good.item<bool>(),
              "invalid multinomial distribution: probabilities must be finite and at least 0, and each row's "
              "sum above 0");
  at::DimVector sizes(self.sizes());
  sizes.back() = samples;
  at::Tensor numbers = empty(sizes, sums.scalar_type(), self.device());
  numbers.uniform_(0, 1, generator).mul_(total);
  result.copy_(at::searchsorted(sums, numbers, /*out_int32=*/false, /*right=*/true));
}

// ATen checks probabilities with these. The device has no assertions of its own: the host waits and looks.
void assert_async_message(const at::Tensor& self, c10::string_view message) {
  static const int overload = overload_id("aten::_assert_async.msg");
  TORCH_CHECK(self.is_nonzero(), message.empty() ? c10::string_view("assertion failed") : message);
  count_native_call(self, overload);
}

void assert_async(const at::Tensor& self) {
  assert_async_message(self, "Expected Tensor with single nonzero value, but got zero");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("log_normal_", log_normal);
  m.impl("cauchy_", cauchy);
  m.impl("geometric_", geometric);
  m.impl("rrelu_with_noise", rrelu);
  m.impl("rrelu_with_noise.out", rrelu_out);
  m.impl("rrelu_with_noise_", rrelu_);
  m.impl("randperm.generator_out", randperm_out);
  m.impl("_assert_async", assert_async);
  m.impl("_assert_async.msg", assert_async_message);
  m.impl("multinomial", at::native::multinomial);
  m.impl("multinomial.out", at::native::multinomial_out);
}

}  // namespace fl::bridge

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(multinomial_with_replacement_stub, &fl::bridge::multinomial_with_replacement)
}
