// The ring, its worker thread, and the C API of streams. The counterpart is stream.h.
#include "stream.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace ng {
namespace {

std::atomic<int> running_commands{0};
std::atomic<uint32_t> streams_started{0};

// Static destructors come after this: no kernel may still run then. What is queued is dropped, what runs gets a while.
void stop_at_exit() {
  process_exiting = true;
  if (process_forked) return;
  for (int i = 0; i < 2000 && running_commands.load() != 0; ++i) usleep(1000);
}

}  // namespace

Stream::~Stream() { free(ring_); }

void Stream::start() {
  mark_in_use();
  ring_ = static_cast<Command*>(aligned_alloc(alignof(Command), kSlots * sizeof(Command)));
  if (ring_ == nullptr) throw std::bad_alloc();
  // Exit handlers run last in, first out: each stream adds one, to be ahead of what its kernels will construct.
  atexit(stop_at_exit);
  // The worker inherits a full mask: the application's signals belong to its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([self = shared_from_this(), number = streams_started.fetch_add(1)] {
      delayed_stream = number;
      self->work();
    }).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    free(ring_);
    ring_ = nullptr;
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Returns with the lock held. It is not held while waiting for a free slot.
Command& Stream::lock_slot() {
  for (;;) {
    producer_.lock();
    const uint64_t number = queued_.load(std::memory_order_relaxed) + 1;
    if (__builtin_expect(ring_ == nullptr, 0)) {
      try {
        start();
      } catch (...) {
        producer_.unlock();
        throw;
      }
    }
    if (number - known_done_ > kSlots) known_done_ = done_.load(std::memory_order_acquire);
    if (number - known_done_ <= kSlots) return slot(number);
    producer_.unlock();
    wait(number - kSlots / 2);  // half a ring at once, so that a fast host seldom sleeps
  }
}

void Stream::publish() {
  // The exchange orders the new number before the look at asleep_; the worker does the mirror image in next_command().
  queued_.exchange(queued_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  producer_.unlock();
  if (__builtin_expect(asleep_.load(std::memory_order_seq_cst), 0)) {
    std::lock_guard<std::mutex> lock(mutex_);
    asleep_ = false;
    work_came_.notify_one();
  }
}

// Waits until command `number` is queued. False if it will never be.
bool Stream::next_command(uint64_t number) {
  for (Spin spin; spin.again();) {
    if (queued_.load(std::memory_order_acquire) >= number) return true;
    if (closed_.load(std::memory_order_relaxed)) break;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    asleep_.store(true, std::memory_order_seq_cst);
    const bool came = queued_.load(std::memory_order_seq_cst) >= number;
    if (came || closed_) {
      asleep_ = false;
      return came;
    }
    work_came_.wait(lock);
  }
}

ngResult Stream::run(Command& command) {
  clear_message();
  running_commands.fetch_add(1);
  const bool execute = !device_.lost.load(std::memory_order_relaxed) && !process_exiting.load();
  ngResult result;
  try {
    result = command.run(command.payload, device_, execute);
  } catch (...) {
    result = convert_exception("kernel");
  }
  running_commands.fetch_sub(1);
  return result;
}

void Stream::work() {
  char name[16];
  snprintf(name, sizeof(name), "ninguang-%d", device_.index);
  pthread_setname_np(pthread_self(), name);
  for (uint64_t number = 1; next_command(number); ++number) {
    const ngResult result = run(slot(number));
    if (__builtin_expect(result != NG_SUCCESS, 0)) keep_error(result, number);
    // The exchange orders done_ before the look at wake_at_; wait() does the mirror image.
    done_.exchange(number, std::memory_order_seq_cst);
    if (__builtin_expect(number >= wake_at_.load(std::memory_order_seq_cst), 0)) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_at_ = UINT64_MAX;
      work_done_.notify_all();
    }
  }
}

void Stream::wait(uint64_t number) {
  for (Spin spin; spin.again();) {
    if (reached(number)) return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (number < wake_at_.load(std::memory_order_relaxed)) wake_at_.store(number, std::memory_order_seq_cst);
    if (done_.load(std::memory_order_seq_cst) >= number) return;
    work_done_.wait(lock);
  }
}

void Stream::keep_error(ngResult result, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;  // the first one is the cause
  error_ = result;
  error_number_ = number;
  snprintf(error_message_, sizeof(error_message_), "%s", *message() ? message() : ngErrorName(result));
  failed_.store(true, std::memory_order_release);
}

ngResult Stream::take_error(uint64_t number) {
  if (!failed_.load(std::memory_order_acquire)) return NG_SUCCESS;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failed_.load(std::memory_order_relaxed) || error_number_ > number) return NG_SUCCESS;
  failed_.store(false, std::memory_order_relaxed);
  return fail(error_, "%s", error_message_);
}

void Stream::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  work_came_.notify_one();
}

void forget_settled_streams(Device& device) {
  auto& streams = device.streams;
  const auto settled = [](const std::shared_ptr<Stream>& stream) { return stream->settled(); };
  streams.erase(std::remove_if(streams.begin(), streams.end(), settled), streams.end());
}

}  // namespace ng

using namespace ng;

ngResult ngStreamCreate(int32_t device, int32_t priority, ngStream* stream) {
  (void)priority;  // one kernel at a time per stream: the operating system schedules the workers
  return call_on("ngStreamCreate", device, [&](Device& found) {
    if (stream == nullptr) return null_argument("ngStreamCreate");
    *stream = nullptr;
    if (fault_due(Fault::kStream, found.index)) return fail(NG_ERROR_INTERNAL, "ngStreamCreate: injected fault");
    auto created = std::make_shared<Stream>(found);
    std::lock_guard<std::mutex> lock(found.mutex);
    forget_settled_streams(found);
    found.streams.push_back(created);
    *stream = reinterpret_cast<ngStream>(created.get());
    return NG_SUCCESS;
  });
}

ngResult ngStreamDestroy(ngStream handle) {
  Stream* const stream = from_handle(handle);
  if (stream == nullptr) return NG_SUCCESS;
  // Even on a lost device: only a forked child is refused.
  return call("ngStreamDestroy", nullptr, [&] {
    for (const auto& device : runtime().devices) {  // the handle may be stale: it is not looked into
      std::lock_guard<std::mutex> lock(device->mutex);
      for (const auto& known : device->streams) {
        if (known.get() != stream || known->closed()) continue;
        known->close();
        forget_settled_streams(*device);
        return NG_SUCCESS;
      }
    }
    return fail(NG_ERROR_INVALID_VALUE, "ngStreamDestroy: unknown stream");
  });
}

ngResult ngStreamQuery(ngStream handle) {
  return call_on("ngStreamQuery", handle, [&](Stream& stream) {
    const uint64_t target = stream.queued();
    const bool idle = stream.reached(target);
    const ngResult error = stream.take_error(target);
    if (error != NG_SUCCESS) return error;
    if (stream.device().lost) return refuse_lost(stream.device());
    return idle ? NG_SUCCESS : NG_ERROR_NOT_READY;
  });
}

ngResult ngStreamSynchronize(ngStream handle) {
  return call_on("ngStreamSynchronize", handle, [&](Stream& stream) {
    if (fault_due(Fault::kSync, stream.device().index)) {
      return fail(NG_ERROR_TIMEOUT, "ngStreamSynchronize: injected fault: the stream did not become idle");
    }
    const uint64_t target = stream.queued();
    stream.wait(target);
    if (stream.device().lost) return refuse_lost(stream.device());
    return stream.take_error(target);
  });
}
