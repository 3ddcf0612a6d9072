// Bindings of the routes: switches, pins, counters, and the way into Python decompositions and library providers.
#include <torch/csrc/Exceptions.h>

#include <unordered_map>

#include "bridge/device_check.h"
#include "bridge/route.h"
#include "bridge/settings.h"
#include "core/counters.h"
#include "core/device.h"
#include "python/bindings.h"
#include "python/stack.h"

namespace fl::python {

namespace {

using bridge::PythonResult;

constexpr const char* kTierNames[] = {"native", "decompose", "library", "cpu"};

Tier tier_by_name(const std::string& name) {
  for (int i = 0; i < kNumTiers; ++i)
    if (name == kTierNames[i]) return static_cast<Tier>(i);
  throw py::value_error("unknown tier '" + name + "': native, decompose, library or cpu");
}

// resolve(tier name, overload name) -> callable or None; set by torch_fl.routing. Answers are kept per overload.
py::function* resolver = nullptr;
std::unordered_map<std::string, py::object>* resolved[kNumTiers] = {};

PythonResult run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Tier tier) {
  py::gil_scoped_acquire gil;
  if (resolver == nullptr) return PythonResult::Absent;
  auto*& table = resolved[static_cast<int>(tier)];
  if (table == nullptr) table = new std::unordered_map<std::string, py::object>;
  const auto& name = op.operator_name();
  const std::string key = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  auto it = table->find(key);
  if (it == table->end()) {
    py::object callable = (*resolver)(kTierNames[static_cast<int>(tier)], key);
    it = table->emplace(key, std::move(callable)).first;
  }
  if (it->second.is_none()) return PythonResult::Absent;
  const py::object callable = it->second;  // the table may change during the call
  const auto num_arguments = op.schema().arguments().size();
  auto [args, kwargs] = to_python(op, torch::jit::last(*stack, num_arguments));
  PyObject* result = PyObject_Call(callable.ptr(), args.ptr(), kwargs.ptr());
  if (result == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_NotImplementedError)) {
      PyErr_Clear();
      return PythonResult::Declined;
    }
    python_error error;
    error.persist();
    throw error;
  }
  py::object out = py::reinterpret_steal<py::object>(result);
  if (out.ptr() == Py_NotImplemented) return PythonResult::Declined;
  torch::jit::drop(*stack, num_arguments);
  push_results(op, stack, out);
  return PythonResult::Done;
}

void reset_python() {
  for (auto*& table : resolved)
    if (table != nullptr) table->clear();
  bridge::reset_routes();
}

}  // namespace

void bind_routing(py::module& m) {
  bridge::set_python_tier(&run);
  m.def("set_resolver", [](py::function function) {
    resolver = new py::function(std::move(function));
    reset_python();
  });
  m.def("reset_routes", &reset_python);
  m.def("set_tier_enabled", [](const std::string& name, bool enabled) {
    switch (tier_by_name(name)) {
      case Tier::Native:
        set_native_enabled(enabled);
        break;
      case Tier::Decompose:
        bridge::settings.enable_decompose = enabled;
        break;
      case Tier::Library:
        bridge::settings.enable_library = enabled;
        break;
      case Tier::Cpu:
        bridge::settings.enable_cpu = enabled;
        break;
    }
  });
  m.def("tier_enabled", [](const std::string& name) {
    switch (tier_by_name(name)) {
      case Tier::Decompose:
        return bridge::settings.enable_decompose.load();
      case Tier::Library:
        return bridge::settings.enable_library.load();
      case Tier::Cpu:
        return bridge::settings.enable_cpu.load();
      default:
        return true;
    }
  });
  m.def("set_uniop_enabled", &set_uniop_enabled);
  m.def("pin", [](int device, const std::string& name, const std::string& tier) {
    bridge::pin(device, name, tier_by_name(tier));
  });
  m.def("unpin_all", &bridge::unpin_all);
  m.def("only_checked", &bridge::only_checked);
  m.def("forbid_cpu", [](int change) { bridge::forbid_cpu_depth += change; });
  m.def("cpu_allowed", [] { return bridge::settings.enable_cpu.load() && bridge::forbid_cpu_depth == 0; });
  m.def("counts", [] {
    py::list out;
    for (const auto& c : counts())
      out.append(py::make_tuple(c.device, c.overload, kTierNames[static_cast<int>(c.tier)], c.calls));
    return out;
  });
  m.def("bytes_moved", &count_bytes_by_tier);
  m.def("reset_counts", &reset_counts);
}

}  // namespace fl::python
