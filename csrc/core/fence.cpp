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
  if (!device.streams->has_events() || device.lost()) return fence;
  try {
    const PlainErrors plain;
    fence.event_ = device.streams->take_event(false);
  } catch (...) {
    return fence;  // the stream's idleness will have to do
  }
  // Another thread may be waiting for the stream with its lock held, and the caller holds the allocator's: rather than
  // stall all allocations, the stream's idleness has to do.
  constexpr int kTries = 100;
  for (int tries = 0; tries < kTries; ++tries) {
    std::unique_lock<std::mutex> lock(stream.mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
      std::this_thread::yield();
      continue;
    }
    if (device.adapter->event_record(fence.event_, stream.handle) == FL_STATUS_OK) return fence;
    break;
  }
  fence.recycle(stream);
  return fence;
}

void Fence::recycle(Stream& stream) noexcept {
  stream.device->streams->put_event(false, event_);
  event_ = nullptr;
}

bool Fence::passed(Stream& stream, std::exception_ptr& failure) noexcept {
  Device& device = *stream.device;
  if (device.lost()) return true;
  if (event_ == nullptr) {
    try {
      const PlainErrors plain;
      return stream.query();
    } catch (...) {
      if (!failure) failure = std::current_exception();
      return true;
    }
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
  if (event_ == nullptr) {
    try {
      const PlainErrors plain;
      stream.synchronize();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    return;
  }
  const fl_status status = device.adapter->event_synchronize(event_);
  if (status != FL_STATUS_OK) keep_failure(stream, status, "work", failure);
  recycle(stream);
}

}  // namespace fl
