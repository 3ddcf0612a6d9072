// Fused optimizer steps: one kernel over all parameters of a group. What a kernel does not cover (amsgrad, mixed types,
// parameters and states laid out differently) is composed of elementwise operators, parameter by parameter.
#include "bridge/ops/operands.h"

#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <map>

#include "bridge/settings.h"

namespace fl::bridge {

namespace {

using OptionalTensor = const std::optional<at::Tensor>&;

// Parallel lists: lists[0] are the parameters. Same device and float type, each group of tensors dense and laid out
// alike.
bool fits(at::TensorList params, std::initializer_list<at::TensorList> others) {
  const c10::ScalarType type = params[0].scalar_type();
  if (!c10::isFloatingType(type)) return false;
  for (const at::TensorList& list : others)
    if (list.size() != params.size()) return false;
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& p = params[i];
    if (p.device() != params[0].device() || p.scalar_type() != type || !p.is_non_overlapping_and_dense()) return false;
    for (const at::TensorList& list : others) {
      const at::Tensor& t = list[i];
      if (t.device() != p.device() || t.scalar_type() != type || t.sizes() != p.sizes() || t.strides() != p.strides())
        return false;
    }
  }
  return true;
}

// Dense tensors as one dimension: the step is the same for each element, so their order does not matter.
class Flat {
 public:
  explicit Flat(at::TensorList params, const std::vector<size_t>& members) : members_(members) {
    for (size_t i : members) sizes_.push_back(params[i].numel());
  }
  void in(Call& call, at::TensorList list) const {
    for (size_t k = 0; k < members_.size(); ++k) call.in(list[members_[k]], {&sizes_[k], 1}, kStride);
  }
  void out(Call& call, at::TensorList list) const {
    for (size_t k = 0; k < members_.size(); ++k) call.out(list[members_[k]], {&sizes_[k], 1}, kStride);
  }

 private:
  static constexpr int64_t kOne[1] = {1};
  static constexpr at::IntArrayRef kStride{kOne};
  const std::vector<size_t>& members_;
  std::vector<int64_t> sizes_;
};

// The gradient scaler's operands. True: an overflow was found and the step must not be made. Else gradients are
// unscaled in place, as PyTorch's fused kernels leave them, and grad_scale is forgotten so that no tier does it again.
bool skip_step(at::TensorList grads, std::optional<at::Tensor>& grad_scale, OptionalTensor found_inf) {
  if (found_inf && found_inf->defined() && found_inf->item<float>() != 0.0f) return true;
  if (grad_scale && grad_scale->defined()) {
    for (const at::Tensor& grad : grads) {
      at::Tensor target = grad;
      target.div_(*grad_scale);
    }
  }
  grad_scale.reset();
  return false;
}

// A composition's operand in the type that PyTorch's fused kernels compute in; store() brings the result back.
at::Tensor working(const at::Tensor& t) { return t.scalar_type() == c10::kDouble ? t : t.to(c10::kFloat); }
void store(const at::Tensor& target, const at::Tensor& work) {
  if (!work.is_same(target)) target.copy_(work);
}

at::Tensor gradient(const at::Tensor& grad, const at::Tensor& param, bool maximize, double weight_decay) {
  at::Tensor g = grad.to(param.scalar_type());
  if (maximize) g = g.neg();
  return weight_decay != 0.0 ? g.add(param, weight_decay) : g;
}

bool may_compose(at::TensorList params, int overload) {
  if (!settings.enable_decompose.load(std::memory_order_relaxed) || !c10::isFloatingType(params[0].scalar_type()))
    return false;
  count(params[0].device().index(), overload, Tier::Decompose);
  return true;
}

std::vector<size_t> nonempty(at::TensorList params) {
  std::vector<size_t> members;
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].numel() > 0) members.push_back(i);
  return members;
}

// ---- Adam

struct AdamStep {
  double lr, beta1, beta2, weight_decay, eps;
  bool decoupled, maximize;
};

// Parameters by their step number, read from the device in one copy.
std::map<double, std::vector<size_t>> by_step(at::TensorList params, at::TensorList steps) {
  const std::vector<size_t> members = nonempty(params);
  std::vector<at::Tensor> wanted;
  for (size_t i : members) wanted.push_back(steps[i].reshape({}));
  std::map<double, std::vector<size_t>> groups;
  if (members.empty()) return groups;
  const at::Tensor numbers = at::stack(wanted).to(at::kCPU, c10::kDouble);
  for (size_t k = 0; k < members.size(); ++k) groups[numbers.const_data_ptr<double>()[k]].push_back(members[k]);
  return groups;
}

