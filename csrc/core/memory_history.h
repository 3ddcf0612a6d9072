// Who asked for each block of one device's memory, and the last events of its allocator, in the terms of PyTorch's memory
// viewer; and the lines of TORCH_FL_VERBOSE=2. Off, it costs one relaxed load where it is asked.
// A stack is captured before the allocator's lock is taken, because walking it may wait for the interpreter, which
// another thread may hold while it waits for the allocator.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "ledger.h"
#include "memory_report.h"

namespace fl {

class Stream;

enum class MemoryAction : uint8_t {
  Alloc, FreeRequested, FreeCompleted, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap, Snapshot, Oom
};
constexpr int kNumMemoryActions = 9;
const char* memory_action_name(MemoryAction action);  // "free_requested"

using CapturedStack = std::shared_ptr<void>;  // whatever the bridge's capture function makes

struct MemoryEvent {
  MemoryAction action;
  void* address = nullptr;  // of the block or segment
  uint64_t bytes = 0;       // asked for; of a segment: its size
  uint64_t device_free = 0; // Oom only
  int64_t stream_id = 0;
  int64_t time_us = 0;      // since 1970
  CapturedStack stack;
  std::string metadata;     // see set_memory_metadata()
};

// Which stacks are kept: of what is allocated now; also of past allocations; also of frees. Each includes those before.
enum class StackLevel : uint8_t { Never, State, Alloc, All };

struct HistoryOptions {
  bool enabled = false;
  bool events = false;               // else only the stacks of what is allocated now
  StackLevel stacks = StackLevel::Never;
  bool cpp_frames = false;
  uint64_t max_events = 0;           // of each device; the oldest go first
  bool clear = false;                // forget the events so far
  bool skipped[kNumMemoryActions] = {};
};
// For all devices, also those opened later. Switching off forgets the events and stacks.
void record_memory_history(const HistoryOptions& options);
HistoryOptions memory_history_options();

// Captures the calling thread's stack; installed by the bridge.
void set_stack_capture(CapturedStack (*capture)(bool cpp_frames));
// Called on the thread that runs out of memory, without any lock, before the error is raised.
using OutOfMemoryObserver = void (*)(int device, uint64_t asked, uint64_t allocated, uint64_t device_free);
void set_out_of_memory_observer(OutOfMemoryObserver observer);  // nullptr: none
void observe_out_of_memory(int device, uint64_t asked, uint64_t allocated, uint64_t device_free) noexcept;
// Text that goes with all events from now on.
void set_memory_metadata(const std::string& text);
std::string memory_metadata();
// Takes the lines of TORCH_FL_VERBOSE=2; called without any lock. nullptr: off.
void set_memory_log(void (*sink)(const std::string& line));

class MemoryHistory;
MemoryHistory* memory_history(int device);  // nullptr: no such device is open

class MemoryHistory {
 public:
  MemoryHistory(const Device& device, const Ledger& ledger);
  ~MemoryHistory();
  MemoryHistory(const MemoryHistory&) = delete;

  // Around one call of the allocator, outside its lock: the stack for the events inside it, if stacks of this level are
  // kept, and at the end the lines that were logged inside it.
  class Call {
   public:
    Call(MemoryHistory& history, StackLevel level) : begun_(history.on()) {
      if (__builtin_expect(begun_, 0)) begin(history, level);
    }
    ~Call() {
      if (__builtin_expect(begun_, 0)) end();
    }
    Call(const Call&) = delete;

   private:
    // Static, so that the flag stays in a register.
    static void begin(MemoryHistory& history, StackLevel level) noexcept;
    static void end() noexcept;
    const bool begun_;
  };

  // True if anything is recorded or logged.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Under the allocator's lock.
  void note(MemoryAction action, void* address, uint64_t bytes, const Stream* stream) noexcept {
    if (__builtin_expect(on(), 0)) record(action, address, bytes, 0, stream);
  }
  void note_out_of_memory(uint64_t asked, uint64_t device_free, const Stream& stream) noexcept {
    if (__builtin_expect(on(), 0)) record(MemoryAction::Oom, nullptr, asked, device_free, &stream);
  }
  // Adds a line to the log: "fl:0 (acme): <what> 20.00 MiB on stream 0; reserved …". Under the allocator's lock.
  void log(const char* what, uint64_t bytes, const Stream* stream) noexcept {
    if (__builtin_expect(on(), 0)) add_line(what, bytes, stream);
  }

  CapturedStack stack_of(void* address) const;  // nullptr: not kept. Of a block, or of a segment's first address
  CapturedStack stack_of_segment(void* address) const;
  std::vector<MemoryEvent> events() const;  // oldest first
  bool overflowed() const;                  // events were dropped for newer ones

 private:
  friend void record_memory_history(const HistoryOptions&);
  friend MemoryHistory* memory_history(int device);
  friend void set_memory_metadata(const std::string&);
  friend void set_memory_log(void (*)(const std::string&));
  void configure(const HistoryOptions& options);
  void update_on();
  void record(MemoryAction action, void* address, uint64_t bytes, uint64_t device_free, const Stream* stream) noexcept;
  void add_line(const char* what, uint64_t bytes, const Stream* stream) noexcept;
  void keep_stack(MemoryEvent& event);
  void push(MemoryEvent event);

  std::atomic<bool> on_{false};  // first, beside what the allocator reads anyway
  const Device& device_;
  const Ledger& ledger_;
  mutable std::mutex mutex_;  // a leaf: nothing is called with it held
  HistoryOptions options_;
  std::unordered_map<void*, CapturedStack> blocks_, segments_;
  std::vector<MemoryEvent> events_;  // a ring once it is full
  size_t next_ = 0;
  bool overflowed_ = false;
  std::string metadata_;
};

}  // namespace fl
