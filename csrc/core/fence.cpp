// Points in a stream's work; see fence.h. Nothing here throws: it also runs where memory is freed.
#include "fence.h"

namespace fl {
namespace {

// Keeps the first failure, as the error that raise_status() makes of it.
void keep_failure(Stream& stream, fl_status status, const char* action, std::exception_ptr& failure) noexcept {
  try {
    const PlainErrors plain;
    raise_status(*stream.device->adapter, stream.device->index, status, stream_action(action, stream).c_str());
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
}

}  // namespace

Fence Fence::put(Stream& stream) noexcept {
  Fence fence;
  Device& device = *stream.device;
  if (device.lost()) return fence;
  if (debugging(kRaceCheck)) fence.mark_ = race_mark(stream);
  if (!device.streams->has_events()) return fence;
  // Another thread may be waiting for the stream with its lock held, and the caller holds the allocator's: rather than
  // stall all allocations, the event is recorded later. It is then a later point than need be, which is safe.
  constexpr int kTries = 100;
  for (int tries = 0; tries < kTries && !fence.try_record(stream); ++tries)
    std::this_thread::yield();
  return fence;
}

bool Fence::try_record(Stream& stream) noexcept {
  Device& device = *stream.device;
  if (event_ == nullptr) {
    try {
      const PlainErrors plain;
      event_ = device.streams->take_event(false);
    } catch (...) {
      return false;
    }
  }
  std::unique_lock<std::mutex> lock(stream.mutex, std::try_to_lock);
  recorded_ = lock.owns_lock() && device.adapter->event_record(event_, stream.handle) == FL_STATUS_OK;
  return recorded_;
}

void Fence::recycle(Stream& stream) noexcept {
  if (event_ != nullptr) stream.device->streams->put_event(false, event_);
  event_ = nullptr;
  race_host_reached(mark_);
}

bool Fence::passed(Stream& stream, std::exception_ptr& failure) noexcept {
  Device& device = *stream.device;
  if (device.lost()) return true;
  if (!recorded_ && !(device.streams->has_events() && try_record(stream))) {
    try {
      const PlainErrors plain;
      if (!stream.query()) return false;
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    recycle(stream);
    return true;
  }
  const fl_status status = device.adapter->event_query(event_);
  if (status == FL_STATUS_NOT_READY) return false;
  if (status != FL_STATUS_OK) keep_failure(stream, status, "work", failure);
  recycle(stream);
  return true;
}

void Fence::wait(Stream& stream, std::exception_ptr& failure) noexcept {
  Device& device = *stream.device;
  if (device.lost()) return;
  if (!recorded_) {
    try {
      const PlainErrors plain;
      stream.synchronize();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    return recycle(stream);
  }
  const fl_status status = device.adapter->event_synchronize(event_);
  if (status != FL_STATUS_OK) keep_failure(stream, status, "work", failure);
  recycle(stream);
}

}  // namespace fl
