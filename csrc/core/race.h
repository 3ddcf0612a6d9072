// The race finder (TORCH_FL_RACE_CHECK): which stream last wrote and read each piece of memory, and whether events order
// the next access after it. Vector clocks: each stream has one; recording an event keeps it, waiting joins it, and what
// the host has waited for is joined by everything that is queued later. Off: nothing here is called.
// Counterparts: race_extent.h (what an operand touches), race_memory.cpp (accesses by block), bridge/debug.cpp (who
// calls it), torch_fl/device/race.py (reports).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "allocator.h"
#include "debug.h"
#include "race_extent.h"

namespace fl {

// ---------------------------------------------------------------- order

using RaceClock = std::vector<uint64_t>;                // by stream, in the finder's own numbering
using RaceMark = std::shared_ptr<const RaceClock>;      // a point in a stream's work; null while the finder is off

RaceMark race_mark(const Stream& stream);               // all that is queued on the stream by now
void race_host_reached(const RaceMark& mark);           // the host knows that it is done
void race_event_recorded(const Event* event, RaceMark mark);
void race_event_waited(const Event* event, const Stream& stream);
void race_event_reached(const Event* event);            // the host knows that it is done
void race_event_gone(const Event* event) noexcept;

// ---------------------------------------------------------------- memory

constexpr int kHostSpace = -1;  // pinned memory; else the device's index

// A block begins a new life, ends it, or goes back to the device. `owner`: the stream that reuse is ordered by.
void race_allocated(int space, const void* begin, uint64_t bytes, const Stream* owner) noexcept;
void race_freed(int space, const void* begin) noexcept;
void race_returned(int space, const void* begin, uint64_t bytes) noexcept;

// ---------------------------------------------------------------- accesses

struct RaceAccess {
  int space;
  Extent extent;
  bool writes;
};

// One operation on a stream, as reports name it.
struct RaceWork {
  std::string op;
  const Stream* stream;         // nullptr: the host
  std::shared_ptr<void> stack;  // who called; the bridge's own
};

struct RaceReport {
  enum class Cause {
    Unordered,  // two accesses, and nothing orders the second after the first
    Freed,      // the block was freed, and is used again, while another stream may still use it
    Reused,     // fresh memory is used on a stream that does not wait for the one it was allocated for
    Returned,   // the memory went back to the device while a stream may still use it; no second access
  };
  Cause cause;
  int space;
  std::shared_ptr<const RaceWork> first, second;
  bool first_writes, second_writes;
  uintptr_t block;       // that the second access is in
  uint64_t block_bytes;
  const Stream* owner;   // of the block; may be nullptr
  uintptr_t begin, end;  // range in which the two meet
};

// Notes what was queued, or what the host itself does now (work->stream == nullptr: it does not come back before it is
// done). Returns what raced with it, and memory that was returned too early since the last call.
std::vector<RaceReport> race_access(std::shared_ptr<const RaceWork> work, const std::vector<RaceAccess>& accesses);

// Memory that was returned too early since then, where no access follows.
std::vector<RaceReport> race_pending();

// Forgets all that was seen before; blocks that are in use are known from now on. One at a time.
void race_start();
void race_stop();

}  // namespace fl
