// A profile that says less than the adapter has, as when one chip's library emulates another chip: the host then sees a
// table without what the profile does not declare. Constraints of kernels are joined in kernel_table.cpp.
#pragma once
#include "device.h"

namespace fl {

// What a profile declares of the chip as a whole. Kept apart from AdapterSpec, by adapter and chip, until its device opens.
struct Declared {
  enum class Sync { Event, Stream, Device };
  Sync sync_primitive = Sync::Event;   // the finest thing that the chip can wait for
  std::optional<bool> unified_memory;  // the host may read and write device memory
};
void declare(const std::string& path, const std::string& device_name, const Declared& declared);
Declared declared(const AdapterSpec& spec);

// The adapter's table, or one for ever without what is not declared: events, and with them the waits between streams.
const fl_adapter& emulated_table(const fl_adapter& adapter, const Declared& declared);
// FL_CAP_*, or raises where the profile declares what the device does not have.
uint32_t emulated_capabilities(uint32_t capabilities, const Declared& declared, const AdapterSpec& spec);

}  // namespace fl
