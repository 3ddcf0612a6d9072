// The caching allocator of one device. A freed block first waits for the next allocation of exactly its size and
// stream: a small one in a list of that size, a large one among the last few that were freed. Small ones are joined with
// their neighbours only when none of the wanted size is left; large ones before any other large block is searched for.
#pragma once
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "allocator.h"
#include "fence.h"
#include "ledger.h"
#include "memory_history.h"
#include "segment.h"

namespace fl {

struct Chunk : Block {
  enum class State : uint8_t { Unused, Allocated, Pending, Quick, Free, Unmapped };
  Chunk* prev;  // neighbours in the segment, by address
  Chunk* next;
  Chunk* link;  // next of the quick list, or of the unused chunks
  State state;
  bool small;                 // of the small pool
  int fences;                 // points in other streams' work that a pending block waits for
  uint64_t freed_at;          // count of large frees when it became free, for garbage collection
  std::vector<Stream*> uses;  // streams besides its own

  bool is_split() const { return prev != nullptr || next != nullptr; }
};

class CachingAllocator final : public Allocator {
 public:
  explicit CachingAllocator(Device& device);
  Block* allocate(uint64_t bytes, Stream& stream) override;
  void free(Block* block) noexcept override;
  void record_stream(Block* block, Stream& stream) override;
  void empty_cache() override;
  AllocatorStats stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;
  std::vector<SegmentInfo> snapshot() override;
  fl_memory locate(void* address) override;

  MemoryInfo memory_info();
  std::string memory_words();  // for errors
  AllocatorSettings settings();
  double fraction();
  void set_fraction(double fraction);

 private:
  static constexpr int kQuickClasses = 2048;
  static constexpr int kRecent = 8;
  struct SizeKey {
    uint64_t size;
  };
  struct BySize {
    using is_transparent = void;
    bool operator()(const Chunk* a, const Chunk* b) const {
      return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
    }
    bool operator()(const Chunk* a, const SizeKey& b) const { return a->size < b.size; }
  };
  using Shelf = std::set<Chunk*, BySize>;
  struct Heap {                            // the free blocks of one stream
    Chunk* quick[kQuickClasses + 1] = {};  // by size / unit
    uint64_t num_quick = 0;                // in all lists
    Chunk* recent[kRecent] = {};           // large ones, oldest first
    int num_recent = 0;
    Shelf small, large;
    Segment *small_range = nullptr, *large_range = nullptr;  // its expandable segments
  };
  struct Pages {
    char* begin;
    uint64_t bytes;
  };

  // allocate
  // Twice in the machine code: with a history, and without one so much as a test of it more than at the entry.
  [[gnu::always_inline]] Block* allocate_block(uint64_t bytes, Stream& stream);
  [[gnu::cold]] Block* allocate_watched(uint64_t bytes, Stream& stream);
  Chunk* allocate_slow(uint64_t size, Stream& stream);
  Chunk* retry_after_release(uint64_t size, Stream& stream, Heap& heap);
  Chunk* take_same(Heap& heap, uint64_t size);
  Chunk* take_fitting(Heap& heap, uint64_t size);
  Chunk* take_from_new_segment(uint64_t segment_size, uint64_t size, Stream& stream, Heap& heap);
  uint64_t segment_bytes(uint64_t size) const;
  void split(Heap& heap, Chunk* chunk, uint64_t size);
  Chunk* cut(Chunk* chunk, uint64_t size);
  Block* hand_out(Chunk* chunk, uint64_t bytes);

  // free
  [[gnu::always_inline]] void free_block(Chunk* chunk, bool watched);
  [[gnu::cold]] void free_watched(Chunk* chunk);
  void make_free(Chunk* chunk);
  void defer(Chunk* chunk);
  void stop_waiting(Chunk* chunk);
  void keep_recent(Heap& heap, Chunk* chunk);
  Chunk* join_and_shelve(Heap& heap, Chunk* chunk);
  Chunk* absorb(Heap& heap, Chunk* left, Chunk* right);
  void flush_quick(Heap& heap);
  void flush_recent(Heap& heap);

  // expandable segments (expandable_segment.cpp)
  static Segment*& range_of(Heap& heap, bool small);
  Chunk* take_from_range(uint64_t size, Stream& stream, Heap& heap);
  Chunk* place_to_grow(const Segment& segment, uint64_t size);
  Chunk* map_from(Heap& heap, Segment& segment, Chunk* chunk, uint64_t size);
  Pages pages_of(const Chunk* chunk);
  void unmap_pages(Heap& heap, Chunk* chunk);
  void release_empty_range(Heap& heap, Segment* segment);

  // release to the device (allocator_release.cpp)
  void poll_fences();
  void drain_fences();
  void release_cached();
  void collect_garbage(uint64_t wanted);
  SegmentInfo describe(const Segment& segment, void* begin);
  std::vector<Chunk*> releasable();
  uint64_t releasable_bytes(const Chunk* chunk);
  void release(const std::vector<Chunk*>& chunks);

  // helpers
  bool is_small(uint64_t size) const;
  Shelf& shelf_of(Heap& heap, const Chunk* chunk);
  Heap& heap_of(const Stream& stream);
  Chunk* new_chunk(Segment* segment, char* begin, uint64_t size);
  void recycle_chunk(Chunk* chunk);
  void note_split_free(const Chunk* chunk);
  void note_split_used(const Chunk* chunk);
  MemoryInfo info_under_lock();
  uint64_t largest_free();
  std::string out_of_memory_text(uint64_t bytes, const Stream& stream);

  Device& device_;
  SpinLock lock_;
  uint64_t unit_;  // block sizes are multiples of it; a power of two
  int unit_shift_;
  uint64_t quick_limit_;                      // largest size with a quick list
  MemoryHistory history_;
  uint64_t oversize_;                         // blocks from here up are counted as such
  std::vector<std::unique_ptr<Heap>> heaps_;  // by stream id
  std::set<Segment*> segments_;
  Ledger ledger_;
  double fraction_;
  SegmentSource source_;
  FenceQueues<Chunk> fences_;
  uint32_t polls_skipped_ = 0;
  uint64_t large_frees_ = 0;
  Chunk* unused_chunks_ = nullptr;
};

}  // namespace fl
