// What the files of the core share and nobody outside sees: process state (fork, exit), usability checks, a lock.
#pragma once
#include <atomic>
#include <string>
#include <thread>

#include "device.h"
#include "error.h"
#include "stream.h"

namespace fl {

// ---- process state (fork.cpp)
extern std::atomic<bool> forked_child;  // a child of a process that had opened devices
extern std::atomic<bool> exiting;       // exit() has begun: adapters may already be torn down
void watch_process();                   // installs the handlers; called after each adapter opened, so ours run first
[[noreturn]] void raise_forked();

// ---- devices (device.cpp)
Device* find_device(int index) noexcept;                                 // nullptr if absent; opens nothing
std::string device_label(const Device& device);                          // "fl:1 (acme)"
std::string adapter_words(const fl_adapter& adapter, fl_status status);  // "Invalid argument (NG_X): message"
void remember_lost(int index, const std::string& words);
[[noreturn]] void raise_unusable(const Device& device);
std::string real_path(const std::string& path);  // empty if there is no such file

// Before anything is asked of a device: raises in a forked child and on a lost device.
inline void check_usable(const Device& device) {
  if (__builtin_expect(device.lost() || forked_child.load(std::memory_order_relaxed), 0)) raise_unusable(device);
}

// ---- errors (error.cpp)
// While one lives, this thread's raise() throws fl::Error and not what the bridge installed: for code that catches the
// error itself, or that must leave a lock before the bridge's exception is made.
class PlainErrors {
 public:
  PlainErrors();
  ~PlainErrors();
  PlainErrors(const PlainErrors&) = delete;
};

// ---- a lock that costs one atomic exchange when free. Waiters spin, then yield, then sleep: the allocator may hold it
// while an adapter call blocks.
class SpinLock {
 public:
  void lock() {
    if (__builtin_expect(!held_.exchange(true, std::memory_order_acquire), 1)) return;
    wait();
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  void wait();
  std::atomic<bool> held_{false};
};

}  // namespace fl
