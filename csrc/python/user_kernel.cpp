// Bindings of users' kernels (torch_fl.kernel): numbers become functions of Python here.
#include <torch/csrc/Exceptions.h>

#include <unordered_map>

#include "bridge/user_kernel.h"
#include "python/bindings.h"
#include "python/stack.h"

namespace fl::python {

namespace {

using bridge::UserKernelInUse;

std::unordered_map<int64_t, py::object>& functions() {  // guarded by the GIL
  static auto* all = new std::unordered_map<int64_t, py::object>;
  return *all;
}

bool run(int64_t kernel, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  const auto found = functions().find(kernel);
  if (found == functions().end()) return false;  // another thread has just removed it
  const py::object function = found->second;     // it may be removed during the call
  const auto num_arguments = op.schema().arguments().size();
  const auto [args, kwargs] = to_python(op, torch::jit::last(*stack, num_arguments));
  PyObject* result = PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
  if (result == nullptr) {
    python_error error;
    error.persist();
    throw error;
  }
  const py::object out = py::reinterpret_steal<py::object>(result);
  if (out.ptr() == Py_NotImplemented) return false;
  torch::jit::drop(*stack, num_arguments);
  push_results(op, stack, out);
  return true;
}

// The scope of kernel.original().
class Original {
 public:
  explicit Original(int64_t kernel) : group_(bridge::user_kernel_group(kernel)) {}
  void enter() { scope_ = std::make_unique<UserKernelInUse>(group_); }
  void exit() { scope_.reset(); }

 private:
  const int64_t group_;
  std::unique_ptr<UserKernelInUse> scope_;
};

}  // namespace

void bind_user_kernels(py::module& m) {
  bridge::set_user_kernel_runner(&run);
  m.def("add_user_kernel", [](int64_t kernel, py::function function) { functions()[kernel] = std::move(function); });
  m.def("forget_user_kernel", [](int64_t kernel) { functions().erase(kernel); });
  m.def("set_user_kernel", &bridge::set_user_kernel, py::call_guard<py::gil_scoped_release>());
  py::class_<Original>(m, "UserKernelOriginal")
      .def(py::init<int64_t>())
      .def("__enter__", &Original::enter)
      .def("__exit__", [](Original& self, const py::args&) { self.exit(); });
}

}  // namespace fl::python
