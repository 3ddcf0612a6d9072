// Copies between devices; see transfer.h.
#include "transfer.h"

#include <algorithm>

#include "allocator.h"
#include "internal.h"
#include "make_room.h"

namespace fl {
namespace {

// Large enough that starting a copy costs little beside it, small enough that a chunk read back is still in the
// processor's cache when it goes up.
constexpr uint64_t kChunk = uint64_t{1} << 20;
constexpr int kSlots = 3;  // one coming down, one going up, one between

fl_memory at(const fl_memory& place, uint64_t offset) {
  fl_memory moved = place;
  moved.address = static_cast<char*>(place.address) + offset;
  if (place.handle != nullptr) moved.offset += offset;
  return moved;
}

// False: the two do not reach each other, and nothing was queued.
bool copy_directly(Stream& source, const fl_memory& from, Stream& sink, const fl_memory& to, uint64_t bytes) {
  Device &near = *source.device, &far = *sink.device;
  if (near.adapter != far.adapter || !near.has(FL_CAP_PEER) || !FL_HAS(near.adapter, copy_peer)) return false;
  Event ready, done;
  ready.record(sink);
  ready.wait(source);
  const fl_status status = with_room(near, [&] {
    std::lock_guard<std::mutex> lock(source.mutex);
    return near.adapter->copy_peer(source.handle, far.ordinal, to, near.ordinal, from, bytes);
  });
  if (status == FL_STATUS_UNIMPLEMENTED) return false;
  if (status != FL_STATUS_OK) raise_status_of_two(near, far, status, "copy to another device");
  done.record(source);
  done.wait(sink);
  return true;
}

// One piece of the pinned memory that chunks pass through.
class Slot {
 public:
  Slot(Stream& source, Stream& sink) : source_(source), sink_(sink) {}
  // Whatever still uses the memory, after a failure too, is waited for before it is reused.
  ~Slot() {
    if (block_ == nullptr) return;
    try {
      if (coming_down_) host_record(block_, source_);
      if (going_up_) host_record(block_, sink_);
    } catch (...) {
      return;  // no memory to remember it: it is never reused
    }
    host_free(block_);
  }
  Slot(const Slot&) = delete;

  void download(const fl_memory& from, uint64_t bytes, uint64_t capacity) {
    // Pinned for the source, so that reading back runs beside the host; else for the sink.
    Device& device = FL_HAS(source_.device->adapter, host_alloc) ? *source_.device : *sink_.device;
    if (block_ == nullptr) {
      block_ = host_allocate(capacity, device.index, &address_);
      // What the sink did not pin itself, it has read when copy_h2d returns.
      queues_uploads_ = FL_HAS(device.adapter, host_alloc) && device.adapter == sink_.device->adapter;
    }
    if (going_up_) up_.synchronize();
    going_up_ = false;
    coming_down_ = true;
    bytes_ = bytes;
    queue(source_, "copy to the host", [&](const fl_adapter& adapter) {
      return adapter.copy_d2h(source_.handle, address_, from, bytes);
    });
    down_.record(source_);
  }

  void upload(const fl_memory& to) {
    down_.synchronize();
    coming_down_ = false;
    going_up_ = queues_uploads_;
    queue(sink_, "copy from the host", [&](const fl_adapter& adapter) {
      return adapter.copy_h2d(sink_.handle, to, address_, bytes_);
    });
    if (going_up_) up_.record(sink_);
  }

 private:
  template <class Copy>
  static void queue(Stream& stream, const char* what, const Copy& copy) {
    check_usable(*stream.device);
    const fl_status status = with_room(*stream.device, [&] {
      std::lock_guard<std::mutex> lock(stream.mutex);
      return copy(*stream.device->adapter);
    });
    if (status != FL_STATUS_OK) raise_status(*stream.device->adapter, stream.device->index, status, what);
  }

  Stream &source_, &sink_;
  HostBlock* block_ = nullptr;
  void* address_ = nullptr;
  uint64_t bytes_ = 0;
  bool coming_down_ = false, going_up_ = false, queues_uploads_ = false;
  Event down_, up_;
};

void copy_staged(Stream& source, const fl_memory& from, Stream& sink, const fl_memory& to, uint64_t bytes) {
  Slot slots[kSlots] = {{source, sink}, {source, sink}, {source, sink}};
  const uint64_t chunk = std::min(bytes, kChunk), count = (bytes + chunk - 1) / chunk;
  const auto size = [&](uint64_t i) { return std::min(chunk, bytes - i * chunk); };
  const auto download = [&](uint64_t i) { slots[i % kSlots].download(at(from, i * chunk), size(i), chunk); };
  for (uint64_t i = 0; i < std::min<uint64_t>(count, kSlots - 1); ++i)
    download(i);
  for (uint64_t i = 0; i < count; ++i) {
    if (i + kSlots - 1 < count) download(i + kSlots - 1);
    slots[i % kSlots].upload(at(to, i * chunk));
  }
}

}  // namespace

void copy_between(Stream& source, const fl_memory& from, Stream& sink, const fl_memory& to, uint64_t bytes) {
  if (bytes == 0) return;
  check_usable(*source.device);
  check_usable(*sink.device);
  if (!copy_directly(source, from, sink, to, bytes)) copy_staged(source, from, sink, to, bytes);
}

void raise_status_of_two(Device& device, Device& other, fl_status status, const char* what) {
  const auto answers_lost = [](const Device& one) {
    uint64_t free = 0, total = 0;
    return one.adapter->memory_info(one.ordinal, &free, &total) == FL_STATUS_DEVICE_LOST;
  };
  if (status == FL_STATUS_DEVICE_LOST && &device != &other && !answers_lost(device) && answers_lost(other)) {
    raise_status(*other.adapter, other.index, status, what);
  }
  raise_status(*device.adapter, device.index, status, what);
}

}  // namespace fl
