// Bindings of the memory history: switches, and snapshots in the form of PyTorch's memory viewer, with stacks by
// torch::CapturedTraceback. The keys are those of torch.cuda.memory._snapshot().
#include <ATen/record_function.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "core/allocator.h"
#include "core/internal.h"
#include "core/memory_history.h"
#include "python/bindings.h"

namespace torch {
// Exported by libtorch_python; its header needs nlohmann/json, which torch does not ship.
void freeDeadCapturedTracebackFrames();
}  // namespace torch

namespace fl::python {

namespace {

CapturedStack capture_stack(bool cpp_frames) {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, cpp_frames);
}

// ---------------------------------------------------------------- stacks

// Turns captured stacks into lists of frames; each stack and each frame becomes one Python object.
class Symbolizer {
 public:
  // The list is filled by fill(); an empty one for no stack.
  py::list frames(const CapturedStack& stack) {
    if (stack == nullptr) return none_;
    const auto [found, is_new] = lists_.try_emplace(stack.get());
    if (is_new) stacks_.push_back(static_cast<torch::CapturedTraceback*>(stack.get()));
    return found->second;
  }
  void fill() {
    const torch::SymbolizedTracebacks all = torch::symbolize(stacks_);
    std::vector<py::dict> frames;
    for (const auto& frame : all.all_frames) {
      py::dict made;
      made["name"] = frame.funcname;
      made["filename"] = frame.filename;
      made["line"] = frame.lineno;
      frames.push_back(std::move(made));
    }
    for (size_t i = 0; i < stacks_.size(); ++i) {
      py::list& list = lists_.at(stacks_[i]);
      for (const uint64_t frame : all.tracebacks[i]) list.append(frames[frame]);
    }
  }

 private:
  std::unordered_map<void*, py::list> lists_;
  std::vector<torch::CapturedTraceback*> stacks_;
  py::list none_;
};

// ---------------------------------------------------------------- record_function annotations

struct Annotation {
  std::string name;
  const char* stage;
  int device;
  int64_t time_us;
};
struct Annotations {
  std::mutex mutex;
  std::deque<Annotation> all;
  uint64_t most = 0;  // kept; 0: off
  at::CallbackHandle handle = 0;
};
Annotations& annotations() {
  static auto* all = new Annotations;
  return *all;
}

void annotate(const at::RecordFunction& function, const char* stage) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Annotations& all = annotations();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.most == 0) return;
  if (all.all.size() >= all.most) all.all.pop_front();
  all.all.push_back({function.name(), stage, current_device(),
                     std::chrono::duration_cast<std::chrono::microseconds>(now).count()});
}

void record_annotations(uint64_t most, bool all_threads) {
  Annotations& all = annotations();
  if (all.handle != 0) at::removeCallback(all.handle);
  all.handle = 0;
  std::lock_guard<std::mutex> lock(all.mutex);
  all.all.clear();
  all.most = most;
  if (most == 0) return;
  auto callback = at::RecordFunctionCallback(
                      [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
                        annotate(f, "START");
                        return nullptr;
                      },
                      [](const at::RecordFunction& f, at::ObserverContext*) { annotate(f, "END"); })
                      .scopes({at::RecordScope::USER_SCOPE});
  all.handle = all_threads ? at::addGlobalCallback(callback) : at::addThreadLocalCallback(callback);
}

// ---------------------------------------------------------------- snapshot

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

py::dict block_entry(const SegmentInfo::BlockInfo& block, Symbolizer& stacks) {
  py::dict out;
  out["address"] = number(block.address);
  out["size"] = block.size;
  out["requested_size"] = block.requested;
  out["state"] = block.pending ? "active_pending_free" : block.allocated ? "active_allocated" : "inactive";
  out["frames"] = stacks.frames(block.stack);
  return out;
}

py::dict segment_entry(int device, const SegmentInfo& segment, Symbolizer& stacks) {
  py::list blocks;
  uint64_t allocated = 0, active = 0, requested = 0;
  for (const auto& block : segment.blocks) {
    if (block.allocated) active += block.size;
    if (block.allocated && !block.pending) allocated += block.size;
    requested += block.requested;
    blocks.append(block_entry(block, stacks));
  }
  py::dict out;
  out["device"] = device;
  out["address"] = number(segment.address);
  out["total_size"] = segment.size;
  out["allocated_size"] = allocated;
  out["active_size"] = active;
  out["requested_size"] = requested;
  out["stream"] = segment.stream_id;
  out["segment_type"] = segment.small ? "small" : "large";
  out["segment_pool_id"] = py::make_tuple(0, 0);
  out["is_expandable"] = segment.expandable;
  out["frames"] = stacks.frames(segment.stack);
  out["blocks"] = blocks;
  return out;
}

py::dict event_entry(const MemoryEvent& event, Symbolizer& stacks) {
  py::dict out;
  out["action"] = memory_action_name(event.action);
  out[event.action == MemoryAction::Oom ? "device_free" : "addr"] =
      event.action == MemoryAction::Oom ? event.device_free : number(event.address);
  out["size"] = event.bytes;
  out["stream"] = event.stream_id;
  out["segment_pool_id"] = py::make_tuple(0, 0);
  out["time_us"] = event.time_us;
  out["frames"] = stacks.frames(event.stack);
  if (!event.metadata.empty()) out["user_metadata"] = event.metadata;
  return out;
}

