// Events. An event is a place in a stream's order: the stream and the number of its last command at the time of the
// record. Recording one without timing queues nothing; with timing it queues a command that reads the clock.
#include <chrono>

#include "stream.h"

namespace ng {
namespace {

using Clock = std::shared_ptr<std::atomic<int64_t>>;  // nanoseconds, written by the worker

// What an event stood for at one moment; a later record does not change it.
struct Mark {
  std::shared_ptr<Stream> stream;  // empty: never recorded
  uint64_t number = 0;
  Clock clock;

  bool complete() const { return stream == nullptr || stream->reached(number); }
};

struct Event {
  Device& device;
  const bool timing;
  SpinLock lock;
  Mark mark;

  Mark current() {
    std::lock_guard<SpinLock> guard(lock);
    return mark;
  }
};

Event* from_handle(ngEvent event) { return reinterpret_cast<Event*>(event); }

template <class Body>
ngResult call_on(const char* api, ngEvent handle, Body&& body) noexcept {
  Event* const event = from_handle(handle);
  if (event == nullptr) return null_argument(api);
  return call(api, &event->device, [&] { return body(*event); });
}

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What a complete event reports: a failure of the work before it, or a device lost meanwhile.
ngResult outcome(const Event& event, const Mark& mark) {
  if (mark.stream == nullptr) return NG_SUCCESS;
  if (event.device.lost) return refuse_lost(event.device);
  if (mark.stream->device().lost) return refuse_lost(mark.stream->device());
  return mark.stream->take_error(mark.number);
}

}  // namespace
}  // namespace ng

using namespace ng;

ngResult ngEventCreate(int32_t device, int32_t timing, ngEvent* event) {
  return call_on("ngEventCreate", device, [&](Device& found) {
    if (event == nullptr) return null_argument("ngEventCreate");
    *event = nullptr;
    if (fault_due(Fault::kEvent, found.index)) return fail(NG_ERROR_INTERNAL, "ngEventCreate: injected fault");
    *event = reinterpret_cast<ngEvent>(new Event{found, timing != 0, {}, {}});
    return NG_SUCCESS;
  });
}

ngResult ngEventDestroy(ngEvent event) {
  return call("ngEventDestroy", nullptr, [&] {
    delete from_handle(event);  // waits hold their own mark
    return NG_SUCCESS;
  });
}

ngResult ngEventRecord(ngEvent handle, ngStream stream) {
  return call_on("ngEventRecord", handle, [&](Event& event) {
    if (stream == nullptr) return null_argument("ngEventRecord");
    Stream& on = *from_handle(stream);
    Mark mark;
    mark.stream = on.shared_from_this();
    if (event.timing) {
      mark.clock = std::make_shared<std::atomic<int64_t>>(0);
      on.queue([clock = mark.clock](Device&) {
        clock->store(now_ns(), std::memory_order_relaxed);
        return NG_SUCCESS;
      });
    }
    mark.number = on.queued();
    std::lock_guard<SpinLock> guard(event.lock);
    std::swap(event.mark, mark);
    return NG_SUCCESS;
  });
}

ngResult ngEventQuery(ngEvent handle) {
  return call_on("ngEventQuery", handle, [&](Event& event) {
    const Mark mark = event.current();
    return mark.complete() ? outcome(event, mark) : NG_ERROR_NOT_READY;
  });
}

ngResult ngEventSynchronize(ngEvent handle) {
  return call_on("ngEventSynchronize", handle, [&](Event& event) {
    const Mark mark = event.current();
    if (mark.stream != nullptr) mark.stream->wait(mark.number);
    return outcome(event, mark);
  });
}

ngResult ngEventElapsedTime(ngEvent start, ngEvent end, double* milliseconds) {
  return call_on("ngEventElapsedTime", start, [&](Event& first) {
    if (end == nullptr || milliseconds == nullptr) return null_argument("ngEventElapsedTime");
    const Mark from = first.current(), to = from_handle(end)->current();
    if (from.clock == nullptr || to.clock == nullptr) {
      return fail(NG_ERROR_INVALID_VALUE, "ngEventElapsedTime: both events must be created with timing and recorded");
    }
    if (!from.complete() || !to.complete()) return NG_ERROR_NOT_READY;
    *milliseconds = static_cast<double>(to.clock->load() - from.clock->load()) * 1e-6;
    return NG_SUCCESS;
  });
}

ngResult ngStreamWaitEvent(ngStream handle, ngEvent event) {
  return call_on("ngStreamWaitEvent", handle, [&](Stream& stream) {
    if (event == nullptr) return null_argument("ngStreamWaitEvent");
    const Mark mark = from_handle(event)->current();
    if (mark.complete() || mark.stream.get() == &stream) return NG_SUCCESS;
    stream.queue([other = mark.stream, number = mark.number](Device&) {
      other->wait(number);
      return NG_SUCCESS;
    });
    return NG_SUCCESS;
  });
}
