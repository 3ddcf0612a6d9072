// Faults that are armed by NINGUANG_FAULT or ngFaultSet: "launch:3,oom:1:every@1,slow_copy:200". README.md lists them.
// Costs one load of a global while nothing is armed.
#pragma once
#include <atomic>
#include <cstdint>

#include "ng.h"

namespace ng {

enum class Fault { kOutOfMemory, kLaunch, kLost, kCopy, kEvent, kStream, kSync, kEarlyCopy, kCall, kSlowCopy, kDelay };

// What a worker runs, as far as it can be delayed. Bits, because a delay may be meant for several kinds.
enum class Work : uint32_t { kKernel = 1, kCopy = 2, kFill = 4, kAny = 7 };

extern std::atomic<bool> faults_armed;

// Counts one passage of this point on this device (-1: none in particular); true if an armed fault is due now.
bool fault_due_slow(Fault fault, int device, const char* api);
inline bool fault_due(Fault fault, int device, const char* api = nullptr) {
  return __builtin_expect(faults_armed.load(std::memory_order_relaxed), 0) && fault_due_slow(fault, device, api);
}

// Called by a stream's worker before it runs queued work: sleeps as the armed delays say.
void delay_slow(Work work, int device);
inline void delay(Work work, int device) {
  if (__builtin_expect(faults_armed.load(std::memory_order_relaxed), 0)) delay_slow(work, device);
}
// Which stream this worker thread runs, counted in the order of their first commands: delays are drawn by it.
extern thread_local uint32_t delayed_stream;

// A copy of this device may be delayed: it is queued then even where the caller could make it.
bool copies_are_delayed_slow(int device);
inline bool copies_are_delayed(int device) {
  return __builtin_expect(faults_armed.load(std::memory_order_relaxed), 0) && copies_are_delayed_slow(device);
}

// Replaces all armed faults. INVALID_VALUE, with nothing changed, if the text cannot be understood.
ngResult arm_faults(const char* text);

}  // namespace ng
