// Bindings of the c10d backend "flagos": made from Python, which knows how to make gloo, and seen from there as a
// torch.distributed Backend like any other.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bridge/process_group.h"
#include "python/bindings.h"

#include <pybind11/chrono.h>

namespace fl::python {

// How Python owns a backend: its destructor waits for threads that may themselves need the GIL, so it runs without it.
// One intrusive_ptr and nothing else: torch reads the holders of backends as such.
template <typename T>
class NoGilHolder {
 public:
  NoGilHolder() = default;
  explicit NoGilHolder(T* object) : pointer_(c10::intrusive_ptr<T>::unsafe_steal_from_new(object)) {}
  NoGilHolder(c10::intrusive_ptr<T> pointer) : pointer_(std::move(pointer)) {}
  NoGilHolder(const NoGilHolder&) = default;
  NoGilHolder(NoGilHolder&&) noexcept = default;
  ~NoGilHolder() {
    if (!pointer_.defined() || !PyGILState_Check()) return;
    py::gil_scoped_release no_gil;
    pointer_.reset();
  }
  T* get() const { return pointer_.get(); }

 private:
  c10::intrusive_ptr<T> pointer_;
};

}  // namespace fl::python

PYBIND11_DECLARE_HOLDER_TYPE(T, fl::python::NoGilHolder<T>, true)

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

NoGilHolder<StagedBackend> make_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              Milliseconds timeout, py::function make_host, const std::string& name,
                                              const std::vector<uint64_t>& global_ranks) {
  auto factory = [held = hold(std::move(make_host))](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                     Milliseconds timeout) {
    py::gil_scoped_acquire gil;
    return py::cast<c10::intrusive_ptr<c10d::Backend>>((*held)(store, rank, size, timeout));
  };
  py::gil_scoped_release no_gil;  // meeting the other ranks may take long
  auto backend = c10::make_intrusive<StagedBackend>(store, rank, size, timeout, std::move(factory));
  backend->options()->group_name = name;
  backend->options()->global_ranks_in_group = global_ranks;
  return backend;
}

}  // namespace

void bind_distributed(py::module& m) {
  using Options = StagedBackend::StagedOptions;
  py::module::import("torch._C._distributed_c10d");  // the base classes
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(m, "StagedOptions")
      .def(py::init([](Milliseconds timeout) { return c10::make_intrusive<Options>(timeout); }), py::arg("timeout"))
      .def("__deepcopy__", [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });
  py::class_<StagedBackend, NoGilHolder<StagedBackend>, c10d::Backend>(m, "StagedBackend")
      .def_property_readonly("options", &StagedBackend::options);
  m.def("make_process_group", &make_process_group, py::arg("store"), py::arg("rank"), py::arg("size"),
        py::arg("timeout"), py::arg("make_host"), py::arg("name"), py::arg("global_ranks"));
  m.def("complete_group", &bridge::complete_group);
}

}  // namespace fl::python
