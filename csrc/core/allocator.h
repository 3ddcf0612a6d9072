// The stream-aware caching allocator of one device, and the cache of pinned host memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stream.h"

namespace fl {

struct Block {          // one allocation handed out; the bridge keeps the pointer as DataPtr context
  void* ptr;            // what PyTorch sees: a device address, or the reserved range of an opaque buffer
  uint64_t size;        // of the block
  uint64_t requested;   // bytes asked for
  Device* device;
  Stream* stream;       // the stream it was allocated for
  fl_memory base;       // of the segment; see memory_at()
  void* segment;        // allocator's own
};

struct AllocatorStats;  // memory_report.h
struct SegmentInfo;

class Allocator {
 public:
  virtual ~Allocator() = default;
  // bytes > 0. Reuses a cached block of the same stream, else asks the adapter; on failure releases the cache and
  // retries, then raises OUT_OF_MEMORY with asked, allocated, reserved, free, total, largest free block, advice.
  virtual Block* allocate(uint64_t bytes, Stream& stream) = 0;
  virtual void free(Block* block) noexcept = 0;  // safe at process exit and from any thread
  // The block is also used on `stream`: after free() it is reused only when the work queued there by then is done.
  virtual void record_stream(Block* block, Stream& stream) = 0;
  virtual void empty_cache() = 0;
  virtual AllocatorStats stats() = 0;
  virtual void reset_accumulated_stats() = 0;
  virtual void reset_peak_stats() = 0;
  virtual std::vector<SegmentInfo> snapshot() = 0;
  // The place behind an address inside some block, for memory that arrives without its block (DLPack, from_blob): on
  // chips with opaque buffers the address alone says nothing to the adapter. Slow. Raises for what is not ours.
  virtual fl_memory locate(void* address) = 0;
};
Allocator* make_allocator(Device& device);

// The fl_memory of a place inside a block (address on pointer-like chips, else handle + offset).
inline fl_memory memory_at(const Block& block, void* address) {
  if (block.base.handle == nullptr) return fl_memory{address, nullptr, 0};
  const uint64_t offset = static_cast<uint64_t>(static_cast<char*>(address) - static_cast<char*>(block.base.address));
  return fl_memory{address, block.base.handle, block.base.offset + offset};
}

// Pinned host memory, cached by size; a block is reused only after the recorded streams passed.
struct HostBlock;
HostBlock* host_allocate(uint64_t bytes, int device, void** out_address);
void host_free(HostBlock* block) noexcept;
void host_record(HostBlock* block, Stream& stream);
HostBlock* host_find(const void* address) noexcept;  // the block that holds address, or nullptr
bool is_pinned(const void* address) noexcept;
void host_empty_cache();

}  // namespace fl
