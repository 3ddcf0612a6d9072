// The race finder's view of one address space: blocks, and the accesses that a later one may still race with.
#pragma once
#include <map>

#include "race.h"

namespace fl {

struct RaceRecord {
  Extent extent;
  bool writes;
  bool earlier_life;  // of a block that has been freed since
  int slot;           // the stream's number in clocks
  uint64_t time;      // on that stream
  std::shared_ptr<const RaceWork> work;
};

class RaceMemory {
 public:
  struct Region {
    uintptr_t end;
    const Stream* owner;
    bool foreign = false;  // not from our allocators: as far as it has been touched
    std::vector<RaceRecord> records;
  };
  using Regions = std::map<uintptr_t, Region>;  // by first address; they do not overlap

  void allocated(uintptr_t begin, uintptr_t end, const Stream* owner);
  void freed(uintptr_t begin);
  // Takes the range out and gives the accesses in it.
  std::vector<RaceRecord> take(uintptr_t begin, uintptr_t end);
  // The region that the extent lies in; memory that nobody announced gets one.
  Regions::iterator find(const Extent& extent);

 private:
  Regions regions_;
};

}  // namespace fl
