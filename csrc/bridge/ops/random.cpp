// In-place random fills and dropout. Every number comes from the device's Philox generator: a call reserves a range of
// its counters, and the kernel computes element i from (seed, offset, i) alone (uniops.yaml, category random).
// PyTorch's own templates check the arguments; what is composed of these (randperm, multinomial, …) is
// random_composed.cpp.
#define AT_PER_OPERATOR_HEADERS  // DistributionTemplates.h would include all operators
#include "bridge/ops/operands.h"

#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/exponential_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/normal_ops.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/random_ops.h>
#include <ATen/ops/uniform_ops.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "bridge/generator.h"
#include "bridge/same_device.h"

namespace fl::bridge {

namespace {

using Generator = std::optional<at::Generator>;
namespace checked = at::native::templates;

bool is_double(const at::Tensor& t) { return t.scalar_type() == c10::kDouble; }

// Adds the numbers for `elements` elements to a call: its first two attributes.
Call& seeded(Call& call, const Generator& generator, c10::Device device, int64_t elements, bool wide) {
  const PhiloxState state = reserve(generator, device, elements, wide);
  return call.attr(static_cast<int64_t>(state.seed)).attr(static_cast<int64_t>(state.offset));
}

// A kernel (seed, offset, a, b) that fills self, whatever its strides.
bool draw(Uniop uniop, const at::Tensor& self, const Generator& generator, bool wide, fl_scalar a,
          std::optional<fl_scalar> b, int overload) {
  if (!has_kernel(uniop, self)) return false;
  Call call(uniop, self);
  seeded(call.out(self), generator, self.device(), self.numel(), wide).attr(a);
  if (b) call.attr(*b);
  return call.launch(self.scalar_type(), overload);
}

// What PyTorch's templates call when the arguments are right and self has elements.
template <class>
struct UniformKernel {
  void operator()(at::TensorIteratorBase& iter, double from, double to, const Generator& generator) const {
    static const int overload = overload_id("aten::uniform_");
    at::Tensor self = iter.tensor(0);
    if (draw(Uniop::uniform, self, generator, is_double(self), scalar(from), scalar(to), overload)) return;
    next_tier<at::_ops::uniform_>(self, from, to, generator);
  }
};

template <class>
struct NormalKernel {
  void operator()(at::Tensor& self, double mean, double std, const Generator& generator) const {
    static const int overload = overload_id("aten::normal_");
    if (draw(Uniop::normal, self, generator, is_double(self), scalar(mean), scalar(std), overload)) return;
    next_tier<at::_ops::normal_>(self, mean, std, generator);
  }
};

template <class>
struct ExponentialKernel {
  void operator()(at::TensorIteratorBase& iter, double lambda, const Generator& generator) const {
    static const int overload = overload_id("aten::exponential_");
    at::Tensor self = iter.tensor(0);
    if (draw(Uniop::exponential, self, generator, is_double(self), scalar(lambda), std::nullopt, overload)) return;
    next_tier<at::_ops::exponential_>(self, lambda, generator);
  }
};

// range: how many values from `low` on; 0 = 2^64.
void random_int(at::Tensor self, int64_t low, uint64_t range, const Generator& generator, int overload) {
  if (draw(Uniop::random_int, self, generator, true, scalar(low), scalar(static_cast<int64_t>(range)), overload))
    return;
  // The end may be beyond int64: PyTorch then wants it left out.
  const uint64_t end = static_cast<uint64_t>(low) + range;
  const bool open = range == 0 || static_cast<int64_t>(end) <= low;
  next_tier<at::_ops::random__from>(self, low, open ? std::nullopt : std::optional(static_cast<int64_t>(end)),
                                    generator);
}

int overload_random_from() {
  static const int overload = overload_id("aten::random_.from");
  return overload;
}

template <class>
struct RandomFromToKernel {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t low, const Generator& generator) const {
    random_int(iter.tensor(0), low, range, generator, overload_random_from());
  }
  void operator()(at::TensorIteratorBase& iter, const Generator& generator) const {
    random_int(iter.tensor(0), std::numeric_limits<int64_t>::min(), 0, generator, overload_random_from());
  }
};

// random_() without bounds: all values from 0 on that the type holds exactly.
uint64_t natural_range(c10::ScalarType type) {
  switch (type) {
    case c10::kBool:
      return 2;
    case c10::kHalf:
      return (1ull << 11) + 1;
    case c10::kBFloat16:
      return (1ull << 8) + 1;
    case c10::kFloat:
      return (1ull << 24) + 1;
    case c10::kDouble:
      return (1ull << 53) + 1;
    case c10::kByte:
      return 1ull << 8;
    case c10::kChar:
      return 1ull << 7;
    case c10::kShort:
      return 1ull << 15;
    case c10::kUInt16:
      return 1ull << 16;
    case c10::kInt:
      return 1ull << 31;
    case c10::kUInt32:
      return 1ull << 32;
    case c10::kUInt64:
      return 0;
    default:
      return 1ull << 63;
  }
}

template <class>
struct RandomKernel {
  void operator()(at::TensorIteratorBase& iter, const Generator& generator) const {
    static const int overload = overload_id("aten::random_");
    random_int(iter.tensor(0), 0, natural_range(iter.dtype(0)), generator, overload);
  }
};

template <class>
struct BernoulliKernel {
  void operator()(at::Tensor& self, double p, const Generator& generator) const {
    static const int overload = overload_id("aten::bernoulli_.float");
    if (has_kernel(Uniop::bernoulli, self)) {
      Call call(Uniop::bernoulli, self);
      call.in_optional(at::Tensor()).out(self);
      if (seeded(call, generator, self.device(), self.numel(), false).attr(p).launch(self.scalar_type(), overload))
        return;
    }
    next_tier<at::_ops::bernoulli__float>(self, p, generator);
  }

