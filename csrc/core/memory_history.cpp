// The history of the allocators' events; see memory_history.h.
#include "memory_history.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "internal.h"
#include "memory_text.h"
#include "stream.h"

namespace fl {
namespace {

struct Shared {  // of all devices
  std::mutex mutex;
  std::set<MemoryHistory*> histories;
  HistoryOptions options;
  std::string metadata;
};

Shared& shared() {
  static auto* all = new Shared;  // for ever: devices are used while the process ends
  return *all;
}

std::atomic<CapturedStack (*)(bool)> capture_function{nullptr};
std::atomic<OutOfMemoryObserver> oom_observer{nullptr};
std::atomic<void (*)(const std::string&)> log_sink{nullptr};

struct ThreadState {
  CapturedStack stack;             // of the allocator call that this thread is in
  std::vector<std::string> lines;  // logged in it
};
thread_local ThreadState this_thread;

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t id_of(const Stream* stream) { return stream == nullptr ? 0 : stream->id; }

bool is_segment(MemoryAction action) {
  return action == MemoryAction::SegmentAlloc || action == MemoryAction::SegmentFree ||
         action == MemoryAction::SegmentMap || action == MemoryAction::SegmentUnmap;
}

}  // namespace

const char* memory_action_name(MemoryAction action) {
  static constexpr const char* kNames[kNumMemoryActions] = {"alloc",        "free_requested", "free_completed",
                                                            "segment_alloc", "segment_free",   "segment_map",
                                                            "segment_unmap", "snapshot",       "oom"};
  return kNames[static_cast<int>(action)];
}

// ---------------------------------------------------------------- of all devices

void record_memory_history(const HistoryOptions& options) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.options = options;
  for (MemoryHistory* history : all.histories)
    history->configure(options);
}

MemoryHistory* memory_history(int device) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (MemoryHistory* history : all.histories) {
    if (history->device_.index == device) return history;
  }
  return nullptr;
}

HistoryOptions memory_history_options() {
  std::lock_guard<std::mutex> lock(shared().mutex);
  return shared().options;
}

void set_memory_log(void (*sink)(const std::string&)) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  log_sink.store(sink);
  for (MemoryHistory* history : all.histories)
    history->update_on();
}

void set_stack_capture(CapturedStack (*capture)(bool)) { capture_function.store(capture); }
void set_out_of_memory_observer(OutOfMemoryObserver observer) { oom_observer.store(observer); }

void observe_out_of_memory(int device, uint64_t asked, uint64_t allocated, uint64_t device_free) noexcept {
  const OutOfMemoryObserver observer = oom_observer.load();
  if (observer == nullptr) return;
  try {
    observer(device, asked, allocated, device_free);
  } catch (...) {  // what an observer does wrong must not hide the error itself
  }
}


void set_memory_metadata(const std::string& text) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.metadata = text;
  for (MemoryHistory* history : all.histories) {
    std::lock_guard<std::mutex> own(history->mutex_);
    history->metadata_ = text;
  }
}

std::string memory_metadata() {
  std::lock_guard<std::mutex> lock(shared().mutex);
  return shared().metadata;
}

// ---------------------------------------------------------------- one call of the allocator

void MemoryHistory::Call::begin(MemoryHistory& history, StackLevel level) noexcept {
  bool wanted = false, cpp_frames = false;
  {
    std::lock_guard<std::mutex> lock(history.mutex_);
    wanted = history.options_.enabled && level <= history.options_.stacks;
    cpp_frames = history.options_.cpp_frames;
  }
  CapturedStack (*capture)(bool) = capture_function.load();
  if (!wanted || capture == nullptr || exiting.load()) return;
  try {
    this_thread.stack = capture(cpp_frames);
  } catch (...) {  // an event without its stack
  }
}

void MemoryHistory::Call::end() noexcept {
  this_thread.stack.reset();
  if (this_thread.lines.empty()) return;
  std::vector<std::string> lines;
  lines.swap(this_thread.lines);  // the sink may come back here
  void (*sink)(const std::string&) = log_sink.load();
  if (sink == nullptr || exiting.load()) return;
  for (const std::string& line : lines) {
    try {
      sink(line);
    } catch (...) {  // a log that cannot be written stops nobody
    }
  }
}

// ---------------------------------------------------------------- one device