struct AdamLists {
  at::TensorList params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs;
};

bool launch_adam(const AdamLists& lists, const std::vector<size_t>& members, double number, const AdamStep& step) {
  const Flat flat(lists.params, members);
  Call call(Uniop::adam, lists.params[0]);
  flat.in(call, lists.grads);
  flat.out(call, lists.params);
  flat.out(call, lists.exp_avgs);
  flat.out(call, lists.exp_avg_sqs);
  call.attr(step.lr).attr(step.beta1).attr(step.beta2).attr(step.eps).attr(step.weight_decay).attr(step.decoupled);
  return call.attr(number).attr(step.maximize).launch(lists.params[0].scalar_type());
}

void compose_adam(const AdamLists& lists, size_t i, double number, const AdamStep& step) {
  at::Tensor param = working(lists.params[i]), exp_avg = working(lists.exp_avgs[i]),
             exp_avg_sq = working(lists.exp_avg_sqs[i]);
  const at::Tensor grad = gradient(lists.grads[i], param, step.maximize, step.decoupled ? 0.0 : step.weight_decay);
  if (step.decoupled) param.mul_(1.0 - step.lr * step.weight_decay);
  exp_avg.lerp_(grad, 1.0 - step.beta1);
  exp_avg_sq.mul_(step.beta2).addcmul_(grad, grad, 1.0 - step.beta2);
  const double step_size = step.lr / (1.0 - std::pow(step.beta1, number));
  const double correction = std::sqrt(1.0 - std::pow(step.beta2, number));
  at::Tensor square = exp_avg_sq;
  if (!lists.max_exp_avg_sqs.empty()) {
    square = at::maximum(lists.max_exp_avg_sqs[i].to(square.scalar_type()), square);
    lists.max_exp_avg_sqs[i].copy_(square);
  }
  param.addcdiv_(exp_avg, square.sqrt().div_(correction).add_(step.eps), -step_size);
  store(lists.params[i], param);
  store(lists.exp_avgs[i], exp_avg);
  store(lists.exp_avg_sqs[i], exp_avg_sq);
}

// False: not a case for this device; nothing but the gradients' scale was changed.
bool lower_adam(const AdamLists& lists, at::TensorList steps, const AdamStep& step,
                std::optional<at::Tensor>& grad_scale, OptionalTensor found_inf, int overload) {
  if (lists.params.empty()) return true;
  const at::Tensor& first = lists.params[0];
  bool native = lists.max_exp_avg_sqs.empty() && fits(lists.params, {lists.grads, lists.exp_avgs, lists.exp_avg_sqs}) &&
                has_kernel(Uniop::adam, first);
  if (!native && !may_compose(lists.params, overload)) return false;
  DeviceContext context(first.device());
  if (native) count_native_call(first, overload);
  if (skip_step(lists.grads, grad_scale, found_inf)) return true;
  for (const auto& [number, members] : by_step(lists.params, steps)) {
    native = native && launch_adam(lists, members, number, step);
    if (native) continue;
    for (size_t i : members) compose_adam(lists, i, number, step);
  }
  return true;
}

#define FL_ADAM_LISTS                                                                             \
  at::TensorList self, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs, \
      at::TensorList max_exp_avg_sqs, at::TensorList state_steps
#define FL_ADAM_REST                                                                                                   \
  double beta1, double beta2, double weight_decay, double eps, bool amsgrad, bool maximize, OptionalTensor grad_scale, \
      OptionalTensor found_inf

template <class Op, bool decoupled>
void fused_adam(FL_ADAM_LISTS, double lr, FL_ADAM_REST) {
  static const int overload = overload_id(Op::name);
  std::optional<at::Tensor> scale = grad_scale;
  const AdamStep step{lr, beta1, beta2, weight_decay, eps, decoupled, maximize};
  const AdamLists lists{self, grads, exp_avgs, exp_avg_sqs, amsgrad ? max_exp_avg_sqs : at::TensorList()};
  if (!lower_adam(lists, state_steps, step, scale, found_inf, overload)) {
    next_tier<Op>(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
                  amsgrad, maximize, scale, found_inf);
  }
}

