// The tiers after native: decompose -> library -> CPU. Lowered wrappers call next_tier() when the chip has no kernel;
// everything without a wrapper arrives through the boxed fallback of the PrivateUse1 key.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/CPUFallback.h>

#include <string>

#include "core/counters.h"

namespace fl::bridge {

// The boxed entry: tries the tiers in order, counts, or raises an error that names op, dtypes, device and what to do.
void route(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Runs an operator on the CPU with exact copies (or zero-copy aliases in unified memory) and writes results back.
void cpu_tier(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device);

// Unboxed: next_tier<at::_ops::add_Tensor>(self, other, alpha).
template <class Op, class... Args>
decltype(auto) next_tier(Args&&... args) {
  return at::native::call_fallback_fn<&route, Op>::call(std::forward<Args>(args)...);
}
template <class Op, class... Args>
decltype(auto) next_tier_symint(Args&&... args) {
  return at::native::call_fallback_fn_symint<&route, Op>::call(std::forward<Args>(args)...);
}

// Installed by the Python binding: runs the Python decomposition or library provider of `op`. Unless Done, the stack is
// unchanged: Absent = there is none (remembered until reset_routes()), Declined = not for these arguments.
enum class PythonResult { Absent, Declined, Done };
using PythonTier = PythonResult (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack, Tier tier);
void set_python_tier(PythonTier tier);

// A pin (profile or user): the first tier that may serve an overload on a device. Name without overload pins all of it.
void pin(int device, const std::string& name, Tier tier);
void unpin_all();
// Drops cached answers ("no decomposition", pins) after switches changed.
void reset_routes();

}  // namespace fl::bridge
