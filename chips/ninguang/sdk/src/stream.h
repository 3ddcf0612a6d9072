// A stream: a ring of commands that host threads fill and one worker thread runs in order.
//
// Commands are numbered from 1. queued() is the number of the last one queued, so "everything queued so far" is one
// number: an event is a stream and a number, and waiting for an event is waiting for that stream to reach it.
// Each command is written straight into its slot; what does not fit goes to a heap block that the command owns.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

#include "device.h"
#include "wait.h"

namespace ng {

// A slot of the ring. run() gets the payload; with execute = false it only releases what the payload owns.
struct alignas(64) Command {
  static constexpr size_t kBytes = 1024;
  using Run = ngResult (*)(void* payload, Device& device, bool execute);
  Run run;
  alignas(16) unsigned char payload[kBytes - 16];
};
static_assert(sizeof(Command) == Command::kBytes, "a slot is what the ring is cut into");

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(Device& device) : device_(device) {}
  ~Stream();

  Device& device() const { return device_; }

  // Holds the producers' lock and one free slot; commit() queues it, else the slot stays free.
  class Slot {
   public:
    explicit Slot(Stream& stream) : stream_(stream), command_(stream.lock_slot()) {}
    ~Slot() {
      if (!committed_) stream_.producer_.unlock();
    }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    void* payload() { return command_.payload; }
    void commit(Command::Run run) {
      command_.run = run;
      committed_ = true;
      stream_.publish();
    }

   private:
    Stream& stream_;
    Command& command_;
    bool committed_ = false;
  };

  // Queues task(device, execute), a small callable that returns ngResult.
  template <class Task>
  void queue(Task&& task) {
    using Stored = std::decay_t<Task>;
    static_assert(sizeof(Stored) <= sizeof(Command::payload), "a task must fit in a slot");
    Slot slot(*this);
    new (slot.payload()) Stored(std::forward<Task>(task));
    slot.commit([](void* payload, Device& device, bool execute) {
      auto* stored = static_cast<Stored*>(payload);
      struct Release {
        Stored* stored;
        ~Release() { stored->~Stored(); }
      } release{stored};
      return execute ? (*stored)(device) : NG_SUCCESS;
    });
  }

  // Runs task() here and now if nothing is queued, under the producers' lock so that nothing gets in between.
  template <class Task>
  bool run_if_idle(Task&& task) {
    if (!reached(queued())) return false;
    std::lock_guard<SpinLock> lock(producer_);
    if (!reached(queued())) return false;
    task();
    return true;
  }

  uint64_t queued() const { return queued_.load(std::memory_order_acquire); }
  bool reached(uint64_t number) const { return done_.load(std::memory_order_acquire) >= number; }
  void wait(uint64_t number);  // until reached

  // The failure of a command up to `number`, with its message made this thread's; it is then forgotten.
  ngResult take_error(uint64_t number);

  // No more commands will come: the worker ends when all have run. Does not wait.
  void close();
  bool closed() const { return closed_; }
  // Closed, with nothing left to run or to report.
  bool settled() const { return closed_ && reached(queued()) && !failed_.load(std::memory_order_acquire); }

 private:
  static constexpr uint64_t kSlots = 256;

  Command& slot(uint64_t number) { return ring_[number % kSlots]; }
  Command& lock_slot();
  void start();
  void publish();
  void work();
  bool next_command(uint64_t number);
  ngResult run(Command& command);
  void keep_error(ngResult result, uint64_t number);

  Device& device_;
  Command* ring_ = nullptr;  // made with the worker, at the first command

  // Host side.
  alignas(64) SpinLock producer_;
  std::atomic<uint64_t> queued_{0};
  uint64_t known_done_ = 0;  // a lower bound of done_, so that the common case does not touch the worker's line

  // Worker side.
  alignas(64) std::atomic<uint64_t> done_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> wake_at_{UINT64_MAX};  // the smallest number that a sleeping waiter waits for

  std::mutex mutex_;  // of sleeping and of the error
  std::condition_variable work_came_, work_done_;
  ngResult error_ = NG_SUCCESS;
  uint64_t error_number_ = 0;
  char error_message_[kMessageBytes] = "";
};

void forget_settled_streams(Device& device);  // under its mutex

// The handle that the C API shows is the object itself.
inline Stream* from_handle(ngStream stream) { return reinterpret_cast<Stream*>(stream); }

// Runs one call of the C API on a stream.
template <class Body>
ngResult call_on(const char* api, ngStream handle, Body&& body) noexcept {
  Stream* const stream = from_handle(handle);
  if (stream == nullptr) return null_argument(api);
  return call(api, &stream->device(), [&] { return body(*stream); });
}

}  // namespace ng
