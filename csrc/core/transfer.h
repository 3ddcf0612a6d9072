// Copies between two devices, of one adapter or of two: directly where the devices reach each other, else in chunks
// through pinned memory of the host, one chunk going up while the next one comes down.
#pragma once
#include "stream.h"

namespace fl {

// After the earlier work of both streams and before their later work: the source may be freed or overwritten, and the
// target may have been in use, as with any operation on the two streams. A direct copy is queued and not waited for; a
// staged one has been read from the source when this returns, and only its last chunks may still be on their way.
// Raises for a lost device, naming the one that is.
void copy_between(Stream& source, const fl_memory& from, Stream& sink, const fl_memory& to, uint64_t bytes);

// raise_status() for a call that two devices of one adapter took part in: of the two, the lost one is told and
// remembered. `device` is the one whose stream the call was queued on.
[[noreturn]] void raise_status_of_two(Device& device, Device& other, fl_status status, const char* what);

}  // namespace fl
