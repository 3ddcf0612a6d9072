// Vector clocks over streams, events and the host, and the check of each access against those before it. One mutex: the
// finder is for finding races, and holds it for microseconds. Nothing is called with it held.
#include "race.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "internal.h"
#include "memory_report.h"
#include "race_memory.h"
#include "stream_pool.h"

namespace fl {

namespace {

constexpr size_t kMaxRecords = 1024;  // per block; beyond it the oldest access is forgotten

struct Finder {
  std::mutex mutex;
  std::unordered_map<const Stream*, int> slots;
  std::vector<RaceClock> clocks;             // by slot
  std::vector<uint64_t> host_seen;           // by slot: version of the host's clock that the stream has joined
  RaceClock host;
  uint64_t host_version = 0;
  std::unordered_map<const Event*, RaceMark> events;
  std::map<int, RaceMemory> memory;          // by space
  std::vector<RaceReport> pending;           // found where nothing may be raised
};

Finder& finder() {
  static Finder* all = new Finder;  // events and memory go until the very end of the process
  return *all;
}

bool usable() { return debugging(kRaceCheck) && !in_bad_fork(); }

uint64_t at(const RaceClock& clock, int slot) {
  return static_cast<size_t>(slot) < clock.size() ? clock[static_cast<size_t>(slot)] : 0;
}

bool join(RaceClock& into, const RaceClock& from) {
  bool changed = false;
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] <= into[i]) continue;
    into[i] = from[i];
    changed = true;
  }
  return changed;
}

int slot_of(Finder& all, const Stream& stream) {
  const auto [found, fresh] = all.slots.emplace(&stream, static_cast<int>(all.clocks.size()));
  if (fresh) {
    all.clocks.emplace_back();
    all.host_seen.push_back(0);
  }
  return found->second;
}

void join_host(Finder& all, const RaceClock& clock) {
  if (join(all.host, clock)) ++all.host_version;
}

// The clock of a stream at which new work on it starts.
RaceClock& start_work(Finder& all, int slot) {
  RaceClock& clock = all.clocks[static_cast<size_t>(slot)];
  if (all.host_seen[static_cast<size_t>(slot)] != all.host_version) {
    join(clock, all.host);
    all.host_seen[static_cast<size_t>(slot)] = all.host_version;
  }
  if (clock.size() <= static_cast<size_t>(slot)) clock.resize(static_cast<size_t>(slot) + 1);
  ++clock[static_cast<size_t>(slot)];
  return clock;
}

RaceReport::Cause cause_of(const RaceRecord& record, const Stream* owner) {
  if (!record.earlier_life) return RaceReport::Cause::Unordered;
  return record.work->stream == owner ? RaceReport::Cause::Reused : RaceReport::Cause::Freed;
}

// Checks one access against what the region has seen, drops what it supersedes, and reports at most the latest race.
void check(Finder& all, const RaceAccess& access, const std::shared_ptr<const RaceWork>& work, const RaceClock& now,
           uintptr_t block, RaceMemory::Region& region, std::vector<RaceReport>& found) {
  const RaceRecord* raced = nullptr;
  for (const RaceRecord& record : region.records) {
    if (!(record.writes || access.writes) || record.time <= at(now, record.slot)) continue;
    if (meet(record.extent, access.extent)) raced = &record;
  }
  if (raced != nullptr) {
    found.push_back({cause_of(*raced, region.owner), access.space, raced->work, work, raced->writes, access.writes,
                     block, region.end - block, region.owner, std::max(raced->extent.begin, access.extent.begin),
                     std::min(raced->extent.end, access.extent.end)});
  }
  // Whatever could race with one of these would race with this access too, or comes after all that the host waited for.
  const auto superseded = [&](const RaceRecord& record) {
    if (record.time <= at(all.host, record.slot)) return true;
    return work->stream != nullptr && record.time <= at(now, record.slot) && (access.writes || !record.writes) &&
           covers(access.extent, record.extent);
  };
  region.records.erase(std::remove_if(region.records.begin(), region.records.end(), superseded), region.records.end());
}

struct BlockInUse {
  int space;
  uintptr_t begin, end;
  const Stream* owner;
};

std::vector<BlockInUse> blocks_in_use() {
  std::vector<BlockInUse> blocks;
  if (!devices_opened()) return blocks;
  for (int index = 0; index < device_count(); ++index) {
    Device& target = device(index);
    if (target.lost()) continue;
    for (const SegmentInfo& segment : target.allocator->snapshot()) {
      const Stream* owner = &target.streams->get(segment.stream_id);
      for (const auto& block : segment.blocks) {
        const auto begin = reinterpret_cast<uintptr_t>(block.address);
        if (block.allocated) blocks.push_back({index, begin, begin + block.size, owner});
      }
    }
  }
  return blocks;
}

