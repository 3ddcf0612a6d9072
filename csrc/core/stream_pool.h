// The streams of one device, made when first needed, and its stock of adapter events for reuse.
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "internal.h"

namespace fl {

constexpr int kNumPriorities = 1 - kMostUrgent;
constexpr int kMaxStreams = 1 + kNumPriorities * kStreamsPerPriority;  // ids are below this

class StreamPool {
 public:
  explicit StreamPool(Device& device) : device_(device) {}

  Stream& get(int64_t id);  // makes it; raises for an id out of range
  Stream& next(int priority);
  std::vector<Stream*> all();  // those made so far

  bool has_events() const { return FL_HAS(device_.adapter, event_create); }
  fl_event take_event(bool timing);  // raises; only where has_events()
  void put_event(bool timing, fl_event event) noexcept;

 private:
  Stream* make(int64_t id);

  Device& device_;
  std::mutex mutex_;  // creation of streams
  std::array<std::atomic<Stream*>, kMaxStreams> streams_{};
  std::array<std::atomic<uint32_t>, kNumPriorities> next_{};
  SpinLock events_lock_;
  std::vector<fl_event> events_[2];  // by timing
};

// "synchronize of stream 3 (last UniOps launched on it, newest first: matmul, add)"
std::string stream_action(const char* action, const Stream& stream);

}  // namespace fl
