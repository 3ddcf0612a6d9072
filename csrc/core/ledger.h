// What the caching allocator counts. The small and the large pool are kept apart, with exact peaks of each and of both
// together. Every allocation and free writes here, so what can be derived is not kept: freed = total - current, both
// pools = their sum, active = allocated + waiting for other streams.
#pragma once
#include <algorithm>
#include <array>

#include "memory_report.h"

namespace fl {

class Ledger {
 public:
  enum Quantity {
    kAllocation, kAllocatedBytes, kRequestedBytes,  // handed out
    kInactiveSplit, kInactiveSplitBytes,            // free blocks that share their segment
    kWaiting, kWaitingBytes,                        // freed, and still used by other streams
    kSegment, kReservedBytes,
    kOversizeAllocation, kOversizeSegment,          // of at least max_split_size; the large pool's
    kNumQuantities
  };
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0, num_device_alloc = 0, num_device_free = 0;

  void increase(Quantity what, bool small, int64_t amount) {
    Flow& flow = pools_[small][what];
    flow.total += amount;
    flow.current += amount;
    flow.peak = std::max(flow.peak, flow.current);
    peaks_[what] = std::max(peaks_[what], flow.current + pools_[!small][what].current);
  }
  void decrease(Quantity what, bool small, int64_t amount) { pools_[small][what].current -= amount; }

  void hand_out(bool small, int64_t size, int64_t requested) {
    increase(kAllocation, small, 1);
    increase(kAllocatedBytes, small, size);
    increase(kRequestedBytes, small, requested);
    if (__builtin_expect((pools_[0][kWaiting].current | pools_[1][kWaiting].current) != 0, 0)) note_active_peaks();
  }
  void take_back(bool small, int64_t size, int64_t requested) {
    decrease(kAllocation, small, 1);
    decrease(kAllocatedBytes, small, size);
    decrease(kRequestedBytes, small, requested);
  }
  // Memory that leaves one pool for the other is neither allocated nor freed.
  void move_reserved(bool to_small, int64_t bytes) {
    pools_[!to_small][kReservedBytes].current -= bytes;
    Flow& to = pools_[to_small][kReservedBytes];
    to.current += bytes;
    to.peak = std::max(to.peak, to.current);
  }

  int64_t current(Quantity what) const { return pools_[0][what].current + pools_[1][what].current; }
  AllocatorStats report() const;
  void reset_accumulated();
  void reset_peaks();

 private:
  struct Flow {
    int64_t total = 0, current = 0, peak = 0;
    int64_t total_before = 0, freed_before = 0;  // when the accumulated counts were reset
  };
  using Pool = std::array<Flow, kNumQuantities>;
  struct ActivePeak {  // seen while something waited; else the peak of what is allocated is theirs
    int64_t blocks = 0, bytes = 0;
  };

  void note_active_peaks();
  AllocatorStats::Stat stat(Quantity what, int pool) const;
  AllocatorStats::Stat active(Quantity allocated, Quantity waiting, int pool, int64_t peak) const;
  PoolStats report_pool(int pool) const;

  static constexpr int kBoth = 2;  // beside the pools 0 (large) and 1 (small)
  Pool pools_[2];
  std::array<int64_t, kNumQuantities> peaks_{};  // of both pools together
  ActivePeak active_peaks_[3];
  int64_t active_freed_before_[3][2] = {};
};

}  // namespace fl
