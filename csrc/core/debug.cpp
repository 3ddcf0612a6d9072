// Modes that check every operation. See debug.h.
#include "debug.h"

#include "internal.h"

namespace fl {

std::atomic<uint32_t> debug_modes{0};

void synchronize_after(Stream& stream, const std::string& op) {
  fl_status status = FL_STATUS_OK;
  std::string reason;
  try {
    const PlainErrors plain;
    stream.synchronize();
    return;
  } catch (const Error& error) {
    status = error.status;
    reason = error.what();
  }
  raise(status, op + " failed: " + reason);
}

}  // namespace fl
