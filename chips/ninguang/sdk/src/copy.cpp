// Copies and fills. Pageable host memory has been read, or written, when the call returns; memory of ngMallocHost is
// reached later, in the stream's order. A small copy on an idle stream is done by the calling thread.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "parallel.h"
#include "stream.h"

namespace ng {
namespace {

constexpr uint64_t kInlineBytes = 256;        // travels inside the command
constexpr uint64_t kStagedBytes = 64 << 10;   // up to here the caller copies; above it waits for the worker
constexpr double kNanosecondsPerByte = 0.05;  // of one core

void copy_bytes(void* dst, const void* src, uint64_t bytes) {
  auto* to = static_cast<char*>(dst);
  auto* from = static_cast<const char*>(src);
  if (bytes <= kStagedBytes || (to < from + bytes && from < to + bytes)) {
    memmove(dst, src, bytes);
    return;
  }
  constexpr int64_t line = 4096;
  const int64_t total = static_cast<int64_t>(bytes);
  parallel_for((total + line - 1) / line, kNanosecondsPerByte * line, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * line, last = std::min(end * line, total);
    memcpy(to + first, from + first, static_cast<size_t>(last - first));
  });
}

void fill_bytes(void* dst, uint8_t value, uint64_t bytes) {
  constexpr int64_t line = 4096;
  const int64_t total = static_cast<int64_t>(bytes);
  parallel_for((total + line - 1) / line, kNanosecondsPerByte * line, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * line, last = std::min(end * line, total);
    memset(static_cast<char*>(dst) + first, value, static_cast<size_t>(last - first));
  });
}

// The range lies in the device's memory.
ngResult check_range(const char* api, const Device& device, const void* address, uint64_t bytes) {
  const bool inside = device.memory.contains(address, bytes) &&
                      (!runtime().check_bounds || device.memory.allocated(address, bytes));
  if (inside) return NG_SUCCESS;
  return fail(NG_ERROR_ILLEGAL_ADDRESS, "%s: %llu bytes at %p lie outside the memory of device %d", api,
              static_cast<unsigned long long>(bytes), address, device.index);
}

// The range is the host's: a device address that the host cannot touch would crash the copy.
ngResult check_host(const char* api, const void* address, uint64_t bytes) {
  if (address == nullptr) return null_argument(api);
  if (runtime().unified) return NG_SUCCESS;
  for (const auto& device : runtime().devices) {
    if (device->memory.contains(address, 1)) {
      return fail(NG_ERROR_ILLEGAL_ADDRESS, "%s: %p (%llu bytes) is memory of device %d, not of the host", api,
                  address, static_cast<unsigned long long>(bytes), device->index);
    }
  }
  return NG_SUCCESS;
}

ngResult injected_copy_fault(const char* api, const Device& device) {
  if (!fault_due(Fault::kCopy, device.index)) return NG_SUCCESS;
  return fail(NG_ERROR_INTERNAL, "%s: injected fault", api);
}

bool is_pinned(const void* address, uint64_t bytes) { return runtime().host_memory.contains(address, bytes); }

void queue_copy(Stream& stream, void* dst, const void* src, uint64_t bytes) {
  stream.queue([=](Device& device) {
    delay(Work::kCopy, device.index);
    copy_bytes(dst, src, bytes);
    return NG_SUCCESS;
  });
}

bool copy_if_idle(Stream& stream, void* dst, const void* src, uint64_t bytes) {
  if (bytes > kStagedBytes || copies_are_delayed(stream.device().index)) return false;
  return stream.run_if_idle([&] { memcpy(dst, src, bytes); });
}

void upload(Stream& stream, void* dst, const void* src, uint64_t bytes) {
  if (copy_if_idle(stream, dst, src, bytes)) return;
  if (is_pinned(src, bytes)) return queue_copy(stream, dst, src, bytes);
  if (bytes <= kInlineBytes) {
    struct Inline {
      void* dst;
      uint64_t bytes;
      unsigned char data[kInlineBytes];
    } packed;
    packed.dst = dst;
    packed.bytes = bytes;
    memcpy(packed.data, src, bytes);
    stream.queue([packed](Device& device) {
      delay(Work::kCopy, device.index);
      memcpy(packed.dst, packed.data, packed.bytes);
      return NG_SUCCESS;
    });
  } else if (bytes <= kStagedBytes) {
    std::shared_ptr<char> staged(new char[bytes], std::default_delete<char[]>());
    memcpy(staged.get(), src, bytes);
    stream.queue([=](Device& device) {
      delay(Work::kCopy, device.index);
      memcpy(dst, staged.get(), bytes);
      return NG_SUCCESS;
    });
  } else {
    queue_copy(stream, dst, src, bytes);
    stream.wait(stream.queued());
  }
}

