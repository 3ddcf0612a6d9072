// Streams and events with CUDA's semantics over the adapter's. One default stream per device (id 0), a round-robin pool
// of side streams per priority. Stream objects live until the process ends.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"

namespace fl {

class Stream {
 public:
  Device* device;
  fl_stream handle;
  int64_t id;  // 0 = default; the bridge packs it into c10::StreamId
  int priority;  // 0 normal, negative = more urgent, down to kMostUrgent
  // Held around adapter calls that are marked [object: stream]: copies, fill, record, wait, query, synchronize. Kernel
  // launches are [any] and need no lock.
  std::mutex mutex;

  bool query();        // never blocks; raises a failure of queued work
  void synchronize();  // raises a failure of queued work, naming the last UniOps launched on this stream
  // The last launches, newest first, for error texts. note() is two stores.
  void note(int uniop) {
    const uint32_t at = noted_.load(std::memory_order_relaxed);
    noted_.store(at + 1, std::memory_order_relaxed);
    recent_[at & 7].store(static_cast<int16_t>(uniop), std::memory_order_relaxed);
  }
  std::string recent() const;

 private:
  std::atomic<int16_t> recent_[8] = {{-1}, {-1}, {-1}, {-1}, {-1}, {-1}, {-1}, {-1}};
  std::atomic<uint32_t> noted_{0};
};

constexpr int kMostUrgent = -3;            // priorities outside kMostUrgent … 0 are clamped
constexpr int kStreamsPerPriority = 32;

Stream& default_stream(int device);
Stream& pool_stream(int device, int priority);        // next of the pool; 32 per priority, made when first needed
Stream& stream_from_id(int device, int64_t id);       // raises for an unknown id
Stream& current_stream(int device);                   // thread-local
void set_current_stream(Stream& stream);
std::vector<Stream*> all_streams(int device);

class Event {
 public:
  explicit Event(bool timing = false) : timing_(timing) {}
  ~Event();
  Event(const Event&) = delete;
  void record(Stream& stream);     // first record binds the event to the stream's device
  void wait(Stream& stream);       // orders stream after the event, any device: across adapters the host waits
  bool query();                    // true if never recorded
  void synchronize();
  double elapsed_ms(Event& end);   // raises unless both have timing, are recorded and complete
  int device_index() const { return device_ ? device_->index : -1; }

 private:
  Device* device_ = nullptr;
  fl_event handle_ = nullptr;      // nullptr also where the adapter has no events: record() then synchronizes
  bool timing_, recorded_ = false;
  double host_ms_ = 0;  // when record() had synchronized, where the adapter has no events
};

}  // namespace fl
