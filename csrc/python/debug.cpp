// Bindings of the debug modes. Races are shown to Python as dicts, with the Python stacks of both sides.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include "bridge/debug.h"
#include "python/bindings.h"

namespace fl::python {

namespace {

py::function* reporter = nullptr;

std::shared_ptr<void> capture() { return torch::CapturedTraceback::gather(true, false, false); }

// [(file, line, function)], innermost first.
py::list frames_of(const RaceWork& work) {
  py::list frames;
  if (work.stack == nullptr) return frames;
  const auto symbols = torch::symbolize({static_cast<torch::CapturedTraceback*>(work.stack.get())});
  for (const uint64_t index : symbols.tracebacks.at(0)) {
    const auto& frame = symbols.all_frames.at(index);
    frames.append(py::make_tuple(frame.filename, frame.lineno, frame.funcname));
  }
  return frames;
}

py::object side_of(const std::shared_ptr<const RaceWork>& work, bool writes) {
  if (work == nullptr) return py::none();
  py::dict side;
  side["op"] = work->op;
  side["device"] = work->stream != nullptr ? py::object(py::int_(work->stream->device->index)) : py::none();
  side["stream"] = work->stream != nullptr ? py::object(py::int_(work->stream->id)) : py::none();
  side["writes"] = writes;
  side["stack"] = frames_of(*work);
  return side;
}

const char* cause_name(RaceReport::Cause cause) {
  switch (cause) {
    case RaceReport::Cause::Freed:
      return "freed";
    case RaceReport::Cause::Reused:
      return "reused";
    case RaceReport::Cause::Returned:
      return "returned";
    default:
      return "unordered";
  }
}

py::dict to_dict(const RaceReport& report) {
  py::dict out;
  out["cause"] = cause_name(report.cause);
  out["memory"] = report.space;
  out["first"] = side_of(report.first, report.first_writes);
  out["second"] = side_of(report.second, report.second_writes);
  out["block_address"] = report.block;
  out["block_bytes"] = report.block_bytes;
  out["block_stream"] = report.owner != nullptr ? py::object(py::int_(report.owner->id)) : py::none();
  out["begin"] = report.begin;
  out["end"] = report.end;
  return out;
}

// What Python raises leaves as PyTorch's own kind of exception, which autograd's threads can carry.
void report(const std::vector<RaceReport>& reports) {
  if (reporter == nullptr || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  try {
    for (const RaceReport& one : reports) (*reporter)(to_dict(one));
  } catch (py::error_already_set& error) {
    error.restore();
    python_error carried;
    carried.persist();
    throw carried;
  }
}

}  // namespace

void bind_debug(py::module& m) {
  bridge::set_race_sink({&capture, &report});
  m.def("set_sync_debug", &bridge::set_sync_debug);
  m.def("set_race_check", &bridge::set_race_check, py::call_guard<py::gil_scoped_release>());
  m.def("pending_races", [] {
    py::list out;
    for (const RaceReport& one : race_pending()) out.append(to_dict(one));
    return out;
  });
  m.def("set_race_reporter", [](py::function function) {
    delete std::exchange(reporter, new py::function(std::move(function)));
  });
}

}  // namespace fl::python
