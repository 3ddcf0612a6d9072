// Functions of stream.cpp and copy.cpp behind the adapter's table. All may throw Failure. fl_stream and fl_event are
// pointers to Stream (device.h) and Event.
#pragma once
#include "device.h"

namespace ocl {

struct Event {
  Device* device;
  bool timing;
  cl_event handle = nullptr;  // null: never recorded, which counts as complete
  Stream* stream = nullptr;   // recorded on; may have been destroyed since
};

Stream* create_stream(Device& device, int priority);
void destroy_stream(Stream* stream);
fl_status query_stream(Stream& stream);
void synchronize_stream(Stream& stream);
void synchronize_device(Device& device);
fl_status wait_event(Stream& stream, const Event& event);

void record_event(Event& event, Stream& stream);
fl_status query_event(Event& event);
void synchronize_event(Event& event);
double elapsed_ms(const Event& start, const Event& end);
void destroy_event(Event* event);

// copy.cpp
void copy_to_device(Stream& stream, const fl_memory& dst, const void* src, uint64_t bytes);
void copy_to_host(Stream& stream, void* dst, const fl_memory& src, uint64_t bytes);
void copy_on_device(Stream& stream, const fl_memory& dst, const fl_memory& src, uint64_t bytes);
fl_status copy_to_peer(Stream& stream, Device& to, const fl_memory& dst, const fl_memory& src, uint64_t bytes);
void fill_device(Stream& stream, const fl_memory& dst, uint8_t value, uint64_t bytes);

// Commands on bare places, for this adapter's own memory. Under stream.mutex.
void queue_write(Stream& stream, const Place& dst, const void* src, uint64_t bytes, bool blocking);
void queue_read(Stream& stream, void* dst, const Place& src, uint64_t bytes, bool blocking);
void queue_fill(Stream& stream, const Place& dst, uint8_t value, uint64_t bytes);

// Room in host memory from which small pageable sources are copied asynchronously: a ring of chunks, each free again
// when the queue has passed its marker. Under stream.mutex.
class Staging {
 public:
  static constexpr uint64_t kLargest = 256u << 10;  // beyond it a copy waits for the queue, as with CUDA
  explicit Staging(Stream& stream) : stream_(stream) {}
  ~Staging();
  void* take(uint64_t bytes);

 private:
  static constexpr uint64_t kChunk = 1u << 20;
  static constexpr int kChunks = 4;
  struct Chunk {
    char* address = nullptr;
    cl_event passed = nullptr;
  };
  Stream& stream_;
  Chunk chunks_[kChunks];
  int current_ = 0;
  uint64_t used_ = 0;
};

}  // namespace ocl
