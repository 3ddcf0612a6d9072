// Faults that are armed by NINGUANG_FAULT or ngFaultSet: "launch:3,oom:1:every@1,slow_copy:200". README.md lists them.
// Costs one load of a global while nothing is armed.
#pragma once
#include <atomic>
#include <cstdint>

#include "ng.h"

namespace ng {

enum class Fault { kOutOfMemory, kLaunch, kLost, kCopy, kEvent, kStream, kSync, kSlowCopy, kCall };

extern std::atomic<bool> faults_armed;

// Counts one passage of this point on this device (-1: none in particular); true if an armed fault is due now.
bool fault_due_slow(Fault fault, int device, const char* api);
inline bool fault_due(Fault fault, int device, const char* api = nullptr) {
  return __builtin_expect(faults_armed.load(std::memory_order_relaxed), 0) && fault_due_slow(fault, device, api);
}

// Microseconds by which each copy of this device is delayed.
uint32_t copy_delay_us(int device);

// Replaces all armed faults. INVALID_VALUE, with nothing changed, if the text cannot be understood.
ngResult arm_faults(const char* text);

}  // namespace ng
