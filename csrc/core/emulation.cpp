// Tables and capabilities without what a profile does not declare. See emulation.h.
#include "emulation.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "internal.h"

namespace fl {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, Declared> declared;
  std::map<std::pair<const fl_adapter*, Declared::Sync>, const fl_adapter*> tables;  // for ever, as adapters' own
};

Registry& registry() {
  static Registry* all = new Registry;
  return *all;
}

const fl_adapter* without_waits(const fl_adapter& adapter, Declared::Sync sync) {
  auto* table = new fl_adapter{};
  const size_t known = std::min<size_t>(adapter.struct_size, sizeof(fl_adapter));
  std::memcpy(static_cast<void*>(table), &adapter, known);
  table->struct_size = static_cast<uint32_t>(known);
  table->event_create = nullptr;
  table->event_destroy = nullptr;
  table->event_record = nullptr;
  table->event_query = nullptr;
  table->event_synchronize = nullptr;
  table->event_elapsed = nullptr;
  table->stream_wait_event = nullptr;
  if (sync == Declared::Sync::Device) {
    table->stream_query = nullptr;
    table->stream_synchronize = nullptr;
  }
  return table;
}

}  // namespace

void declare(const std::string& path, const std::string& device_name, const Declared& declared) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().declared[{path, device_name}] = declared;
}

Declared declared(const AdapterSpec& spec) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().declared.find({spec.path, spec.device_name});
  return found == registry().declared.end() ? Declared{} : found->second;
}

const fl_adapter& emulated_table(const fl_adapter& adapter, const Declared& declared) {
  if (declared.sync_primitive == Declared::Sync::Event) return adapter;
  if (declared.sync_primitive == Declared::Sync::Device && !FL_HAS(&adapter, device_synchronize)) {
    raise(FL_STATUS_UNIMPLEMENTED, "the profile's sync_primitive is \"device\", and adapter '" +
                                       std::string(adapter.name) + "' has no device_synchronize. Declare \"stream\" or "
                                       "\"event\".");
  }
  std::lock_guard<std::mutex> lock(registry().mutex);
  const fl_adapter*& table = registry().tables[{&adapter, declared.sync_primitive}];
  if (table == nullptr) table = without_waits(adapter, declared.sync_primitive);
  return *table;
}

uint32_t emulated_capabilities(uint32_t capabilities, const Declared& declared, const AdapterSpec& spec) {
  if (!declared.unified_memory) return capabilities;
  if (!*declared.unified_memory) return capabilities & ~static_cast<uint32_t>(FL_CAP_HOST_VISIBLE);
  if ((capabilities & FL_CAP_HOST_VISIBLE) == 0) {
    raise(FL_STATUS_UNIMPLEMENTED, "profile " + spec.profile_path + " declares unified_memory, and the host cannot see the "
                                   "memory of this device. Leave unified_memory out, or set the adapter to a mode in which "
                                   "the host can.");
  }
  return capabilities;
}

}  // namespace fl