  void operator()(at::Tensor& self, const at::Tensor& probabilities, const Generator& generator) const {
    static const int overload = overload_id("aten::bernoulli_.Tensor");
    at::Tensor p = probabilities.to(self.device());
    TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(p.scalar_type()),
                                "bernoulli_ is not implemented for probabilities of type ", p.scalar_type());
    if (has_kernel(Uniop::bernoulli, self)) {
      const c10::ScalarType type = is_double(p) ? c10::kDouble : c10::kFloat;
      p = p.to(type);
      const at::Tensor dense = at::expand_inplace(self, p, "bernoulli_")->contiguous();
      Call call(Uniop::bernoulli, self);
      call.in(dense).out(self);
      if (seeded(call, generator, self.device(), self.numel(), false)
              .attr(fl_scalar{})
              .launch(self.scalar_type(), overload))
        return;
    }
    next_tier<at::_ops::bernoulli__Tensor>(self, p, generator);
  }
};

at::Tensor& uniform(at::Tensor& self, double from, double to, Generator generator) {
  return checked::uniform_impl_<UniformKernel, PhiloxGenerator>(self, from, to, std::move(generator));
}
at::Tensor& normal(at::Tensor& self, double mean, double std, Generator generator) {
  return checked::normal_impl_<NormalKernel, PhiloxGenerator>(self, mean, std, std::move(generator));
}
at::Tensor& exponential(at::Tensor& self, double lambda, Generator generator) {
  return checked::exponential_impl_<ExponentialKernel, PhiloxGenerator>(self, lambda, std::move(generator));
}
at::Tensor& random(at::Tensor& self, Generator generator) {
  return checked::random_impl<RandomKernel, PhiloxGenerator>(self, std::move(generator));
}
at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, Generator generator) {
  return checked::random_from_to_impl<RandomFromToKernel, PhiloxGenerator>(self, from, to, std::move(generator));
}
at::Tensor& random_to(at::Tensor& self, int64_t to, Generator generator) {
  return random_from(self, 0, to, std::move(generator));
}
at::Tensor& bernoulli_float(at::Tensor& self, double p, Generator generator) {
  return checked::bernoulli_impl_<BernoulliKernel, PhiloxGenerator>(self, p, std::move(generator));
}
at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, Generator generator) {
  return checked::bernoulli_impl_<BernoulliKernel, PhiloxGenerator>(self, p, std::move(generator));
}
at::Tensor& bernoulli_out(const at::Tensor& self, Generator generator, at::Tensor& out) {
  check_device("bernoulli", "out", out, self);
  return checked::bernoulli_out_impl<BernoulliKernel, PhiloxGenerator>(out, self, std::move(generator));
}

// ---- normal with tensors of means or deviations: PyTorch's templates over normal_

