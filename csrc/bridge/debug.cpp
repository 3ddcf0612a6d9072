// Operators are named by PyTorch's own record of what runs (RecordFunction), so that copies, compositions, random and
// fused operators have their names too. See debug.h.
#include "bridge/debug.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>

#include "core/counters.h"
#include "uniops.h"

namespace fl::bridge {

namespace {

RaceSink sink{nullptr, nullptr};
thread_local std::vector<const at::RecordFunction*> operators;  // that this thread is in, outermost first

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  operators.push_back(&function);
  return nullptr;
}

void leave(const at::RecordFunction& function, at::ObserverContext*) {
  const auto found = std::find(operators.rbegin(), operators.rend(), &function);
  if (found != operators.rend()) operators.erase(std::next(found).base());
}

std::string name_of(const at::RecordFunction& function) {
  std::string name = function.name();
  const std::string engine = "autograd::engine::evaluate_function: ";  // then the backward node's name
  if (name.compare(0, engine.size(), engine) == 0) name.erase(0, engine.size());
  const char* overload = function.overload_name();
  if (overload != nullptr && *overload != '\0') name += std::string(".") + overload;
  return name;
}

// Names are recorded while any mode is on.
void set_mode(DebugMode mode, bool on) {
  static std::mutex mutex;
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  std::lock_guard lock(mutex);
  if (mode == kRaceCheck) {
    on ? race_start() : race_stop();
  } else {
    on ? debug_modes.fetch_or(mode) : debug_modes.fetch_and(~static_cast<uint32_t>(mode));
  }
  const bool any = debug_modes.load() != 0;
  if (any == (handle != at::INVALID_CALLBACK_HANDLE)) return;
  if (any) {
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(&enter, &leave)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  } else {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

void check_races(const Stream* stream, std::string op, const std::vector<RaceAccess>& accesses) {
  auto work = std::make_shared<RaceWork>();
  work->op = std::move(op);
  work->stream = stream;
  if (sink.capture != nullptr) work->stack = sink.capture();
  const std::vector<RaceReport> reports = race_access(std::move(work), accesses);
  if (!reports.empty() && sink.report != nullptr) sink.report(reports);
}

// index and index_put reach along the indexed dims, which their operand shows with stride 0; their attributes are the
// sizes of those dims, then the strides in elements.
void add_indexed_dims(Extent& extent, const fl_tensor& t, const fl_op_call& call, int num_indices) {
  for (int i = 0; i < num_indices && num_indices + i < call.num_attrs; ++i)
    extent.add_dim(call.attrs[i].v.i, call.attrs[num_indices + i].v.i * ((t.dtype.bits + 7) / 8));
}

}  // namespace

std::string current_operator() {
  if (operators.empty()) return {};
  std::string name = name_of(*operators.back());
  if (operators.size() > 1) name += " (in " + name_of(*operators.front()) + ")";
  return name;
}

std::string operation_name(int uniop, int overload) {
  std::string name = current_operator();
  if (name.empty() && overload >= 0) name = overload_name(overload);
  const std::string kernel = uniop_name(uniop);
  return name.empty() ? "UniOp " + kernel : name + ", UniOp " + kernel;
}

std::string copy_name(const char* what) {
  const std::string name = current_operator();
  return name.empty() ? what : name + ", " + what;
}

Extent extent_of(const fl_tensor& t) {
  return Extent::tensor(t.memory.address, (t.dtype.bits + 7) / 8, t.ndim, t.sizes, t.strides);
}

RaceAccess device_access(const Stream& stream, const fl_memory& memory, uint64_t bytes, bool writes) {
  return {stream.device->index, Extent::range(memory.address, bytes), writes};
}

RaceAccess host_access(const void* address, uint64_t bytes, bool writes) {
  return {kHostSpace, Extent::range(address, host_find(address) != nullptr ? bytes : 0), writes};
}

void debug_launch(Stream& stream, const fl_op_call& call, int uniop, int overload) {
  const std::string op = operation_name(uniop, overload);
  if (debugging(kRaceCheck)) {
    std::vector<RaceAccess> accesses;
    const auto add = [&](const fl_tensor& t, int num_indices, bool writes) {
      if (t.flags & (FL_TENSOR_ABSENT | FL_TENSOR_IMMEDIATE)) return;
      Extent extent = extent_of(t);
      add_indexed_dims(extent, t, call, num_indices);
      accesses.push_back({stream.device->index, extent, writes});
    };
    const bool index = uniop == static_cast<int>(Uniop::index), put = uniop == static_cast<int>(Uniop::index_put);
    for (int i = 0; i < call.num_inputs; ++i) add(call.inputs[i], index && i == 0 ? call.num_attrs / 2 : 0, false);
    for (int i = 0; i < call.num_outputs; ++i) add(call.outputs[i], put ? call.num_attrs / 2 : 0, true);
    check_races(&stream, op, accesses);
  }
  if (debugging(kSyncDebug)) synchronize_after(stream, op);
}

void debug_copy(Stream& stream, const char* what, const std::vector<RaceAccess>& accesses) {
  note_accesses(stream, what, accesses);
  if (debugging(kSyncDebug)) synchronize_after(stream, copy_name(what));
}

void note_accesses(Stream& stream, const char* what, const std::vector<RaceAccess>& accesses) {
  if (debugging(kRaceCheck)) check_races(&stream, copy_name(what), accesses);
}

void debug_host(const std::string& what, const std::vector<RaceAccess>& accesses) {
  if (debugging(kRaceCheck)) check_races(nullptr, what, accesses);
}

void set_sync_debug(bool on) { set_mode(kSyncDebug, on); }
void set_race_check(bool on) { set_mode(kRaceCheck, on); }
void set_race_sink(RaceSink installed) { sink = installed; }

}  // namespace fl::bridge
