// A vendor's call may find no memory for what its library allocates itself (a workspace, code, a queue), while the
// caching allocator holds memory that nobody uses. Such calls are made through with_room().
#pragma once
#include <string>

#include "device.h"

namespace fl {

// Gives the cached memory of the device back. Raises what fails. Not under a stream's mutex.
void make_room(Device& device);

// For the text of an OUT_OF_MEMORY error: what is allocated, reserved and free, and what others hold. Empty if the
// caller, or somebody for longer than a moment, holds the allocator's lock.
std::string memory_words(Device& device);

// Makes the call and, if it answers OUT_OF_MEMORY, once more after room was made. `call` locks what it needs itself.
template <class Call>
inline fl_status with_room(Device& device, const Call& call) {
  const fl_status status = call();
  if (__builtin_expect(status != FL_STATUS_OUT_OF_MEMORY, 1)) return status;
  make_room(device);
  return call();
}

}  // namespace fl
