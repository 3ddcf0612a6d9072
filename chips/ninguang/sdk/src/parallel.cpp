// The chip's cores: helper threads that all streams share. The counterpart is parallel.h.
//
// A job is a range cut into parts. Each thread takes the parts of its own share first, so that the same core meets the
// same data again in the next operation, and then what is left of the others' shares; a helper that wakes late delays
// nobody. Jobs live in static slots, because a late helper may still look at one that is long over: it can claim a part
// only by changing a word that holds the job's number.
#include "parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "error.h"
#include "wait.h"

namespace ng {
namespace {

struct alignas(64) Job {
  std::atomic<bool> taken{false};
  std::atomic<uint32_t> number{0};  // even: being set up or over
  std::atomic<int> parts{0}, threads{0};
  std::atomic<int64_t> n{0};
  std::atomic<detail::Part> part{nullptr};
  std::atomic<const void*> body{nullptr};
  std::atomic<uint32_t> claims[detail::kMaxParts] = {};  // number: open, number + 1: taken

  alignas(64) std::atomic<int> finished{0};
  std::mutex mutex;  // of what went wrong
  std::exception_ptr error;
  char message[kMessageBytes] = "";
};

constexpr int kWakes = 2;  // by one thread
constexpr int kJobs = 16;  // at a time; a stream that finds none runs alone

struct Pool {
  Job jobs[kJobs];
  std::atomic<uint32_t> epoch{0};  // counts jobs; helpers sleep on it
  std::atomic<int> sleepers{0};
  std::atomic<int> to_wake{0};  // by those who wake first: a wake-up costs the waker microseconds
  std::once_flag started;
};

Pool& pool() {
  static Pool* const pool = new Pool;  // leaked: the helpers run until the process ends
  return *pool;
}

thread_local bool running_part = false;

void keep_failure(Job& job, std::exception_ptr error) {
  std::lock_guard<std::mutex> lock(job.mutex);
  if (error && !job.error) job.error = std::move(error);
  if (*message() && !*job.message) memcpy(job.message, message(), kMessageBytes);
}

void run_part(Job& job, int index, int parts) {
  const int64_t n = job.n.load(std::memory_order_relaxed);
  const auto edge = [&](int i) { return n / parts * i + n % parts * i / parts; };
  std::exception_ptr error;
  clear_message();
  try {
    const detail::Part part = job.part.load(std::memory_order_relaxed);
    part(job.body.load(std::memory_order_relaxed), edge(index), edge(index + 1));
  } catch (...) {
    error = std::current_exception();
  }
  if (__builtin_expect(error || *message(), 0)) keep_failure(job, std::move(error));
  job.finished.fetch_add(1, std::memory_order_release);
}

// Takes parts of the job until none is left, those of share `share` first. True if there were any.
bool help(Job& job, int share) {
  const uint32_t number = job.number.load(std::memory_order_acquire);
  if (number % 2 == 0) return false;
  const int parts = job.parts.load(std::memory_order_relaxed), threads = job.threads.load(std::memory_order_relaxed);
  if (parts <= 0 || threads <= 0) return false;
  const int first = static_cast<int>(int64_t{parts} * (share % threads) / threads);
  bool helped = false;
  for (int i = 0; i < parts; ++i) {
    const int index = first + i < parts ? first + i : first + i - parts;
    uint32_t open = number;
    if (job.claims[index].load(std::memory_order_relaxed) != open) continue;
    // If this succeeds the job is alive, and stays so until this part is finished.
    if (!job.claims[index].compare_exchange_strong(open, number + 1, std::memory_order_acquire)) continue;
    run_part(job, index, parts);
    helped = true;
  }
  return helped;
}

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

void helper(int share) {
  char name[16];
  snprintf(name, sizeof(name), "ng-core-%d", share);
  pthread_setname_np(pthread_self(), name);
  running_part = true;
  Pool& all = pool();
  for (;;) {
    const uint32_t seen = all.epoch.load(std::memory_order_seq_cst);
    bool helped = false;
    for (Job& job : all.jobs) helped |= help(job, share);
    if (helped) continue;
    bool came = false;
    for (Spin spin(false); !came && spin.again();) came = all.epoch.load(std::memory_order_relaxed) != seen;
    if (came) continue;
    all.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (all.epoch.load(std::memory_order_seq_cst) == seen) futex(all.epoch, FUTEX_WAIT, seen);
    all.sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (all.to_wake.load(std::memory_order_relaxed) > 0) {
      all.to_wake.fetch_sub(kWakes, std::memory_order_relaxed);
      futex(all.epoch, FUTEX_WAKE, kWakes);
    }
  }
}

void start_helpers() {
  sigset_t everything, before;  // the application's signals belong to its own threads
  sigfillset(&everything);
  pthread_sigmask(SIG_SETMASK, &everything, &before);
  try {
    for (int share = 1; share < cores(); ++share) std::thread(helper, share).detach();
  } catch (const std::system_error&) {
    // Fewer helpers are slower, not wrong.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Job* take_job() {
  for (Job& job : pool().jobs) {
    if (!job.taken.load(std::memory_order_relaxed) && !job.taken.exchange(true, std::memory_order_acquire)) return &job;
  }
  return nullptr;
}

// Publishes the job and wakes as many helpers as it can use.
void open_job(Job& job, int64_t n, int parts, int threads, detail::Part part, const void* body) {
  const uint32_t number = job.number.load(std::memory_order_relaxed) + 1;
  job.n.store(n, std::memory_order_relaxed);
  job.parts.store(parts, std::memory_order_relaxed);
  job.threads.store(threads, std::memory_order_relaxed);
  job.part.store(part, std::memory_order_relaxed);
  job.body.store(body, std::memory_order_relaxed);
  job.finished.store(0, std::memory_order_relaxed);
  for (int i = 0; i < parts; ++i) job.claims[i].store(number, std::memory_order_release);
  job.number.store(number, std::memory_order_release);
  Pool& all = pool();
  all.epoch.fetch_add(1, std::memory_order_seq_cst);
  if (all.sleepers.load(std::memory_order_seq_cst) > 0) {
    all.to_wake.store(threads - 1 - kWakes, std::memory_order_relaxed);
    futex(all.epoch, FUTEX_WAKE, static_cast<uint32_t>(std::min(threads - 1, kWakes)));
  }
}

// All parts are taken; waits for those that helpers still run.
void close_job(Job& job, int parts) {
  for (int i = 0; job.finished.load(std::memory_order_acquire) < parts; ++i) {
    i < 200 ? cpu_relax() : static_cast<void>(sched_yield());
  }
  job.number.store(job.number.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace

bool detail::in_part() { return running_part; }

void detail::run_parts(int64_t n, int parts, int threads, Part part, const void* body) {
  std::call_once(pool().started, start_helpers);
  Job* const job = take_job();
  if (job == nullptr) return part(body, 0, n);
  open_job(*job, n, parts, threads, part, body);
  running_part = true;
  help(*job, 0);
  close_job(*job, parts);
  running_part = false;
  if (*job->message) fail(NG_ERROR_INTERNAL, "%s", job->message);  // makes it this thread's message
  std::exception_ptr error = std::move(job->error);
  job->error = nullptr;
  job->message[0] = 0;
  job->taken.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

}  // namespace ng
