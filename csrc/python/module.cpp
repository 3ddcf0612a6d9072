// torch_fl._C: bindings only. Everything here is called from torch_fl's Python rooms; none of it is on the dispatch
// path.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include "bridge/allocator.h"
#include "bridge/dtype.h"
#include "bridge/generator.h"
#include "bridge/hooks.h"
#include "core/allocator.h"
#include "core/counters.h"
#include "core/device.h"
#include "core/emulation.h"
#include "core/error.h"
#include "core/memory_report.h"
#include "core/stream.h"
#include "python/bindings.h"
#include "uniops.h"

namespace fl::python {

namespace {

// Vendor errors become PyTorch's own exception types.
void raise_torch(fl_status status, const std::string& message) {
  switch (status) {
    case FL_STATUS_OUT_OF_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    case FL_STATUS_OUT_OF_RANGE:
      TORCH_CHECK_INDEX(false, message);
    case FL_STATUS_UNIMPLEMENTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, message);
    case FL_STATUS_INVALID_ARGUMENT:
    case FL_STATUS_FAILED_PRECONDITION:
    case FL_STATUS_NOT_FOUND:
      TORCH_CHECK(false, message);
    default:
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, status, message);
  }
}

std::vector<std::string> capability_names(uint32_t capabilities) {
  std::vector<std::string> names;
  const std::pair<uint32_t, const char*> all[] = {{FL_CAP_POINTERS, "pointers"},
                                                  {FL_CAP_IN_PLACE, "in_place"},
                                                  {FL_CAP_HOST_VISIBLE, "host_visible"},
                                                  {FL_CAP_COMPILER, "compiler"},
                                                  {FL_CAP_PEER, "peer"}};
  for (const auto& [bit, name] : all)
    if (capabilities & bit) names.emplace_back(name);
  return names;
}

py::dict device_info(int index) {
  const Device& d = device(index);
  py::dict out;
  out["index"] = d.index;
  out["ordinal"] = d.ordinal;
  out["name"] = d.name;
  out["chip"] = d.chip;
  out["arch"] = d.arch;
  out["uuid"] = d.uuid;
  out["adapter"] = std::string(d.adapter->name);
  out["adapter_version"] = std::string(d.adapter->version ? d.adapter->version : "");
  out["adapter_path"] = d.spec->path;
  out["profile_path"] = d.spec->profile_path;
  out["total_memory"] = d.total_memory;
  out["max_allocation"] = d.max_allocation;
  out["capabilities"] = capability_names(d.capabilities);
  out["alignment"] = d.alignment;
  const AllocatorSettings allocator = allocator_settings(device(index));
  out["prealloc_bytes"] = allocator.prealloc_bytes;
  out["min_block_bytes"] = allocator.min_block_bytes;
  out["expandable_segments"] = allocator.page_bytes != 0;
  out["multi_processor_count"] = d.multi_processor_count;
  out["lost"] = d.lost();
  return out;
}

Constraints to_constraints(const py::handle& given) {
  Constraints result;
  for (const auto& [key, value] : py::cast<std::map<std::string, int64_t>>(given)) {
    if (key == "contiguous")
      result.flags |= value ? FL_KERNEL_CONTIGUOUS : 0u;
    else if (key == "no_broadcast")
      result.flags |= value ? FL_KERNEL_NO_BROADCAST : 0u;
    else if (key == "no_immediate")
      result.flags |= value ? FL_KERNEL_NO_IMMEDIATE : 0u;
    else if (key == "max_ndim")
      result.max_ndim = static_cast<int32_t>(value);
    else if (key == "alignment")
      result.alignment = static_cast<uint32_t>(value);
    else if (key == "max_numel")
      result.max_numel = static_cast<uint64_t>(value);
    else
      throw py::key_error("unknown constraint: " + key);
  }
  return result;
}

Declared::Sync sync_by_name(const std::string& name) {
  if (name == "event") return Declared::Sync::Event;
  if (name == "stream") return Declared::Sync::Stream;
  if (name == "device") return Declared::Sync::Device;
  throw py::value_error("unknown sync_primitive '" + name + "': event, stream or device");
}

