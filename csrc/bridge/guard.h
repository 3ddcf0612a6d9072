// c10::Stream <-> core Stream.
#pragma once
#include <c10/core/Stream.h>

#include "core/stream.h"

namespace fl::bridge {

inline Stream& core_stream(const c10::Stream& stream) { return stream_from_id(stream.device_index(), stream.id()); }
inline c10::Stream torch_stream(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(stream.device->index)), stream.id);
}

}  // namespace fl::bridge
