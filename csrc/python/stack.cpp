// Arguments of a boxed call as Python objects, and results back. See stack.h.
#include "python/stack.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

namespace fl::python {

namespace {

// dtypes, layouts and memory formats travel as integers in the stack; Python wants the objects. Null: something else.
py::object enumerator(const c10::Argument& argument, const c10::IValue& value) {
  if (!value.isInt()) return {};
  auto type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  const auto borrow = [](auto* object) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(object));
  };
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return borrow(torch::getTHPDtype(value.toScalarType()));
    case c10::TypeKind::LayoutType:
      return borrow(torch::getTHPLayout(value.toLayout()));
    case c10::TypeKind::MemoryFormatType:
      return borrow(torch::utils::getTHPMemoryFormat(value.toMemoryFormat()));
    default:
      return {};
  }
}

}  // namespace

std::pair<py::tuple, py::dict> to_python(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> values) {
  py::list args;
  py::dict kwargs;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    py::object value = enumerator(arguments[i], values[i]);
    if (!value) value = torch::jit::toPyObject(values[i]);
    if (arguments[i].kwarg_only())
      kwargs[py::str(arguments[i].name())] = std::move(value);
    else
      args.append(std::move(value));
  }
  return {py::tuple(args), kwargs};
}

void push_results(const c10::OperatorHandle& op, torch::jit::Stack* stack, const py::object& out) {
  const auto& returns = op.schema().returns();
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(out, returns[0].type()));
    return;
  }
  if (returns.empty()) return;
  const auto items = py::cast<py::sequence>(out);
  TORCH_CHECK(items.size() == returns.size(), op.schema().name(), ": its implementation in Python returned ", items.size(),
              " results, the operator has ", returns.size());
  for (size_t i = 0; i < returns.size(); ++i) stack->push_back(torch::jit::toIValue(items[i], returns[i].type()));
}

}  // namespace fl::python