MemoryHistory::MemoryHistory(const Device& device, const Ledger& ledger) : device_(device), ledger_(ledger) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.histories.insert(this);
  metadata_ = all.metadata;
  configure(all.options);
}

MemoryHistory::~MemoryHistory() {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.histories.erase(this);
}

void MemoryHistory::configure(const HistoryOptions& options) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool clear = !options.enabled || options.clear || options.max_events != options_.max_events;
    options_ = options;
    if (clear) {
      events_.clear();
      next_ = 0;
      overflowed_ = false;
    }
    if (!options.enabled) {
      blocks_.clear();
      segments_.clear();
    }
  }
  update_on();
}

void MemoryHistory::update_on() {
  std::lock_guard<std::mutex> lock(mutex_);
  on_.store(options_.enabled || log_sink.load() != nullptr, std::memory_order_relaxed);
}

void MemoryHistory::record(MemoryAction action, void* address, uint64_t bytes, uint64_t device_free,
                           const Stream* stream) noexcept {
  try {
    if (is_segment(action) || action == MemoryAction::Oom) add_line(memory_action_name(action), bytes, stream);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!options_.enabled) return;
    MemoryEvent event{action, address, bytes, device_free, id_of(stream), now_us(), nullptr, {}};
    keep_stack(event);
    push(std::move(event));
  } catch (...) {  // no host memory for the history: the allocator goes on without this event
  }
}

// Gives the event its stack: of this call, else of the allocation that it ends.
void MemoryHistory::keep_stack(MemoryEvent& event) {
  const CapturedStack& here = this_thread.stack;
  auto& kept = is_segment(event.action) ? segments_ : blocks_;
  switch (event.action) {
    case MemoryAction::Alloc:
    case MemoryAction::SegmentAlloc:
    case MemoryAction::SegmentMap:
      if (here != nullptr) kept[event.address] = here;
      if (options_.stacks >= StackLevel::Alloc) event.stack = here;
      return;
    case MemoryAction::Oom:
      if (options_.stacks >= StackLevel::Alloc) event.stack = here;
      return;
    case MemoryAction::Snapshot:
      return;
    default:
      break;
  }
  const auto found = kept.find(event.address);
  if (options_.stacks >= StackLevel::Alloc) {
    const bool of_this_call = options_.stacks == StackLevel::All && here != nullptr;
    event.stack = of_this_call ? here : found != kept.end() ? found->second : nullptr;
  }
  if (found != kept.end() && event.action != MemoryAction::FreeRequested) kept.erase(found);
}

void MemoryHistory::push(MemoryEvent event) {
  if (!options_.events || options_.max_events == 0 || options_.skipped[static_cast<int>(event.action)]) return;
  event.metadata = metadata_;
  if (events_.size() < options_.max_events) {
    events_.push_back(std::move(event));
    return;
  }
  overflowed_ = true;
  events_[next_] = std::move(event);
  next_ = (next_ + 1) % events_.size();
}

void MemoryHistory::add_line(const char* what, uint64_t bytes, const Stream* stream) noexcept {
  if (log_sink.load(std::memory_order_relaxed) == nullptr) return;
  try {
    const auto text = [](int64_t amount) { return bytes_text(static_cast<uint64_t>(std::max<int64_t>(amount, 0))); };
    this_thread.lines.push_back(device_label(device_) + ": " + what + " " + bytes_text(bytes) + " on stream " +
                                std::to_string(id_of(stream)) + "; reserved " + text(ledger_.current(Ledger::kReservedBytes)) +
                                " in " + std::to_string(ledger_.current(Ledger::kSegment)) + " segments, allocated " +
                                text(ledger_.current(Ledger::kAllocatedBytes)));
  } catch (...) {  // no host memory for a line
  }
}

CapturedStack MemoryHistory::stack_of(void* address) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(address);
  return found == blocks_.end() ? nullptr : found->second;
}

CapturedStack MemoryHistory::stack_of_segment(void* address) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = segments_.find(address);
  return found == segments_.end() ? nullptr : found->second;
}

std::vector<MemoryEvent> MemoryHistory::events() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<MemoryEvent> ordered(events_.begin() + static_cast<long>(next_), events_.end());
  ordered.insert(ordered.end(), events_.begin(), events_.begin() + static_cast<long>(next_));
  return ordered;
}

bool MemoryHistory::overflowed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return overflowed_;
}

}  // namespace fl
