// Chooses the tier of a call that no native kernel took. See route.h.
#include "bridge/route.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <unordered_map>

#include "bridge/device_check.h"
#include "bridge/settings.h"
#include "core/device.h"

namespace fl::bridge {

namespace {

constexpr Tier kNoPin = Tier::Native;

struct Overload {  // what is known of one operator; lives for ever
  int id;
  std::string name;  // "aten::add.Tensor"
  std::string base;  // "aten::add"
  DeviceRule devices;
  std::atomic<bool> no_decomposition{false};
  std::atomic<bool> no_library{false};
};

struct Routes {
  std::shared_mutex mutex;
  std::unordered_map<std::string, Overload*> overloads;
  std::map<std::pair<int, std::string>, Tier> pins;
};
Routes& routes() {
  static auto* r = new Routes;
  return *r;
}

PythonTier python_tier = nullptr;

// Overloads that a Python tier is running on this thread: one that reaches itself again must not try that tier once
// more.
struct Running {
  const Overload* overload;
  Tier tier;
  bool reached_itself;
};
thread_local std::vector<Running> running;

Overload& overload_of(const c10::OperatorHandle& op) {
  const auto& schema_name = op.operator_name();
  std::string name =
      schema_name.overload_name.empty() ? schema_name.name : schema_name.name + "." + schema_name.overload_name;
  auto& r = routes();
  {
    std::shared_lock lock(r.mutex);
    if (auto it = r.overloads.find(name); it != r.overloads.end()) return *it->second;
  }
  std::unique_lock lock(r.mutex);
  auto& slot = r.overloads[name];
  if (slot == nullptr) {
    slot = new Overload;
    slot->id = overload_id(name.c_str());
    slot->base = schema_name.name;
    slot->devices = device_rule(name);
    slot->name = std::move(name);
  }
  return *slot;
}

Tier pin_of(int device, const Overload& overload) {
  auto& r = routes();
  std::shared_lock lock(r.mutex);
  if (!r.pins.empty())
    for (const auto& name : {overload.name, overload.base})
      if (auto it = r.pins.find({device, name}); it != r.pins.end()) return it->second;
  const auto& declared = fl::device(device).spec->pins;
  if (!declared.empty())
    for (const auto& name : {overload.name, overload.base})
      if (auto it = declared.find(name); it != declared.end())
        return it->second == "cpu" ? Tier::Cpu : it->second == "library" ? Tier::Library : Tier::Decompose;
  return kNoPin;
}

std::string describe_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::ostringstream text;
  const char* separator = "";
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size()))
    visit_tensors(value, [&](const at::Tensor& t) {
      text << separator << c10::toString(t.scalar_type()) << t.sizes() << " on " << t.device();
      separator = ", ";
    });
  return text.str();
}

bool try_python(Overload& overload, const c10::OperatorHandle& op, torch::jit::Stack* stack, Tier tier, int device) {
  if (python_tier == nullptr) return false;
  auto& absent = tier == Tier::Decompose ? overload.no_decomposition : overload.no_library;
  if (absent.load(std::memory_order_relaxed)) return false;
  for (Running& outer : running) {
    if (outer.overload != &overload || outer.tier != tier) continue;
    outer.reached_itself = true;
    return false;
  }
  running.push_back({&overload, tier, false});
  struct Pop {
    ~Pop() { running.pop_back(); }
  } pop;
  const PythonResult result = python_tier(op, stack, tier);
  if (result == PythonResult::Absent) absent.store(true);
  if (result != PythonResult::Done) return false;
  if (!running.back().reached_itself) count(device, overload.id, tier);  // else the inner call was counted
  return true;
}

[[noreturn]] void raise_no_route(const Overload& overload, const c10::OperatorHandle& op,
                                 const torch::jit::Stack& stack, c10::Device device) {
  const char* why = forbid_cpu_depth > 0
                        ? "the CPU tier is forbidden here (torch_fl.routing.no_cpu_fallback())"
                        : "the CPU tier is switched off (fallback.enable_cpu_fallback or TORCH_FL_CPU_FALLBACK=0)";
  TORCH_CHECK_NOT_IMPLEMENTED(false, overload.name, " has no native kernel, decomposition or library kernel on ",
                              device, " (", fl::device(device.index()).chip, ") for (", describe_arguments(op, stack),
                              "), and ", why,
                              ". Allow the CPU tier, add a kernel to the chip's adapter, or register a decomposition; "
                              "`flagos-torch-fl explain ",
                              overload.base, "` shows the routes.");
}

}  // namespace

void set_python_tier(PythonTier tier) { python_tier = tier; }

void pin(int device, const std::string& name, Tier tier) {
  auto& r = routes();
  std::unique_lock lock(r.mutex);
  r.pins[{device, name}] = tier;
}

void unpin_all() {
  auto& r = routes();
  std::unique_lock lock(r.mutex);
  r.pins.clear();
}

void reset_routes() {
  auto& r = routes();
  std::unique_lock lock(r.mutex);
  for (auto& [name, overload] : r.overloads) {
    overload->no_decomposition.store(false);
    overload->no_library.store(false);
  }
}

void route(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Overload& overload = overload_of(op);
  const c10::Device device = operands_device(op, *stack, overload.devices);
  const Tier first = pin_of(device.index(), overload);
  if (first <= Tier::Decompose && settings.enable_decompose.load(std::memory_order_relaxed) &&
      try_python(overload, op, stack, Tier::Decompose, device.index())) {
    return;
  }
  if (first <= Tier::Library && settings.enable_library.load(std::memory_order_relaxed) &&
      try_python(overload, op, stack, Tier::Library, device.index())) {
    return;
  }
  if (!settings.enable_cpu.load(std::memory_order_relaxed) || forbid_cpu_depth > 0)
    raise_no_route(overload, op, *stack, device);
  cpu_tier(op, stack, device);
  count(device.index(), overload.id, Tier::Cpu);
}

}  // namespace fl::bridge