at::Tensor normal_tensor_float(const at::Tensor& mean, double std, Generator generator) {
  return checked::normal_impl<NormalKernel, PhiloxGenerator>(mean, std, std::move(generator));
}
at::Tensor normal_float_tensor(double mean, const at::Tensor& std, Generator generator) {
  return checked::normal_impl<NormalKernel, PhiloxGenerator>(mean, std, std::move(generator));
}
at::Tensor normal_tensor_tensor(const at::Tensor& mean, const at::Tensor& std, Generator generator) {
  SameDevice("aten::normal.Tensor_Tensor")(mean, "mean")(std, "std");
  return checked::normal_impl<NormalKernel, PhiloxGenerator>(mean, std, std::move(generator));
}
at::Tensor& normal_tensor_float_out(const at::Tensor& mean, double std, Generator generator, at::Tensor& out) {
  return checked::normal_out_impl<NormalKernel, PhiloxGenerator>(out, mean, std, std::move(generator));
}
at::Tensor& normal_float_tensor_out(double mean, const at::Tensor& std, Generator generator, at::Tensor& out) {
  return checked::normal_out_impl<NormalKernel, PhiloxGenerator>(out, mean, std, std::move(generator));
}
at::Tensor& normal_tensor_tensor_out(const at::Tensor& mean, const at::Tensor& std, Generator generator,
                                     at::Tensor& out) {
  SameDevice("aten::normal.Tensor_Tensor_out")(mean, "mean")(std, "std")(out, "out");
  return checked::normal_out_impl<NormalKernel, PhiloxGenerator>(out, mean, std, std::move(generator));
}

// ---- dropout

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  static const int overload = overload_id("aten::native_dropout");
  if (input.numel() == 0 || !train.value_or(true)) {
    count_native_call(input, overload);
    return {input.clone(), at::ones_like(input, input.options().dtype(c10::kBool))};
  }
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 1) {
    count_native_call(input, overload);
    return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(c10::kBool))};
  }
  if (has_kernel(Uniop::dropout, input)) {
    // Dense in any order of dims: all three are walked as they lie in memory.
    const at::Tensor dense = input.is_non_overlapping_and_dense() ? input : input.contiguous();
    const at::Tensor out = empty_strided(dense.sizes(), dense.strides(), dense.scalar_type(), dense.device());
    const at::Tensor mask = empty_strided(dense.sizes(), dense.strides(), c10::kBool, dense.device());
    const int64_t sizes[] = {dense.numel()}, strides[] = {1};
    Call call(Uniop::dropout, input);
    call.in(dense, sizes, strides).out(out, sizes, strides).out(mask, sizes, strides);
    if (seeded(call, std::nullopt, input.device(), input.numel(), false)
            .attr(p)
            .launch(input.scalar_type(), overload)) {
      return {out, mask};
    }
  }
  return next_tier<at::_ops::native_dropout>(input, p, train);
}

at::Tensor native_dropout_backward(const at::Tensor& grad_output, const at::Tensor& mask, double scale) {
  static const int overload = overload_id("aten::native_dropout_backward");
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "dropout_backward: the mask should be Bool, but is ",
              mask.scalar_type());
  count_native_call(grad_output, overload);
  return grad_output.mul(mask).mul_(scale);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("uniform_", uniform);
  m.impl("normal_", normal);
  m.impl("exponential_", exponential);
  m.impl("random_", random);
  m.impl("random_.from", random_from);
  m.impl("random_.to", random_to);
  m.impl("bernoulli_.float", bernoulli_float);
  m.impl("bernoulli_.Tensor", bernoulli_tensor);
  m.impl("bernoulli.out", bernoulli_out);
  m.impl("normal.Tensor_float", normal_tensor_float);
  m.impl("normal.float_Tensor", normal_float_tensor);
  m.impl("normal.Tensor_Tensor", normal_tensor_tensor);
  m.impl("normal.Tensor_float_out", normal_tensor_float_out);
  m.impl("normal.float_Tensor_out", normal_float_tensor_out);
  m.impl("normal.Tensor_Tensor_out", normal_tensor_tensor_out);
  m.impl("native_dropout", native_dropout);
  m.impl("native_dropout_backward", native_dropout_backward);
}

}  // namespace fl::bridge
