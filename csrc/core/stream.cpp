// Streams: creation, the current one per thread and device, waiting, and error texts that name the last launches.
#include "stream.h"

#include <algorithm>

#include "counters.h"
#include "internal.h"
#include "make_room.h"
#include "race.h"
#include "stream_pool.h"

namespace fl {
namespace {

thread_local Stream* current_streams[kMaxDevices];

int priority_of(int64_t id) { return id == 0 ? 0 : -static_cast<int>((id - 1) / kStreamsPerPriority); }

}  // namespace

std::string Stream::recent() const {
  std::string text;
  const uint32_t noted = noted_.load(std::memory_order_relaxed);
  for (uint32_t back = 1; back <= std::min<uint32_t>(noted, 8); ++back) {
    const char* name = uniop_name(recent_[(noted - back) & 7].load(std::memory_order_relaxed));
    if (name == nullptr) continue;
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::string stream_action(const char* action, const Stream& stream) {
  std::string text = std::string(action) + " of stream " + std::to_string(stream.id);
  const std::string recent = stream.recent();
  if (!recent.empty()) text += " (last UniOps launched on it, newest first: " + recent + ")";
  return text;
}

bool Stream::query() {
  check_usable(*device);
  const fl_adapter* adapter = device->adapter;
  if (!FL_HAS(adapter, stream_query)) {  // the only way to know is to wait
    synchronize();
    return true;
  }
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread queues work on it or waits for it
  const RaceMark mark = debugging(kRaceCheck) ? race_mark(*this) : nullptr;
  const fl_status status = adapter->stream_query(handle);
  if (status == FL_STATUS_OK) {
    if (mark != nullptr) race_host_reached(mark);
    return true;
  }
  if (status == FL_STATUS_NOT_READY) return false;
  raise_status(*adapter, device->index, status, stream_action("query", *this).c_str());
}

void Stream::synchronize() {
  check_usable(*device);
  const fl_adapter* adapter = device->adapter;
  std::lock_guard<std::mutex> lock(mutex);
  const RaceMark mark = debugging(kRaceCheck) ? race_mark(*this) : nullptr;
  const fl_status status = FL_HAS(adapter, stream_synchronize) ? adapter->stream_synchronize(handle)
                                                               : adapter->device_synchronize(device->ordinal);
  if (status != FL_STATUS_OK) {
    raise_status(*adapter, device->index, status, stream_action("synchronize", *this).c_str());
  }
  if (mark != nullptr) race_host_reached(mark);
}

// ---------------------------------------------------------------- pool

Stream* StreamPool::make(int64_t id) {
  check_usable(device_);
  std::lock_guard<std::mutex> lock(mutex_);
  if (Stream* made = streams_[id].load(std::memory_order_acquire)) return made;
  const int priority = priority_of(id);
  fl_stream handle = nullptr;
  const auto create = [&] { return device_.adapter->stream_create(device_.ordinal, priority, &handle); };
  const fl_status status = with_room(device_, create);
  if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "stream_create");
  if (handle == nullptr) {
    raise(FL_STATUS_INTERNAL, "stream_create on " + device_label(device_) + " succeeded but gave a NULL stream.");
  }
  auto* stream = new Stream;
  stream->device = &device_;
  stream->handle = handle;
  stream->id = id;
  stream->priority = priority;
  streams_[id].store(stream, std::memory_order_release);
  return stream;
}

Stream& StreamPool::get(int64_t id) {
  if (id < 0 || id >= kMaxStreams) {
    raise(FL_STATUS_NOT_FOUND, device_label(device_) + " has no stream " + std::to_string(id) + ": ids are 0 to " +
                                   std::to_string(kMaxStreams - 1) + ".");
  }
  Stream* stream = streams_[id].load(std::memory_order_acquire);
  return stream != nullptr ? *stream : *make(id);
}

Stream& StreamPool::next(int priority) {
  const int level = -std::min(0, std::max(kMostUrgent, priority));
  const uint32_t turn = next_[level].fetch_add(1, std::memory_order_relaxed) % kStreamsPerPriority;
  return get(1 + level * kStreamsPerPriority + static_cast<int64_t>(turn));
}

std::vector<Stream*> StreamPool::all() {
  std::vector<Stream*> made;
  for (const auto& slot : streams_) {
    if (Stream* stream = slot.load(std::memory_order_acquire)) made.push_back(stream);
  }
  return made;
}

// ---------------------------------------------------------------- public

Stream& default_stream(int index) { return device(index).streams->get(0); }

Stream& pool_stream(int index, int priority) { return device(index).streams->next(priority); }

Stream& stream_from_id(int index, int64_t id) { return device(index).streams->get(id); }

Stream& current_stream(int index) {
  if (index >= 0 && index < kMaxDevices && current_streams[index] != nullptr) return *current_streams[index];
  Stream& stream = default_stream(index);
  current_streams[index] = &stream;
  return stream;
}

void set_current_stream(Stream& stream) { current_streams[stream.device->index] = &stream; }

std::vector<Stream*> all_streams(int index) { return device(index).streams->all(); }

}  // namespace fl
