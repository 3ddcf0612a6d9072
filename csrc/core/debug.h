// Modes that check every operation. All are off together at the cost of one relaxed load and a branch.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

namespace fl {

class Stream;

enum DebugMode : uint32_t {
  kSyncDebug = 1u << 0,  // TORCH_FL_SYNC_DEBUG: synchronize after everything that is queued
  kRaceCheck = 1u << 1,  // TORCH_FL_RACE_CHECK: see race.h
};
extern std::atomic<uint32_t> debug_modes;

inline bool debugging() { return __builtin_expect(debug_modes.load(std::memory_order_relaxed) != 0, 0); }
inline bool debugging(DebugMode mode) {
  return __builtin_expect((debug_modes.load(std::memory_order_relaxed) & mode) != 0, 0);
}

// Waits for the stream; a failure of queued work is raised as `op`'s: it was the last thing queued.
void synchronize_after(Stream& stream, const std::string& op);

}  // namespace fl