template <class Op, bool decoupled>
void fused_adam_tensor_lr(FL_ADAM_LISTS, const at::Tensor& lr, FL_ADAM_REST) {
  fused_adam<Op, decoupled>(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr.item<double>(), beta1,
                            beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf);
}

// ---- SGD

struct SgdStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize, is_first_step;
};

bool launch_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, const std::vector<size_t>& members,
                const SgdStep& step) {
  const Flat flat(params, members);
  Call call(Uniop::sgd, params[0]);
  flat.in(call, grads);
  flat.out(call, params);
  if (!buffers.empty()) flat.out(call, buffers);
  call.attr(step.lr)
      .attr(step.momentum)
      .attr(step.dampening)
      .attr(step.weight_decay)
      .attr(step.nesterov)
      .attr(step.maximize);
  return call.attr(step.is_first_step).launch(params[0].scalar_type());
}

void compose_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, size_t i, const SgdStep& step) {
  at::Tensor param = working(params[i]);
  at::Tensor grad = gradient(grads[i], param, step.maximize, step.weight_decay);
  if (!buffers.empty()) {
    at::Tensor buffer = working(buffers[i]);
    if (step.is_first_step) buffer.copy_(grad);
    else buffer.mul_(step.momentum).add_(grad, 1.0 - step.dampening);
    grad = step.nesterov ? grad.add(buffer, step.momentum) : buffer.clone();
    store(buffers[i], buffer);
  }
  param.add_(grad, -step.lr);
  store(params[i], param);
}

bool lower_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, const SgdStep& step,
               std::optional<at::Tensor>& grad_scale, OptionalTensor found_inf, int overload) {
  if (params.empty()) return true;
  const at::TensorList used = step.momentum != 0.0 ? buffers : at::TensorList();
  const bool alike = used.empty() ? fits(params, {grads}) : fits(params, {grads, used});
  const bool native = alike && has_kernel(Uniop::sgd, params[0]);
  if (!native && !may_compose(params, overload)) return false;
  DeviceContext context(params[0].device());
  if (native) count_native_call(params[0], overload);
  if (skip_step(grads, grad_scale, found_inf)) return true;
  const std::vector<size_t> members = nonempty(params);
  if (members.empty() || (native && launch_sgd(params, grads, used, members, step))) return true;
  for (size_t i : members) compose_sgd(params, grads, used, i, step);
  return true;
}

void fused_sgd(at::TensorList self, at::TensorList grads, at::TensorList buffers, double weight_decay, double momentum,
               double lr, double dampening, bool nesterov, bool maximize, bool is_first_step, OptionalTensor grad_scale,
               OptionalTensor found_inf) {
  static const int overload = overload_id("aten::_fused_sgd_");
  std::optional<at::Tensor> scale = grad_scale;
  const SgdStep step{lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step};
  if (!lower_sgd(self, grads, buffers, step, scale, found_inf, overload)) {
    next_tier<at::_ops::_fused_sgd_>(self, grads, buffers, weight_decay, momentum, lr, dampening, nesterov, maximize,
                                     is_first_step, scale, found_inf);
  }
}

void fused_sgd_tensor_lr(at::TensorList self, at::TensorList grads, at::TensorList buffers, double weight_decay,
                         double momentum, const at::Tensor& lr, double dampening, bool nesterov, bool maximize,
                         bool is_first_step, OptionalTensor grad_scale, OptionalTensor found_inf) {
  fused_sgd(self, grads, buffers, weight_decay, momentum, lr.item<double>(), dampening, nesterov, maximize,
            is_first_step, grad_scale, found_inf);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_adam_", TORCH_FN((fused_adam<at::_ops::_fused_adam_, false>)));
  m.impl("_fused_adam_.tensor_lr", TORCH_FN((fused_adam_tensor_lr<at::_ops::_fused_adam_, false>)));
  m.impl("_fused_adamw_", TORCH_FN((fused_adam<at::_ops::_fused_adamw_, true>)));
  m.impl("_fused_adamw_.tensor_lr", TORCH_FN((fused_adam_tensor_lr<at::_ops::_fused_adamw_, true>)));
  m.impl("_fused_sgd_", fused_sgd);
  m.impl("_fused_sgd_.tensor_lr", fused_sgd_tensor_lr);
}

}  // namespace fl::bridge
