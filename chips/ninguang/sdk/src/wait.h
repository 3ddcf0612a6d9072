// Waiting for another thread: a short bounded spin before anybody sleeps, and a lock for a few instructions.
#pragma once
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace ng {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// while (!done() && spin.again()) {} ... then sleep. Lasts longer than a host needs between two launches, so a busy
// stream never pays for a wake-up.
// Who waits for another thread of this process yields, since that one may need this very core. Who waits for work that
// others can do instead does not: on a shared machine a yield gives the core away for milliseconds.
class Spin {
 public:
  explicit Spin(bool yields = true) : yields_(yields) {}
  bool again() {
    cpu_relax();
    if (++rounds_ <= kEagerRounds) return true;
    if (yields_) sched_yield();
    const auto now = std::chrono::steady_clock::now();
    if (rounds_ == kEagerRounds + 1) deadline_ = now + std::chrono::microseconds(yields_ ? 40 : 20);
    return now < deadline_;
  }

 private:
  static constexpr int kEagerRounds = 60;
  const bool yields_;
  int rounds_ = 0;
  std::chrono::steady_clock::time_point deadline_;
};

class SpinLock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) {
      for (int i = 0; locked_.load(std::memory_order_relaxed); ++i) i < 100 ? cpu_relax() : (void)sched_yield();
    }
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace ng
