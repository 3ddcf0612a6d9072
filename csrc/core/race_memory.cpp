// Blocks of one address space and what touched them. See race_memory.h.
#include "race_memory.h"

#include <algorithm>

namespace fl {

std::vector<RaceRecord> RaceMemory::take(uintptr_t begin, uintptr_t end) {
  std::vector<RaceRecord> taken;
  auto at = regions_.upper_bound(begin);
  if (at != regions_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != regions_.end() && at->first < end) {
    const uintptr_t region_begin = at->first;
    Region region = std::move(at->second);
    at = regions_.erase(at);
    // What lies outside the range keeps its accesses; one that straddles belongs to both.
    const auto keep = [&](uintptr_t from, uintptr_t to) {
      if (from >= to) return;
      Region rest{to, region.owner, region.foreign, {}};
      for (const RaceRecord& record : region.records) {
        if (record.extent.begin < to && from < record.extent.end) rest.records.push_back(record);
      }
      regions_.emplace(from, std::move(rest));
    };
    keep(region_begin, std::min(begin, region.end));
    keep(std::max(end, region_begin), region.end);
    for (RaceRecord& record : region.records) {
      if (record.extent.begin < end && begin < record.extent.end) taken.push_back(std::move(record));
    }
  }
  return taken;
}

void RaceMemory::allocated(uintptr_t begin, uintptr_t end, const Stream* owner) {
  Region region{end, owner, false, take(begin, end)};
  for (RaceRecord& record : region.records)
    record.earlier_life = true;
  regions_.emplace(begin, std::move(region));
}

void RaceMemory::freed(uintptr_t begin) {
  const auto found = regions_.find(begin);
  if (found == regions_.end()) return;
  for (RaceRecord& record : found->second.records)
    record.earlier_life = true;
}

RaceMemory::Regions::iterator RaceMemory::find(const Extent& extent) {
  auto at = regions_.upper_bound(extent.begin);
  if (at != regions_.begin() && std::prev(at)->second.end >= extent.end) return std::prev(at);
  // Memory of others (DLPack): one region for all that its accesses reach so far.
  uintptr_t begin = extent.begin, end = extent.end;
  if (at != regions_.begin() && std::prev(at)->second.end > begin) {
    begin = std::prev(at)->first;
    end = std::max(end, std::prev(at)->second.end);
  }
  for (; at != regions_.end() && at->first < end; ++at)
    end = std::max(end, at->second.end);
  Region region{end, nullptr, true, take(begin, end)};
  return regions_.emplace(begin, std::move(region)).first;
}

}  // namespace fl
