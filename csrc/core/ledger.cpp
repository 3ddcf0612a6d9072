// The allocator's counts as statistics; see ledger.h.
#include "ledger.h"

namespace fl {
namespace {

AllocatorStats::Stat sum(const AllocatorStats::Stat& a, const AllocatorStats::Stat& b, int64_t peak) {
  return {a.current + b.current, peak, a.allocated + b.allocated, a.freed + b.freed};
}

}  // namespace

void Ledger::note_active_peaks() {
  int64_t blocks = 0, bytes = 0;
  for (int pool = 0; pool <= kBoth; ++pool) {
    const Pool& of = pools_[pool == kBoth ? 0 : pool];
    const int64_t own_blocks = of[kAllocation].current + of[kWaiting].current;
    const int64_t own_bytes = of[kAllocatedBytes].current + of[kWaitingBytes].current;
    ActivePeak& peak = active_peaks_[pool];
    peak.blocks = std::max(peak.blocks, pool == kBoth ? blocks : own_blocks);
    peak.bytes = std::max(peak.bytes, pool == kBoth ? bytes : own_bytes);
    blocks += own_blocks;
    bytes += own_bytes;
  }
}

AllocatorStats::Stat Ledger::stat(Quantity what, int pool) const {
  if (pool == kBoth) return sum(stat(what, 0), stat(what, 1), peaks_[what]);
  const Flow& flow = pools_[pool][what];
  return {flow.current, flow.peak, flow.total - flow.total_before, flow.total - flow.current - flow.freed_before};
}

// A block is active from when it is handed out until no stream uses it.
AllocatorStats::Stat Ledger::active(Quantity allocated, Quantity waiting, int pool, int64_t peak) const {
  AllocatorStats::Stat all = stat(allocated, pool);
  const int64_t still = pool == kBoth ? current(waiting) : pools_[pool][waiting].current;
  const int64_t before = active_freed_before_[pool][allocated == kAllocatedBytes];
  return {all.current + still, std::max(peak, all.peak), all.allocated, all.freed - still + before};
}

PoolStats Ledger::report_pool(int pool) const {
  PoolStats out;
  out.allocation = stat(kAllocation, pool);
  out.allocated_bytes = stat(kAllocatedBytes, pool);
  out.requested_bytes = stat(kRequestedBytes, pool);
  out.inactive_split = stat(kInactiveSplit, pool);
  out.inactive_split_bytes = stat(kInactiveSplitBytes, pool);
  out.segment = stat(kSegment, pool);
  out.reserved_bytes = stat(kReservedBytes, pool);
  out.active = active(kAllocation, kWaiting, pool, active_peaks_[pool].blocks);
  out.active_bytes = active(kAllocatedBytes, kWaitingBytes, pool, active_peaks_[pool].bytes);
  return out;
}

AllocatorStats Ledger::report() const {
  AllocatorStats out;
  static_cast<PoolStats&>(out) = report_pool(kBoth);
  out.large_pool = report_pool(0);
  out.small_pool = report_pool(1);
  out.oversize_allocations = stat(kOversizeAllocation, 0);
  out.oversize_segments = stat(kOversizeSegment, 0);
  out.num_alloc_retries = num_alloc_retries;
  out.num_ooms = num_ooms;
  out.num_sync_all_streams = num_sync_all_streams;
  out.num_device_alloc = num_device_alloc;
  out.num_device_free = num_device_free;
  return out;
}

void Ledger::reset_accumulated() {
  for (Pool& pool : pools_) {
    for (Flow& flow : pool) {
      flow.total_before = flow.total;
      flow.freed_before = flow.total - flow.current;
    }
  }
  // What waits now has been counted as freed, and becomes so for `active` only later.
  for (int pool = 0; pool <= kBoth; ++pool) {
    active_freed_before_[pool][0] = pool == kBoth ? current(kWaiting) : pools_[pool][kWaiting].current;
    active_freed_before_[pool][1] = pool == kBoth ? current(kWaitingBytes) : pools_[pool][kWaitingBytes].current;
  }
  num_alloc_retries = num_ooms = num_sync_all_streams = num_device_alloc = num_device_free = 0;
}

void Ledger::reset_peaks() {
  for (int what = 0; what < kNumQuantities; ++what) {
    for (Pool& pool : pools_)
      pool[what].peak = pool[what].current;
    peaks_[what] = current(static_cast<Quantity>(what));
  }
  for (ActivePeak& peak : active_peaks_)
    peak = ActivePeak{};
  note_active_peaks();
}

}  // namespace fl
