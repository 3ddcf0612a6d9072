// Process state: the child of a fork() must not use devices that the parent opened, and at exit adapters are left
// alone.
#include <algorithm>
#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <mutex>

#include "internal.h"

namespace fl {

std::atomic<bool> forked_child{false};
std::atomic<bool> exiting{false};

namespace {

// Runs in the child between fork() and its first instruction: stores only.
void after_fork_in_child() {
  if (devices_opened() && find_device(0) != nullptr) forked_child.store(true);
}

void at_exit() { exiting.store(true); }

}  // namespace

void watch_process() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
  // Exit handlers run in reverse order: one registered after the adapter opened its SDK runs before the SDK's own.
  std::atexit(at_exit);
}

bool in_bad_fork() noexcept { return forked_child.load(std::memory_order_relaxed); }

void raise_forked() {
  raise(FL_STATUS_FAILED_PRECONDITION,
        "fl devices cannot be used in a forked child process: the parent had already opened them. Start processes with "
        "the 'spawn' method (torch.multiprocessing.set_start_method('spawn')), or fork before the first use of a "
        "device.");
}

// The pauses double: a thread that holds the lock for short times, over and over, keeps the cache line and loses less to
// those that wait than if they all asked for it all the time.
void SpinLock::wait() {
  constexpr int kDoublings = 6, kSpins = 24, kYields = 256;
  for (int round = 0;; ++round) {
    if (!held_.load(std::memory_order_relaxed) && try_lock()) return;
    if (round < kSpins) {
#if defined(__x86_64__)
      for (int pauses = 1 << std::min(round, kDoublings); pauses != 0; --pauses)
        __builtin_ia32_pause();
#endif
    } else if (round < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

}  // namespace fl
