// Copies and fills in all three memory modes; see stream.h.
#include <cstring>

#include "error.h"
#include "memory.h"
#include "stream.h"

namespace ocl {
namespace {

void started(Stream& stream) {
  ++stream.work;
  stream.unflushed = 0;
  check(cl().Flush(stream.queue), "clFlush");
}

void queue_copy(Stream& stream, const Place& dst, const Place& src, uint64_t bytes) {
  cl_int code;
  switch (stream.device->mode) {
    case MemoryMode::Usm:
      code = stream.device->platform->usm.EnqueueMemcpy(stream.queue, CL_FALSE, dst.pointer, src.pointer, bytes, 0,
                                                        nullptr, nullptr);
      break;
    case MemoryMode::Svm:
      code = cl().EnqueueSVMMemcpy(stream.queue, CL_FALSE, dst.pointer, src.pointer, bytes, 0, nullptr, nullptr);
      break;
    default:
      code = cl().EnqueueCopyBuffer(stream.queue, src.buffer, dst.buffer, src.offset, dst.offset, bytes, 0, nullptr,
                                    nullptr);
  }
  check(code, "copy on the device");
  started(stream);
}

}  // namespace

void queue_write(Stream& stream, const Place& dst, const void* src, uint64_t bytes, bool blocking) {
  const cl_bool wait = blocking ? CL_TRUE : CL_FALSE;
  cl_int code;
  switch (stream.device->mode) {
    case MemoryMode::Usm:
      code =
          stream.device->platform->usm.EnqueueMemcpy(stream.queue, wait, dst.pointer, src, bytes, 0, nullptr, nullptr);
      break;
    case MemoryMode::Svm:
      code = cl().EnqueueSVMMemcpy(stream.queue, wait, dst.pointer, src, bytes, 0, nullptr, nullptr);
      break;
    default:
      code = cl().EnqueueWriteBuffer(stream.queue, dst.buffer, wait, dst.offset, bytes, src, 0, nullptr, nullptr);
  }
  check(code, "copy from the host");
  started(stream);
}

void queue_read(Stream& stream, void* dst, const Place& src, uint64_t bytes, bool blocking) {
  const cl_bool wait = blocking ? CL_TRUE : CL_FALSE;
  cl_int code;
  switch (stream.device->mode) {
    case MemoryMode::Usm:
      code =
          stream.device->platform->usm.EnqueueMemcpy(stream.queue, wait, dst, src.pointer, bytes, 0, nullptr, nullptr);
      break;
    case MemoryMode::Svm:
      code = cl().EnqueueSVMMemcpy(stream.queue, wait, dst, src.pointer, bytes, 0, nullptr, nullptr);
      break;
    default:
      code = cl().EnqueueReadBuffer(stream.queue, src.buffer, wait, src.offset, bytes, dst, 0, nullptr, nullptr);
  }
  check(code, "copy to the host");
  started(stream);
}

void queue_fill(Stream& stream, const Place& dst, uint8_t value, uint64_t bytes) {
  // The wider the pattern, the faster; its size must divide both the place and the number of bytes.
  unsigned char pattern[16];
  std::memset(pattern, value, sizeof(pattern));
  const uint64_t at = dst.buffer != nullptr ? dst.offset : reinterpret_cast<uintptr_t>(dst.pointer);
  const uint64_t low = (at | bytes | sizeof(pattern));
  const size_t width = static_cast<size_t>(low & (~low + 1));
  cl_int code;
  switch (stream.device->mode) {
    case MemoryMode::Usm:
      code = stream.device->platform->usm.EnqueueMemFill(stream.queue, dst.pointer, pattern, width, bytes, 0, nullptr,
                                                         nullptr);
      break;
    case MemoryMode::Svm:
      code = cl().EnqueueSVMMemFill(stream.queue, dst.pointer, pattern, width, bytes, 0, nullptr, nullptr);
      break;
    default:
      code = cl().EnqueueFillBuffer(stream.queue, dst.buffer, pattern, width, dst.offset, bytes, 0, nullptr, nullptr);
  }
  check(code, "fill");
  started(stream);
}

// ---------------------------------------------------------------- Staging

Staging::~Staging() {
  for (Chunk& chunk : chunks_) {
    if (chunk.passed != nullptr) cl().ReleaseEvent(chunk.passed);
    if (chunk.address != nullptr) host_release(*stream_.device, chunk.address);
  }
}

void* Staging::take(uint64_t bytes) {
  constexpr uint64_t kAlignment = 64;
  if (used_ + bytes > kChunk) {
    check(cl().EnqueueMarkerWithWaitList(stream_.queue, 0, nullptr, &chunks_[current_].passed), "marker");
    check(cl().Flush(stream_.queue), "clFlush");
    current_ = (current_ + 1) % kChunks;
    used_ = 0;
  }
  Chunk& chunk = chunks_[current_];
  if (chunk.passed != nullptr) {
    const cl_int code = cl().WaitForEvents(1, &chunk.passed);
    cl().ReleaseEvent(chunk.passed);
    chunk.passed = nullptr;
    check(code, "earlier copies from the host");
  }
  if (chunk.address == nullptr) chunk.address = static_cast<char*>(host_allocate(*stream_.device, kChunk));
  char* const place = chunk.address + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

// ---------------------------------------------------------------- for the table

void copy_to_device(Stream& stream, const fl_memory& dst, const void* src, uint64_t bytes) {
  if (bytes == 0) return;
  const Place place = stream.device->memory->checked(dst, bytes, "copy_h2d to");
  std::lock_guard<std::mutex> lock(stream.mutex);
  if (is_pinned(src, bytes)) return queue_write(stream, place, src, bytes, false);
  if (bytes > Staging::kLargest) return queue_write(stream, place, src, bytes, true);
  if (!stream.staging) stream.staging = std::make_unique<Staging>(stream);
  void* staged = stream.staging->take(bytes);
  std::memcpy(staged, src, bytes);
  queue_write(stream, place, staged, bytes, false);
}

void copy_to_host(Stream& stream, void* dst, const fl_memory& src, uint64_t bytes) {
  if (bytes == 0) return;
  const Place place = stream.device->memory->checked(src, bytes, "copy_d2h from");
  std::lock_guard<std::mutex> lock(stream.mutex);
  if (is_pinned(dst, bytes)) return queue_read(stream, dst, place, bytes, false);
  if (!stream.device->fine_grained) return queue_read(stream, dst, place, bytes, true);
  check(cl().Finish(stream.queue), "work before copy_d2h");
  std::memcpy(dst, place.pointer, bytes);  // saves waking the device's threads
}

void copy_on_device(Stream& stream, const fl_memory& dst, const fl_memory& src, uint64_t bytes) {
  if (bytes == 0) return;
  const Place to = stream.device->memory->checked(dst, bytes, "copy_d2d to");
  const Place from = stream.device->memory->checked(src, bytes, "copy_d2d from");
  if (to.pointer == from.pointer && to.buffer == from.buffer && to.offset == from.offset) return;
  std::lock_guard<std::mutex> lock(stream.mutex);
  queue_copy(stream, to, from, bytes);
}

fl_status copy_to_peer(Stream& stream, Device& to, const fl_memory& dst, const fl_memory& src, uint64_t bytes) {
  Device& from = *stream.device;
  const Place target = to.memory->checked(dst, bytes, "copy_peer to");
  const Place source = from.memory->checked(src, bytes, "copy_peer from");
  if (to.context() != from.context() || to.mode != from.mode) return FL_STATUS_UNIMPLEMENTED;  // the host copies
  if (bytes == 0) return FL_STATUS_OK;
  std::lock_guard<std::mutex> lock(stream.mutex);
  queue_copy(stream, target, source, bytes);
  return FL_STATUS_OK;
}

void fill_device(Stream& stream, const fl_memory& dst, uint8_t value, uint64_t bytes) {
  if (bytes == 0) return;
  const Place place = stream.device->memory->checked(dst, bytes, "fill of");
  std::lock_guard<std::mutex> lock(stream.mutex);
  queue_fill(stream, place, value, bytes);
}

}  // namespace ocl