// Pieces of the preallocated arena lie side by side and were one request to the device: one segment, as in its events.
std::vector<SegmentInfo> with_whole_arena(std::vector<SegmentInfo> segments) {
  std::vector<SegmentInfo> joined;
  for (SegmentInfo& next : segments) {
    SegmentInfo* last = joined.empty() ? nullptr : &joined.back();
    if (last == nullptr || !last->arena || !next.arena ||
        static_cast<char*>(last->address) + last->size != next.address) {
      joined.push_back(std::move(next));
      continue;
    }
    last->size += next.size;
    last->stream_id = 0;
    last->small = false;
    for (auto& block : next.blocks) last->blocks.push_back(std::move(block));
  }
  return joined;
}

py::dict snapshot(const std::vector<int>& devices) {
  struct Part {
    int device;
    std::vector<SegmentInfo> segments;
    std::vector<MemoryEvent> events;
    bool overflowed;
  };
  std::vector<Part> parts;
  {
    py::gil_scoped_release no_gil;  // another thread may hold an allocator while the device gives it memory
    for (const int index : devices) {
      std::vector<SegmentInfo> segments = with_whole_arena(device(index).allocator->snapshot());
      MemoryHistory* history = memory_history(index);
      history->note(MemoryAction::Snapshot, nullptr, 0, nullptr);
      parts.push_back({index, std::move(segments), history->events(), history->overflowed()});
    }
  }
  Symbolizer stacks;
  py::list segments, traces, external;
  bool overflowed = false;
  for (int index = 0; index < device_count(); ++index) traces.append(py::list());
  for (const Part& part : parts) {
    for (const SegmentInfo& segment : part.segments) segments.append(segment_entry(part.device, segment, stacks));
    for (const MemoryEvent& event : part.events) traces[part.device].cast<py::list>().append(event_entry(event, stacks));
    overflowed = overflowed || part.overflowed;
  }
  stacks.fill();
  {
    std::lock_guard<std::mutex> lock(annotations().mutex);
    for (const Annotation& annotation : annotations().all) {
      py::dict entry;
      entry["name"] = annotation.name;
      entry["stage"] = annotation.stage;
      entry["device"] = annotation.device;
      entry["time_us"] = annotation.time_us;
      external.append(entry);
    }
  }
  torch::freeDeadCapturedTracebackFrames();
  py::dict out;
  out["segments"] = segments;
  out["device_traces"] = traces;
  out["external_annotations"] = external;
  out["trace_alloc_overflowed"] = overflowed;
  return out;
}

py::object allocation_stack(uintptr_t address) {
  Symbolizer stacks;
  for (int index = 0; devices_opened() && index < device_count(); ++index) {
    const CapturedStack stack = memory_history(index)->stack_of(reinterpret_cast<void*>(address));
    if (stack == nullptr) continue;
    py::list frames = stacks.frames(stack);
    stacks.fill();
    return frames;
  }
  return py::none();
}

// ---------------------------------------------------------------- callables

// Held for ever: another thread may just be calling it.
std::atomic<PyObject*> observer{nullptr}, log_function{nullptr};

void set_callable(std::atomic<PyObject*>& place, const py::object& function) {
  place.store(function.is_none() ? nullptr : function.inc_ref().ptr());
}

void call_observer(int device, uint64_t asked, uint64_t allocated, uint64_t device_free) {
  py::gil_scoped_acquire gil;
  PyObject* function = observer.load();
  if (function == nullptr) return;
  try {
    py::reinterpret_borrow<py::function>(function)(device, asked, allocated, device_free);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("an out-of-memory observer");
  }
}

void call_log(const std::string& line) {
  py::gil_scoped_acquire gil;
  PyObject* function = log_function.load();
  if (function == nullptr) return;
  try {
    py::reinterpret_borrow<py::function>(function)(line);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the memory log");
  }
}

}  // namespace

void bind_memory_history(py::module& m) {
  set_stack_capture(&capture_stack);
  m.def(
      "record_memory_history",
      [](bool enabled, bool events, int stacks, bool cpp_frames, uint64_t max_events, bool clear, bool all_threads,
         const std::vector<std::string>& skip) {
        HistoryOptions options;
        options.enabled = enabled;
        options.events = events;
        options.stacks = static_cast<StackLevel>(stacks);
        options.cpp_frames = cpp_frames;
        options.max_events = max_events;
        options.clear = clear;
        for (int i = 0; i < kNumMemoryActions; ++i) {
          const char* name = memory_action_name(static_cast<MemoryAction>(i));
          options.skipped[i] = std::find(skip.begin(), skip.end(), name) != skip.end();
        }
        {
          py::gil_scoped_release no_gil;
          record_memory_history(options);
        }
        record_annotations(enabled && events ? max_events : 0, all_threads);
        torch::freeDeadCapturedTracebackFrames();
      },
      py::arg("enabled"), py::arg("events"), py::arg("stacks"), py::arg("cpp_frames"), py::arg("max_events"),
      py::arg("clear"), py::arg("all_threads"), py::arg("skip"));
  py::list actions;
  for (int i = 0; i < kNumMemoryActions; ++i) actions.append(memory_action_name(static_cast<MemoryAction>(i)));
  m.attr("memory_actions") = py::tuple(actions);
  m.def("memory_history", &snapshot);
  m.def("allocation_stack", &allocation_stack);
  m.def("set_memory_metadata", &set_memory_metadata);
  m.def("memory_metadata", &memory_metadata);
  m.def("set_out_of_memory_observer", [](const py::object& function) {
    set_callable(observer, function);
    set_out_of_memory_observer(function.is_none() ? nullptr : &call_observer);
  });
  m.def("set_memory_log", [](const py::object& function) {
    set_callable(log_function, function);
    set_memory_log(function.is_none() ? nullptr : &call_log);
  });
}

}  // namespace fl::python