void download(Stream& stream, void* dst, const void* src, uint64_t bytes) {
  if (copy_if_idle(stream, dst, src, bytes)) return;
  queue_copy(stream, dst, src, bytes);
  if (is_pinned(dst, bytes) || fault_due(Fault::kEarlyCopy, stream.device().index)) return;
  stream.wait(stream.queued());
}

}  // namespace
}  // namespace ng

using namespace ng;

ngResult ngMemcpyHtoDAsync(ngStream handle, void* dst, const void* src, uint64_t bytes) {
  const char* const api = "ngMemcpyHtoDAsync";
  return call_on(api, handle, [&](Stream& stream) {
    if (bytes == 0) return NG_SUCCESS;
    ngResult result = check_range(api, stream.device(), dst, bytes);
    if (result == NG_SUCCESS) result = check_host(api, src, bytes);
    if (result == NG_SUCCESS) result = injected_copy_fault(api, stream.device());
    if (result != NG_SUCCESS) return result;
    upload(stream, stream.device().memory.to_chip(dst), src, bytes);
    return NG_SUCCESS;
  });
}

ngResult ngMemcpyDtoHAsync(ngStream handle, void* dst, const void* src, uint64_t bytes) {
  const char* const api = "ngMemcpyDtoHAsync";
  return call_on(api, handle, [&](Stream& stream) {
    if (bytes == 0) return NG_SUCCESS;
    ngResult result = check_range(api, stream.device(), src, bytes);
    if (result == NG_SUCCESS) result = check_host(api, dst, bytes);
    if (result == NG_SUCCESS) result = injected_copy_fault(api, stream.device());
    if (result != NG_SUCCESS) return result;
    download(stream, dst, stream.device().memory.to_chip(src), bytes);
    return stream.device().lost ? refuse_lost(stream.device()) : NG_SUCCESS;
  });
}

ngResult ngMemcpyPeerAsync(ngStream handle, int32_t dst_device, void* dst, int32_t src_device, const void* src,
                           uint64_t bytes) {
  const char* const api = "ngMemcpyPeerAsync";
  return call_on(api, handle, [&](Stream& stream) {
    if (bytes == 0) return NG_SUCCESS;
    Device *const to = find_device(dst_device), *const from = find_device(src_device);
    if (to == nullptr || from == nullptr) return NG_ERROR_INVALID_VALUE;
    if (to->lost) return refuse_lost(*to);
    if (from->lost) return refuse_lost(*from);
    ngResult result = check_range(api, *to, dst, bytes);
    if (result == NG_SUCCESS) result = check_range(api, *from, src, bytes);
    if (result == NG_SUCCESS) result = injected_copy_fault(api, stream.device());
    if (result == NG_SUCCESS) queue_copy(stream, to->memory.to_chip(dst), from->memory.to_chip(src), bytes);
    return result;
  });
}

ngResult ngMemcpyDtoDAsync(ngStream handle, void* dst, const void* src, uint64_t bytes) {
  if (handle == nullptr) return null_argument("ngMemcpyDtoDAsync");
  const int device = from_handle(handle)->device().index;
  return ngMemcpyPeerAsync(handle, device, dst, device, src, bytes);
}

ngResult ngMemsetAsync(ngStream handle, void* dst, uint8_t value, uint64_t bytes) {
  const char* const api = "ngMemsetAsync";
  return call_on(api, handle, [&](Stream& stream) {
    if (bytes == 0) return NG_SUCCESS;
    const ngResult result = check_range(api, stream.device(), dst, bytes);
    if (result != NG_SUCCESS) return result;
    void* const place = stream.device().memory.to_chip(dst);
    stream.queue([=](Device& device) {
      delay(Work::kFill, device.index);
      fill_bytes(place, value, bytes);
      return NG_SUCCESS;
    });
    return NG_SUCCESS;
  });
}
