// The switch in PyTorch's dispatcher between users' kernels and what was there. See user_kernel.h.
#include "bridge/user_kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <array>
#include <mutex>
#include <unordered_map>

#include "bridge/device_check.h"
#include "bridge/device_context.h"
#include "bridge/settings.h"

namespace fl::bridge {

namespace {

UserKernelRunner run_kernel = nullptr;
thread_local const UserKernelInUse* in_use = nullptr;

template <class Visit>
bool any_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) return value.toTensor().defined() && visit(value.toTensor());
  if (!value.isList()) return false;
  for (const c10::IValue& item : value.toListRef())
    if (any_tensor(item, visit)) return true;
  return false;
}

template <class Visit>
bool any_tensor(c10::ArrayRef<c10::IValue> values, const Visit& visit) {
  for (const c10::IValue& value : values)
    if (any_tensor(value, visit)) return true;
  return false;
}

int device_of(c10::ArrayRef<c10::IValue> values) {
  int index = -1;
  any_tensor(values, [&](const at::Tensor& t) {
    if (t.is_privateuseone()) index = t.device().index();
    return index >= 0;
  });
  for (const c10::IValue& value : values)  // a factory
    if (index < 0 && value.isDevice() && value.toDevice().is_privateuseone()) index = value.toDevice().index();
  return index >= 0 ? index : current_device();
}

bool needs_gradient(c10::ArrayRef<c10::IValue> values) {
  const bool backward = c10::GradMode::is_enabled();
  return any_tensor(values, [&](const at::Tensor& t) {
    return (backward && t.requires_grad()) || t._fw_grad(/*level=*/0).defined();
  });
}

// What this operator's own kernels check. Those that ATen composes for all devices do not, and what copies between devices
// cannot.
std::optional<DeviceRule> checked_by(const c10::OperatorHandle& op, const std::string& name) {
  const bool composed = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                        op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (composed || name == "aten::_copy_from" || name == "aten::_copy_from_and_resize") return std::nullopt;
  return device_rule(name);
}

struct Overload {  // lives for ever
  c10::OperatorHandle op;
  int id;
  std::optional<DeviceRule> rule;  // for its operands' devices
  size_t num_arguments;
  std::array<std::atomic<int64_t>, kMaxDevices> kernels{};
  // Guarded by registry().mutex.
  int num_kernels = 0;
  std::optional<c10::RegistrationHandleRAII> installed, installed_autograd;

  Overload(c10::OperatorHandle handle, const std::string& name)
      : op(std::move(handle)),
        id(overload_id(name.c_str())),
        rule(checked_by(op, name)),
        num_arguments(op.schema().arguments().size()) {}
};

// For PrivateUse1.
class Switch final : public c10::OperatorKernel {
 public:
  Switch(Overload& overload, c10::SafeKernelFunction below) : overload_(overload), below_(std::move(below)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const int device = device_of(torch::jit::last(*stack, overload_.num_arguments));
    const int64_t kernel = overload_.kernels[device].load(std::memory_order_acquire);
    if (kernel == 0 || !run(kernel, device, op, stack)) below_.callBoxed(op, keys, stack);
  }

 private:
  bool run(int64_t kernel, int device, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const int64_t group = user_kernel_group(kernel);
    if (user_kernel_in_use(group) || !settings.enable_library.load(std::memory_order_relaxed)) return false;
    if (overload_.rule) operands_device(op, *stack, *overload_.rule);  // raises if they are on several
    const UserKernelInUse running(group);
    const DeviceContext context(c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)));
    struct Depth {
      Depth() { ++user_kernel_depth; }
      ~Depth() { --user_kernel_depth; }
    } depth;
    if (!run_kernel(kernel, op, stack)) return false;
    count(device, overload_.id, Tier::Library);
    return true;
  }

  Overload& overload_;
  const c10::SafeKernelFunction below_;
};

// For AutogradPrivateUse1, of operators that ATen composes of others: their gradient is that of the composition, which is
// therefore used where one is needed.
class AutogradSwitch final : public c10::OperatorKernel {
 public:
  AutogradSwitch(Overload& overload, c10::SafeKernelFunction below) : overload_(overload), below_(std::move(below)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, overload_.num_arguments);
    const bool wanted = overload_.kernels[device_of(arguments)].load(std::memory_order_acquire) != 0;
    if (!wanted || needs_gradient(arguments)) return below_.callBoxed(op, keys, stack);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }

 private:
  Overload& overload_;
  const c10::SafeKernelFunction below_;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, Overload*> overloads;
  // Switches that once were in PyTorch's table: a thread may still be inside one.
  std::vector<c10::KernelFunction> kept;
};
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

// PyTorch warns, once for all operators, that a kernel is overridden: here that is what was asked for.
class NoWarnings : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

template <class Functor>
c10::RegistrationHandleRAII install(Overload& overload, c10::DispatchKey key) {
  auto functor = std::make_unique<Functor>(overload, overload.op.getComputedKernelForDispatchKey(key));
  registry().kept.push_back(c10::KernelFunction::makeFromBoxedFunctor(std::move(functor)));
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  return c10::Dispatcher::singleton().registerImpl(overload.op.operator_name(), key, registry().kept.back(),
                                                   std::nullopt, nullptr, "torch_fl.kernel");
}

// Where autograd has no formula but what the operator is composed of.
bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::AutogradPrivateUse1);
}

void install(Overload& overload) {
  const bool composite = is_composite(overload.op);
  // Autograd's entry first: it is computed anew, to "none", as soon as there is a kernel for PrivateUse1.
  if (composite)
    overload.installed_autograd.emplace(install<AutogradSwitch>(overload, c10::DispatchKey::AutogradPrivateUse1));
  overload.installed.emplace(install<Switch>(overload, c10::DispatchKey::PrivateUse1));
}

}  // namespace

thread_local int user_kernel_depth = 0;

UserKernelInUse::UserKernelInUse(int64_t group) : group_(group), outer_(in_use) { in_use = this; }
UserKernelInUse::~UserKernelInUse() { in_use = outer_; }

bool user_kernel_in_use(int64_t group) {
  for (const UserKernelInUse* each = in_use; each != nullptr; each = each->outer_)
    if (each->group_ == group) return true;
  return false;
}

void set_user_kernel_runner(UserKernelRunner runner) { run_kernel = runner; }

void set_user_kernel(const std::string& name, const std::string& overload, int device, int64_t kernel) {
  fl::device(device);  // raises if there is none
  const std::string full = overload.empty() ? name : name + "." + overload;
  std::lock_guard lock(registry().mutex);
  auto& slot = registry().overloads[full];
  if (slot == nullptr)
    slot = new Overload(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()), full);
  const bool had = slot->kernels[device].load() != 0, has = kernel != 0;
  if (has && !had && slot->num_kernels++ == 0) install(*slot);
  slot->kernels[device].store(kernel, std::memory_order_release);
  if (had && !has && --slot->num_kernels == 0) {
    slot->installed.reset();
    slot->installed_autograd.reset();
  }
}

}  // namespace fl::bridge
