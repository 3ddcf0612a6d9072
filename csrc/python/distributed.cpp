// Bindings of the c10d backend "flagos": made from Python, which knows how to make gloo, and seen from there as a
// torch.distributed Backend like any other.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bridge/process_group.h"
#include "python/bindings.h"

#include <pybind11/chrono.h>

namespace fl::python {

namespace {

using bridge::StagedBackend;
using Milliseconds = std::chrono::milliseconds;

// The last copy may go away on any thread, or after the interpreter has.
std::shared_ptr<py::function> hold(py::function function) {
  return std::shared_ptr<py::function>(new py::function(std::move(function)), [](py::function* held) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    delete held;
  });
}

c10::intrusive_ptr<c10d::Backend> make_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                     Milliseconds timeout, py::function make_host, const std::string& name,
                                                     const std::vector<uint64_t>& global_ranks) {
  auto factory = [held = hold(std::move(make_host))](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                     Milliseconds timeout) {
    py::gil_scoped_acquire gil;
    return py::cast<c10::intrusive_ptr<c10d::Backend>>((*held)(store, rank, size, timeout));
  };
  py::gil_scoped_release no_gil;  // meeting the other ranks may take long
  auto backend = c10::make_intrusive<StagedBackend>(store, rank, size, timeout, std::move(factory));
  backend->getBackendOptions()->group_name = name;
  backend->getBackendOptions()->global_ranks_in_group = global_ranks;
  return backend;
}

}  // namespace

void bind_distributed(py::module& m) {
  m.def("make_process_group", &make_process_group, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("make_host"), py::arg("name"), py::arg("global_ranks"));
  m.def("complete_group", &bridge::complete_group);
}

}  // namespace fl::python
