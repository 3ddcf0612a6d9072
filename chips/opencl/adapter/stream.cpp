// Streams as in-order queues, events as markers, scratch memory and the words that kernels report errors in.
#include "stream.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "memory.h"

namespace ocl {
namespace {

constexpr uint64_t kErrorBytes = 2 * sizeof(int32_t);

cl_int status_of_event(cl_event event) {
  cl_int status = CL_COMPLETE;
  check(cl().GetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr),
        "clGetEventInfo");
  return status;
}

// True if complete. Throws if the work before it failed.
bool passed(cl_event event) {
  const cl_int status = status_of_event(event);
  if (status < 0) fail(status, "queued work on the device");
  return status == CL_COMPLETE;
}

void drop(cl_event& event) {
  if (event != nullptr) cl().ReleaseEvent(event);
  event = nullptr;
}

cl_event mark(Stream& stream) {
  cl_event marker = nullptr;
  check(cl().EnqueueMarkerWithWaitList(stream.queue, 0, nullptr, &marker), "marker");
  const cl_int code = cl().Flush(stream.queue);
  if (code != CL_SUCCESS) {
    drop(marker);
    fail(code, "clFlush");
  }
  stream.unflushed = 0;
  return marker;
}

fl_memory memory_of(const Place& place) { return {place.pointer, place.buffer, 0}; }

Place allocate(Device& device, uint64_t bytes) { return Place::of(device.memory->allocate(bytes)); }

// Reads the words that kernels write when they meet bad operands, and clears them. The queue is idle, or its memory is
// the host's too. Under stream.mutex.
void report_errors(Stream& stream) {
  if (!stream.errors_possible) return;
  int32_t words[2] = {0, 0};
  if (stream.device->fine_grained) {
    auto* shared = static_cast<int32_t*>(stream.error_place.pointer);
    for (int i = 0; i < 2; ++i) words[i] = __atomic_exchange_n(shared + i, 0, __ATOMIC_ACQ_REL);
  } else {
    queue_read(stream, words, stream.error_place, sizeof(words), true);
    if (words[0] != 0 || words[1] != 0) queue_fill(stream, stream.error_place, 0, kErrorBytes);
  }
  if (words[0] != 0) fail(FL_STATUS_OUT_OF_RANGE, "index out of range");
  if (words[1] != 0) fail(FL_STATUS_INVALID_ARGUMENT, "ZeroDivisionError");  // PyTorch's own words for it
}

void synchronize_locked(Stream& stream) {
  const cl_int code = cl().Finish(stream.queue);
  stream.unflushed = 0;
  const cl_int status = stream.marker != nullptr ? status_of_event(stream.marker) : CL_COMPLETE;
  drop(stream.marker);
  stream.marked = stream.work;
  for (const Place& place : stream.retired) stream.device->memory->release(memory_of(place));
  stream.retired.clear();
  check(code, "queued work on the device");
  if (status < 0) fail(status, "queued work on the device");
  report_errors(stream);
  stream.errors_possible = false;
}

cl_command_queue make_queue(Device& device, int priority) {
  cl_int code = CL_SUCCESS;
  cl_command_queue queue = nullptr;
  if (cl().CreateCommandQueueWithProperties != nullptr && device.priorities && priority != 0) {
    const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, CL_QUEUE_PRIORITY_KHR,
                                              CL_QUEUE_PRIORITY_HIGH_KHR, 0};
    queue = cl().CreateCommandQueueWithProperties(device.context(), device.id, properties, &code);
    if (code == CL_SUCCESS) return queue;  // else a hint that the driver does not take: an ordinary queue will do
  }
  // Profiling costs nothing measurable on the runtimes tried, and an event's time needs it.
  queue = cl().CreateCommandQueue(device.context(), device.id, CL_QUEUE_PROFILING_ENABLE, &code);
  if (code != CL_SUCCESS) fail(code, "cannot make a queue on " + device.name);
  return queue;
}

}  // namespace

// ---------------------------------------------------------------- Stream

Stream::Stream(Device& on, cl_command_queue made) : device(&on), queue(made) {}

Stream::~Stream() {
  {
    std::lock_guard<std::shared_mutex> lock(device->streams_mutex);
    device->streams.erase(this);
  }
  cl().Finish(queue);
  drop(marker);
  guarded([this] { staging.reset(); });
  retired.push_back(scratch_place);
  retired.push_back(error_place);
  for (const Place& place : retired) {
    if (place.pointer == nullptr && place.buffer == nullptr) continue;
    guarded([&] { device->memory->release(memory_of(place)); });
  }
  cl().ReleaseCommandQueue(queue);
}

Place Stream::scratch(uint64_t bytes) {
  if (bytes <= scratch_bytes) return scratch_place;
  if (scratch_bytes != 0) retired.push_back(scratch_place);  // earlier operations may still use it
  scratch_bytes = 0;
  scratch_place = Place{};
  constexpr uint64_t kLeast = 1u << 20;
  const uint64_t wanted = std::max({bytes + bytes / 2, kLeast});
  const fl_status status = guarded([&] { scratch_place = allocate(*device, wanted); });
  if (status == FL_STATUS_OK) {
    scratch_bytes = wanted;
    return scratch_place;
  }
  // Tight: exactly what is needed, once the old pieces are given back.
  check(cl().Finish(queue), "work before growing scratch memory");
  for (const Place& place : retired) device->memory->release(memory_of(place));
  retired.clear();
  scratch_place = allocate(*device, bytes);
  scratch_bytes = bytes;
  return scratch_place;
}

