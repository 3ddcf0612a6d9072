// Copies that are not tensors' own.
#pragma once
#include "core/stream.h"

namespace fl::bridge {

// Queues a copy between two places of the stream's device. `what` names it in errors: "copy between storages".
void copy_within(Stream& stream, const fl_memory& to, const fl_memory& from, uint64_t bytes, const char* what);

}  // namespace fl::bridge
