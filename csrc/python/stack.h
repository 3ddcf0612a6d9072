// What passes between PyTorch's boxed calls and functions in Python.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/utils/pybind.h>

namespace fl::python {

// Positional arguments in place, keyword-only ones by name.
std::pair<py::tuple, py::dict> to_python(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> values);
void push_results(const c10::OperatorHandle& op, torch::jit::Stack* stack, const py::object& out);

}  // namespace fl::python