// Under the mutex.
void forget(Finder& all) {
  all.slots.clear();
  all.clocks.clear();
  all.host_seen.clear();
  all.host.clear();
  all.host_version = 0;
  all.events.clear();
  all.memory.clear();
  all.pending.clear();
}

}  // namespace

// ---------------------------------------------------------------- order

RaceMark race_mark(const Stream& stream) {
  if (!usable()) return nullptr;
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  return std::make_shared<const RaceClock>(all.clocks[static_cast<size_t>(slot_of(all, stream))]);
}

void race_host_reached(const RaceMark& mark) {
  if (mark == nullptr || !usable()) return;
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  join_host(all, *mark);
}

void race_event_recorded(const Event* event, RaceMark mark) {
  if (mark == nullptr || !usable()) return;
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.events[event] = std::move(mark);
}

void race_event_waited(const Event* event, const Stream& stream) {
  if (!usable()) return;
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.events.find(event);
  if (found != all.events.end()) join(all.clocks[static_cast<size_t>(slot_of(all, stream))], *found->second);
}

void race_event_reached(const Event* event) {
  if (!usable()) return;
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.events.find(event);
  if (found != all.events.end()) join_host(all, *found->second);
}

void race_event_gone(const Event* event) noexcept {
  if (!usable()) return;
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.events.erase(event);
}

// ---------------------------------------------------------------- memory

// These run where memory is freed and must not throw: without host memory for its notes the finder misses races.
void race_allocated(int space, const void* address, uint64_t bytes, const Stream* owner) noexcept {
  if (!usable()) return;
  try {
    Finder& all = finder();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto begin = reinterpret_cast<uintptr_t>(address);
    all.memory[space].allocated(begin, begin + bytes, owner);
  } catch (...) {
  }
}

void race_freed(int space, const void* address) noexcept {
  if (!usable()) return;
  try {
    Finder& all = finder();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.memory[space].freed(reinterpret_cast<uintptr_t>(address));
  } catch (...) {
  }
}

void race_returned(int space, const void* address, uint64_t bytes) noexcept {
  if (!usable()) return;
  try {
    Finder& all = finder();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto begin = reinterpret_cast<uintptr_t>(address);
    const std::vector<RaceRecord> records = all.memory[space].take(begin, begin + bytes);
    for (const RaceRecord& record : records) {
      if (record.time <= at(all.host, record.slot)) continue;
      all.pending.push_back({RaceReport::Cause::Returned, space, record.work, nullptr, record.writes, false, begin,
                             bytes, nullptr, record.extent.begin, record.extent.end});
      break;
    }
  } catch (...) {
  }
}

// ---------------------------------------------------------------- accesses

std::vector<RaceReport> race_access(std::shared_ptr<const RaceWork> work, const std::vector<RaceAccess>& accesses) {
  if (!usable()) return {};
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<RaceReport> found = std::exchange(all.pending, {});
  const int slot = work->stream == nullptr ? -1 : slot_of(all, *work->stream);
  const RaceClock& now = slot < 0 ? all.host : start_work(all, slot);
  for (const RaceAccess& access : accesses) {
    if (access.extent.empty()) continue;
    const auto region = all.memory[access.space].find(access.extent);
    check(all, access, work, now, region->first, region->second, found);
    if (slot < 0) continue;
    std::vector<RaceRecord>& records = region->second.records;
    if (records.size() >= kMaxRecords) records.erase(records.begin());
    records.push_back({access.extent, access.writes, false, slot, now[static_cast<size_t>(slot)], work});
  }
  return found;
}

std::vector<RaceReport> race_pending() {
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  return std::exchange(all.pending, {});
}

// ---------------------------------------------------------------- on and off

void race_start() {
  const std::vector<BlockInUse> blocks = blocks_in_use();  // takes the allocators' locks
  Finder& all = finder();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    forget(all);
    for (const BlockInUse& block : blocks)
      all.memory[block.space].allocated(block.begin, block.end, block.owner);
  }
  debug_modes.fetch_or(kRaceCheck);
}

void race_stop() {
  debug_modes.fetch_and(~static_cast<uint32_t>(kRaceCheck));
  Finder& all = finder();
  std::lock_guard<std::mutex> lock(all.mutex);
  forget(all);
}

}  // namespace fl
