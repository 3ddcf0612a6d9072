// Events over the adapter's, taken from the device's stock and given back. Where the adapter has none, record() waits.
#include <chrono>

#include "internal.h"
#include "race.h"
#include "stream_pool.h"
#include "transfer.h"

namespace fl {
namespace {

double host_now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

fl_event StreamPool::take_event(bool timing) {
  {
    std::lock_guard<SpinLock> lock(events_lock_);
    std::vector<fl_event>& stock = events_[timing];
    if (!stock.empty()) {
      const fl_event event = stock.back();
      stock.pop_back();
      return event;
    }
  }
  check_usable(device_);
  fl_event event = nullptr;
  const uint32_t flags = timing ? static_cast<uint32_t>(FL_EVENT_TIMING) : 0u;
  const fl_status status = device_.adapter->event_create(device_.ordinal, flags, &event);
  if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "event_create");
  if (event == nullptr) {
    raise(FL_STATUS_INTERNAL, "event_create on " + device_label(device_) + " succeeded but gave a NULL event.");
  }
  return event;
}

void StreamPool::put_event(bool timing, fl_event event) noexcept {
  // In a forked child the lock may be held by a thread that is not here; events of a lost device are of no more use.
  if (event == nullptr || in_bad_fork() || device_.lost()) return;
  try {
    std::lock_guard<SpinLock> lock(events_lock_);
    events_[timing].push_back(event);
  } catch (...) {  // no memory for the stock: the event is lost, which harms nobody
  }
}

Event::~Event() {
  if (debugging(kRaceCheck)) race_event_gone(this);
  if (handle_ != nullptr) device_->streams->put_event(timing_, handle_);
}

void Event::record(Stream& stream) {
  check_usable(*stream.device);
  if (device_ != nullptr && device_ != stream.device) {
    raise(FL_STATUS_INVALID_ARGUMENT, "an event of " + device_label(*device_) + " cannot be recorded on a stream of " +
                                          device_label(*stream.device) + ". Make one event per device.");
  }
  if (!stream.device->streams->has_events()) {
    stream.synchronize();
    host_ms_ = host_now_ms();
    device_ = stream.device;
    recorded_ = true;
    return;
  }
  if (handle_ == nullptr) handle_ = stream.device->streams->take_event(timing_);
  device_ = stream.device;
  std::lock_guard<std::mutex> lock(stream.mutex);
  RaceMark mark = debugging(kRaceCheck) ? race_mark(stream) : nullptr;
  const fl_status status = device_->adapter->event_record(handle_, stream.handle);
  if (status != FL_STATUS_OK) {
    raise_status(*device_->adapter, device_->index, status, stream_action("event_record at the end", stream).c_str());
  }
  recorded_ = true;
  if (mark != nullptr) race_event_recorded(this, std::move(mark));
}

void Event::wait(Stream& stream) {
  if (!recorded_ || handle_ == nullptr) return;
  check_usable(*stream.device);
  check_usable(*device_);
  const fl_adapter* adapter = stream.device->adapter;
  if (adapter == device_->adapter && FL_HAS(adapter, stream_wait_event)) {
    std::lock_guard<std::mutex> lock(stream.mutex);
    const fl_status status = adapter->stream_wait_event(stream.handle, handle_);
    if (status == FL_STATUS_OK) {
      if (debugging(kRaceCheck)) race_event_waited(this, stream);
      return;
    }
    if (status != FL_STATUS_UNIMPLEMENTED) {
      raise_status_of_two(*stream.device, *device_, status, stream_action("stream_wait_event", stream).c_str());
    }
  }
  synchronize();  // the two do not know each other: the host orders them
}

bool Event::query() {
  if (!recorded_ || handle_ == nullptr) return true;
  check_usable(*device_);
  const fl_status status = device_->adapter->event_query(handle_);
  if (status == FL_STATUS_OK) {
    if (debugging(kRaceCheck)) race_event_reached(this);
    return true;
  }
  if (status == FL_STATUS_NOT_READY) return false;
  raise_status(*device_->adapter, device_->index, status, "event_query");
}

void Event::synchronize() {
  if (!recorded_ || handle_ == nullptr) return;
  check_usable(*device_);
  const fl_status status = device_->adapter->event_synchronize(handle_);
  if (status != FL_STATUS_OK) raise_status(*device_->adapter, device_->index, status, "event_synchronize");
  if (debugging(kRaceCheck)) race_event_reached(this);
}

double Event::elapsed_ms(Event& end) {
  if (!timing_ || !end.timing_) {
    raise(FL_STATUS_INVALID_ARGUMENT, "elapsed time needs two events made with enable_timing=True.");
  }
  if (!recorded_ || !end.recorded_) {
    raise(FL_STATUS_INVALID_ARGUMENT, "elapsed time needs two recorded events: call record() on both first.");
  }
  if (device_ != end.device_) {
    raise(FL_STATUS_INVALID_ARGUMENT, "elapsed time needs two events of one device, got " + device_label(*device_) +
                                          " and " + device_label(*end.device_) + ".");
  }
  if (!query() || !end.query()) {
    raise(FL_STATUS_FAILED_PRECONDITION,
          "elapsed time needs complete events: call synchronize() on the later one first.");
  }
  if (handle_ == nullptr) return end.host_ms_ - host_ms_;
  const fl_adapter* adapter = device_->adapter;
  if (!FL_HAS(adapter, event_elapsed)) {
    raise(FL_STATUS_UNIMPLEMENTED, "the events of " + device_label(*device_) + " do not measure time.");
  }
  double elapsed = 0;
  const fl_status status = adapter->event_elapsed(handle_, end.handle_, &elapsed);
  if (status != FL_STATUS_OK) raise_status(*adapter, device_->index, status, "event_elapsed");
  return elapsed;
}

}  // namespace fl