Place Stream::error_words() {
  if (error_place.pointer == nullptr && error_place.buffer == nullptr) {
    error_place = allocate(*device, kErrorBytes);
    queue_fill(*this, error_place, 0, kErrorBytes);
  }
  errors_possible = true;
  return error_place;
}

void Stream::queued() {
  ++work;
  if (++unflushed < device->flush_every) return;
  unflushed = 0;
  check(cl().Flush(queue), "clFlush");
}

Stream* create_stream(Device& device, int priority) {
  auto* stream = new Stream(device, make_queue(device, priority));
  std::lock_guard<std::shared_mutex> lock(device.streams_mutex);
  device.streams.insert(stream);
  return stream;
}

void destroy_stream(Stream* stream) { delete stream; }

fl_status query_stream(Stream& stream) {
  std::unique_lock<std::mutex> lock(stream.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return FL_STATUS_NOT_READY;  // another thread queues work on it or waits for it
  if (stream.marker != nullptr) {
    if (!passed(stream.marker)) return FL_STATUS_NOT_READY;
    drop(stream.marker);
  }
  if (stream.marked != stream.work) {
    stream.marker = mark(stream);
    stream.marked = stream.work;
    if (!passed(stream.marker)) return FL_STATUS_NOT_READY;
    drop(stream.marker);
  }
  report_errors(stream);
  return FL_STATUS_OK;
}

void synchronize_stream(Stream& stream) {
  std::lock_guard<std::mutex> lock(stream.mutex);
  synchronize_locked(stream);
}

void synchronize_device(Device& device) {
  std::shared_lock<std::shared_mutex> lock(device.streams_mutex);
  fl_status first = FL_STATUS_OK;
  Failure failure{};
  for (Stream* stream : device.streams) {  // all of them, even after a failure
    try {
      synchronize_stream(*stream);
    } catch (const Failure& of_stream) {
      if (first == FL_STATUS_OK) failure = of_stream;
      first = failure.status;
    }
  }
  if (first != FL_STATUS_OK) throw failure;
}

fl_status wait_event(Stream& stream, const Event& event) {
  if (event.handle == nullptr || event.stream == &stream) return FL_STATUS_OK;
  if (event.device->context() != stream.device->context()) return FL_STATUS_UNIMPLEMENTED;
  if (status_of_event(event.handle) == CL_COMPLETE) return FL_STATUS_OK;
  std::lock_guard<std::mutex> lock(stream.mutex);
  check(cl().EnqueueBarrierWithWaitList(stream.queue, 1, &event.handle, nullptr), "wait for an event");
  ++stream.work;
  return FL_STATUS_OK;
}

// ---------------------------------------------------------------- events

namespace {

// Errors of kernels before the event. Without host-visible words it costs a wait for the whole stream.
void report_errors_of(Event& event, bool may_wait) {
  std::shared_lock<std::shared_mutex> alive(event.device->streams_mutex, std::defer_lock);
  if (may_wait)
    alive.lock();
  else if (!alive.try_lock())
    return;
  if (event.device->streams.count(event.stream) == 0) return;
  Stream& stream = *event.stream;
  std::unique_lock<std::mutex> lock(stream.mutex, std::defer_lock);
  if (may_wait)
    lock.lock();
  else if (!event.device->fine_grained || !lock.try_lock())
    return;
  report_errors(stream);
}

}  // namespace

void record_event(Event& event, Stream& stream) {
  if (event.device != stream.device) {
    fail(FL_STATUS_INVALID_ARGUMENT, "an event of device " + std::to_string(event.device->ordinal) +
                                         " recorded on a stream of device " + std::to_string(stream.device->ordinal));
  }
  std::lock_guard<std::mutex> lock(stream.mutex);
  const cl_event marker = mark(stream);
  drop(event.handle);
  event.handle = marker;
  event.stream = &stream;
}

fl_status query_event(Event& event) {
  if (event.handle == nullptr) return FL_STATUS_OK;
  if (!passed(event.handle)) return FL_STATUS_NOT_READY;
  report_errors_of(event, false);
  return FL_STATUS_OK;
}

void synchronize_event(Event& event) {
  if (event.handle == nullptr) return;
  const cl_int code = cl().WaitForEvents(1, &event.handle);
  passed(event.handle);  // tells which error it was
  check(code, "wait for an event");
  report_errors_of(event, true);
}

double elapsed_ms(const Event& start, const Event& end) {
  cl_ulong times[2] = {0, 0};
  const Event* const events[2] = {&start, &end};
  for (int i = 0; i < 2; ++i) {
    if (!events[i]->timing || events[i]->handle == nullptr)
      fail(FL_STATUS_FAILED_PRECONDITION, "event_elapsed of an event that was not made for timing or never recorded");
    if (!passed(events[i]->handle)) fail(FL_STATUS_NOT_READY, "event_elapsed of an event that is not complete");
    check(cl().GetEventProfilingInfo(events[i]->handle, CL_PROFILING_COMMAND_END, sizeof(cl_ulong), &times[i], nullptr),
          "time of an event");
  }
  return static_cast<double>(static_cast<cl_long>(times[1] - times[0])) * 1e-6;
}

void destroy_event(Event* event) {
  drop(event->handle);
  delete event;
}

}  // namespace ocl