AdapterSpec to_spec(const py::dict& dict) {
  AdapterSpec spec;
  Declared says;
  for (const auto& [key, value] : dict) {
    const auto name = py::cast<std::string>(key);
    if (name == "path")
      spec.path = py::cast<std::string>(value);
    else if (name == "device_name")
      spec.device_name = py::cast<std::string>(value);
    else if (name == "profile_path")
      spec.profile_path = py::cast<std::string>(value);
    else if (name == "max_devices")
      spec.max_devices = py::cast<int>(value);
    else if (name == "only_listed")
      spec.only_listed = py::cast<bool>(value);
    else if (name == "native")
      spec.native = py::cast<std::map<std::string, std::vector<std::string>>>(value);
    else if (name == "not_native")
      spec.not_native = py::cast<std::vector<std::string>>(value);
    else if (name == "pins")
      spec.pins = py::cast<std::map<std::string, std::string>>(value);
    else if (name == "dtypes")
      spec.dtypes = py::cast<std::vector<std::string>>(value);
    else if (name == "visible")
      spec.visible = py::cast<std::vector<std::string>>(value);
    else if (name == "match")
      spec.match = py::cast<std::map<std::string, std::string>>(value);
    else if (name == "options")
      spec.options = py::cast<std::map<std::string, std::string>>(value);
    else if (name == "constraints")
      spec.constraints = to_constraints(value);
    else if (name == "op_constraints")
      for (const auto& [uniop, given] : py::cast<std::map<std::string, py::object>>(value))
        spec.op_constraints.emplace(uniop, to_constraints(given));
    else if (name == "sync_primitive")
      says.sync_primitive = sync_by_name(py::cast<std::string>(value));
    else if (name == "unified_memory")
      says.unified_memory = py::cast<bool>(value);
    else if (name == "cache_dir")
      spec.cache_dir = py::cast<std::string>(value);
    else if (name == "cache_max_mb")
      spec.cache_max_mb = py::cast<uint64_t>(value);
    else if (name == "memory_limit_bytes")
      spec.memory_limit_bytes = py::cast<uint64_t>(value);
    else if (name == "memory_fraction")
      spec.memory_fraction = py::cast<double>(value);
    else if (name == "prealloc_bytes")
      spec.prealloc_bytes = py::cast<uint64_t>(value);
    else if (name == "min_block_bytes")
      spec.min_block_bytes = py::cast<uint64_t>(value);
    else if (name == "alignment")
      spec.alignment = py::cast<uint64_t>(value);
    else if (name == "max_split_bytes")
      spec.max_split_bytes = py::cast<uint64_t>(value);
    else if (name == "garbage_collection_threshold")
      spec.garbage_collection_threshold = py::cast<double>(value);
    else if (name == "expandable_segments")
      spec.expandable_segments = py::cast<bool>(value);
    else
      throw py::key_error("unknown adapter spec field: " + name);
  }
  declare(spec.path, spec.device_name, says);
  return spec;
}

// The callable lives as long as the process: it may be needed by any first use of a device.
void set_discover_callable(py::function function) {
  auto* held = new py::function(std::move(function));
  set_discover([held]() {
    py::gil_scoped_acquire gil;
    std::vector<AdapterSpec> specs;
    try {
      for (const auto& item : py::cast<py::list>((*held)())) specs.push_back(to_spec(py::cast<py::dict>(item)));
    } catch (py::error_already_set& e) {  // the sentence without Python's trace: it ends in adapter_failures()
      throw std::runtime_error(py::cast<std::string>(py::str(e.value())));
    }
    return specs;
  });
}

DType dtype_by_name(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i)
    if (name == dtype_name(static_cast<DType>(i))) return static_cast<DType>(i);
  throw py::value_error("unknown dtype name: " + name);
}

py::dict open_adapter_info(const std::string& path) {
  const fl_adapter* a = nullptr;
  {
    py::gil_scoped_release no_gil;
    a = open_adapter(path);
  }
  py::dict out;
  out["name"] = std::string(a->name);
  out["vendor"] = std::string(a->vendor ? a->vendor : "");
  out["version"] = std::string(a->version ? a->version : "");
  out["abi"] = std::to_string(a->abi_major) + "." + std::to_string(a->abi_minor);
  return out;
}

// Which options of a profile the library does not take, and why: [(key, reason)]. Opens no device.
std::vector<std::pair<std::string, std::string>> refused_options(const std::string& path,
                                                                 const std::map<std::string, std::string>& options) {
  const fl_adapter* a = open_adapter(path);
  std::vector<std::pair<std::string, std::string>> refused;
  for (const auto& [key, value] : options) {
    const fl_status status =
        FL_HAS(a, configure) ? a->configure(key.c_str(), value.c_str()) : static_cast<fl_status>(FL_STATUS_UNIMPLEMENTED);
    if (status == FL_STATUS_OK) continue;
    const fl_error* words = a->last_error();
    refused.emplace_back(key, !FL_HAS(a, configure)               ? "it has no options at all"
                              : status == FL_STATUS_UNIMPLEMENTED ? "it has no option of this name"
                              : words != nullptr && words->message != nullptr ? words->message
                                                                              : "it does not take this value");
  }
  return refused;
}

