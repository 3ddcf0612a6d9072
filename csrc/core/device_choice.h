// Which of an adapter's devices become logical devices of a chip: reading what it has, in an order that survives
// restarts, then the profile's `match` and the user's TORCH_FL_VISIBLE_DEVICES. Counterpart: device.cpp, which opens
// them.
#pragma once
#include <string>
#include <vector>

#include "device.h"

namespace fl {

struct Found {
  int ordinal;
  fl_device_properties properties;
};

// Opens the SDK. Raises if it has no device.
std::vector<Found> list_devices(const fl_adapter& adapter);
// Leaves the devices that the profile's globs fit. Raises if there are none, with those that exist.
void keep_matching(std::vector<Found>& found, const fl_adapter& adapter, const AdapterSpec& spec,
                   const std::string& chip);
// Leaves the devices that a selector means: a flat index, a chip, chip:index or a uuid. `num_found` counts the devices
// of all adapters so far, hidden ones too: that is what a flat index is.
void keep_visible(std::vector<Found>& found, const AdapterSpec& spec, const std::string& chip, int& num_found);

}  // namespace fl
