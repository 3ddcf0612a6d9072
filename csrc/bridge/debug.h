// What TORCH_FL_SYNC_DEBUG and TORCH_FL_RACE_CHECK do after everything that is queued. The callers test debugging()
// first, hold no lock, and call after the adapter took the work.
#pragma once
#include <string>
#include <vector>

#include "core/debug.h"
#include "core/race.h"

namespace fl::bridge {

// The operator that this thread is in, as PyTorch names it: "aten::mm (in AddmmBackward0)". Empty unless debugging.
std::string current_operator();
// The same, with what runs for it where that says more: "aten::add.Tensor", "aten::var.correction, UniOp var".
std::string operation_name(int uniop, int overload);

// "aten::clone, copy": the operator too while debugging, for what fails at once.
std::string copy_name(const char* what);

// The bytes of one operand of a UniOp's call.
Extent extent_of(const fl_tensor& t);

void debug_launch(Stream& stream, const fl_op_call& call, int uniop, int overload);
// `what`: "copy from the host". Accesses of the host count only where the place is pinned.
void debug_copy(Stream& stream, const char* what, const std::vector<RaceAccess>& accesses);
// The first half of debug_copy(): nothing is waited for. Does nothing unless races are looked for.
void note_accesses(Stream& stream, const char* what, const std::vector<RaceAccess>& accesses);
// The host itself reads and writes, after it has waited for the current stream.
void debug_host(const std::string& what, const std::vector<RaceAccess>& accesses);

RaceAccess device_access(const Stream& stream, const fl_memory& memory, uint64_t bytes, bool writes);
RaceAccess host_access(const void* address, uint64_t bytes, bool writes);  // empty unless pinned

void set_sync_debug(bool on);
void set_race_check(bool on);

// Installed by the Python binding. capture: the calling Python stack, cheaply. report: may throw.
struct RaceSink {
  std::shared_ptr<void> (*capture)();
  void (*report)(const std::vector<RaceReport>& reports);
};
void set_race_sink(RaceSink sink);

}  // namespace fl::bridge