// Everything a chip has, asked kernel by kernel: [(uniop, in, out)].
std::vector<std::tuple<std::string, std::string, std::string>> adapter_kernels(const std::string& path, int ordinal) {
  const fl_adapter* a = open_adapter(path);
  std::vector<std::tuple<std::string, std::string, std::string>> found;
  int32_t devices = 0;
  const fl_status status = a->device_count(&devices);
  if (status != FL_STATUS_OK) raise_status(*a, -1, status, "device_count");
  if (!FL_HAS(a, kernel_find) || ordinal >= devices) return found;
  const auto names = bridge::uniop_names();
  for (const char* name : names) {
    if (name == nullptr) continue;
    for (int in = 0; in < static_cast<int>(DType::UInt16); ++in)
      for (int out = 0; out < static_cast<int>(DType::UInt16); ++out) {
        fl_kernel kernel{};
        kernel.struct_size = sizeof(kernel);
        if (a->kernel_find(ordinal, name, to_abi(static_cast<DType>(in)), to_abi(static_cast<DType>(out)), &kernel) ==
            FL_STATUS_OK)
          found.emplace_back(name, dtype_name(static_cast<DType>(in)), dtype_name(static_cast<DType>(out)));
      }
  }
  return found;
}

void bind_devices(py::module& m) {
  m.def("device_count", [] {
    py::gil_scoped_release no_gil;
    return device_count();
  });
  m.def("devices_opened", &devices_opened);
  m.def("device_info", &device_info);
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("exchange_device", &exchange_device);
  m.def("synchronize", [](int index) {
    py::gil_scoped_release no_gil;
    synchronize(index);
  });
  m.def("in_bad_fork", &in_bad_fork);
  m.def("set_discover", &set_discover_callable);
  m.def("add_adapter", [](const py::dict& spec) {
    const AdapterSpec s = to_spec(spec);
    py::gil_scoped_release no_gil;
    return add_adapter(s);
  });
  m.def("adapter_failures", [] {
    py::list out;
    for (const auto& f : adapter_failures()) {
      py::dict item;
      item["path"] = f.path;
      item["reason"] = f.reason;
      out.append(item);
    }
    return out;
  });
  m.def("open_adapter", &open_adapter_info);
  m.def("refused_options", &refused_options);
  m.def("adapter_kernels", &adapter_kernels);
  m.def("has_kernel", [](int index, const std::string& uniop, const std::string& in, const std::string& out) {
    const auto names = bridge::uniop_names();
    for (int id = 0; id < static_cast<int>(names.size()); ++id)
      if (names[id] != nullptr && uniop == names[id])
        return device(index).kernel(id, dtype_by_name(in), dtype_by_name(out)) != nullptr;
    throw py::value_error("unknown UniOp: " + uniop);
  });
  m.def("seed_new_generators", &bridge::seed_new_generators);
  m.def("default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_Wrap(bridge::default_generator(static_cast<c10::DeviceIndex>(index))));
  });
}

void bind_streams(py::module& m) {  // streams as (id, device index); torch.Stream carries them in Python
  m.def("default_stream", [](int index) { return default_stream(index).id; });
  m.def("current_stream", [](int index) { return current_stream(index).id; });
  m.def("stream_priority", [](int index, int64_t id) { return stream_from_id(index, id).priority; });
  m.attr("priority_range") = py::make_tuple(0, kMostUrgent);
  m.def("set_stream", [](int index, int64_t id) { set_current_stream(stream_from_id(index, id)); });
}

}  // namespace

}  // namespace fl::python

PYBIND11_MODULE(_C, m) {
  using namespace fl;
  static const auto names = bridge::uniop_names();
  set_uniop_names(names.data(), static_cast<int>(names.size()));
  set_raiser(&python::raise_torch);
  bridge::register_allocator();
  bridge::register_hooks();
  m.attr("built_for_torch") = TORCH_FL_BUILT_FOR_TORCH;
  m.attr("abi_version") = std::to_string(FL_ABI_MAJOR) + "." + std::to_string(FL_ABI_MINOR);
  python::bind_devices(m);
  python::bind_streams(m);
  python::bind_debug(m);
  python::bind_memory(m);
  python::bind_memory_history(m);
  python::bind_routing(m);
  python::bind_user_kernels(m);
  python::bind_distributed(m);
}
