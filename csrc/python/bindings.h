// Parts of torch_fl._C that live in files of their own.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace fl::python {
void bind_debug(py::module& m);
void bind_memory(py::module& m);
void bind_memory_history(py::module& m);
void bind_routing(py::module& m);
void bind_user_kernels(py::module& m);
void bind_distributed(py::module& m);
}
