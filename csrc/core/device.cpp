// The list of devices: runs Discover on first use, opens adapters, and answers which device is meant and current.
#include "device.h"

#include <algorithm>
#include <mutex>

#include "allocator.h"
#include "counters.h"
#include "device_choice.h"
#include "emulation.h"
#include "internal.h"
#include "stream_pool.h"

namespace fl {
namespace {

struct OpenedSpec {
  std::string path, chip;  // of the adapter, resolved; the profile's name
  std::vector<int> indices;
  bool chose = false;             // its profile has `match`
  std::vector<int> ordinals;      // the adapter's devices that are this chip, those not visible too
};

// What a library's configure() was told, and by which chip's profile.
struct GivenOption {
  std::string value, chip;
};

// Guarded by `mutex`, which is never held while Discover runs: Discover takes Python's GIL, and a thread that holds the
// GIL may be waiting here.
struct Registry {
  std::mutex mutex;
  Discover discover;
  std::vector<OpenedSpec> specs;
  std::vector<AdapterFailure> failures;
  std::map<int, std::string> lost;  // the vendor's words by device
  std::map<std::string, std::map<std::string, GivenOption>> options;  // by adapter and key
  int num_found = 0;                // devices so far, before any was hidden: what a flat index in `visible` counts
};

Registry& registry() {
  static Registry* all = new Registry;  // never destroyed: used until the very end of the process
  return *all;
}

std::mutex& lost_mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

// Read without a lock. A device is published before the count that includes it.
std::atomic<Device*> devices[kMaxDevices];
std::atomic<int> num_devices{0};
std::atomic<bool> opened{false};

thread_local bool in_discover = false;
thread_local int current = 0;

std::string copy_text(const char* text) { return text != nullptr ? text : ""; }

void check_spec(const AdapterSpec& spec) {
  if (!(spec.memory_fraction > 0.0 && spec.memory_fraction <= 1.0)) {
    raise(FL_STATUS_INVALID_ARGUMENT,
          "memory_fraction is " + std::to_string(spec.memory_fraction) + ", expected more than 0 and at most 1.");
  }
}

uint64_t memory_of(const fl_adapter& adapter, const Found& found, const AdapterSpec& spec) {
  uint64_t total = found.properties.total_memory;
  if (total == 0) {
    uint64_t free = 0;
    const fl_status status = adapter.memory_info(found.ordinal, &free, &total);
    if (status != FL_STATUS_OK) raise_status(adapter, -1, status, "memory_info");
  }
  if (spec.memory_limit_bytes != 0) total = std::min(total, spec.memory_limit_bytes);
  return spec.memory_fraction < 1.0 ? static_cast<uint64_t>(static_cast<double>(total) * spec.memory_fraction) : total;
}

uint32_t power_of_two_at_least(uint64_t value) {
  uint32_t power = 1;
  while (power < value && power < (1u << 30))
    power <<= 1;
  return power;
}

std::unique_ptr<Device> make_device(const fl_adapter& adapter, const Found& found,
                                    std::shared_ptr<const AdapterSpec> spec, int index) {
  if ((found.properties.capabilities & FL_CAP_IN_PLACE) == 0) {
    raise(FL_STATUS_UNIMPLEMENTED,
          "device " + std::to_string(found.ordinal) + " of adapter '" + adapter.name +
              "' does not declare FL_CAP_IN_PLACE: immutable-buffer chips are not supported by "
              "this version. Let its kernels write the buffers that they are given.");
  }
  auto device = std::make_unique<Device>(uniop_count());
  device->index = index;
  device->ordinal = found.ordinal;
  const Declared says = declared(*spec);
  device->adapter = &emulated_table(adapter, says);
  device->capabilities = emulated_capabilities(found.properties.capabilities, says, *spec);
  device->total_memory = memory_of(adapter, found, *spec);
  device->alignment = power_of_two_at_least(std::max<uint64_t>(found.properties.alignment, spec->alignment));
  device->max_allocation = found.properties.max_allocation;
  device->multi_processor_count = found.properties.multi_processor_count;
  device->chip = spec->device_name.empty() ? adapter.name : spec->device_name;
  device->name = found.properties.name != nullptr ? found.properties.name : device->chip;
  device->arch = copy_text(found.properties.arch);
  device->uuid = copy_text(found.properties.uuid);
  device->spec = std::move(spec);
  device->streams = new StreamPool(*device);
  device->allocator = make_allocator(*device);
  return device;
}

[[noreturn]] void refuse_option(const fl_adapter& adapter, const AdapterSpec& spec, const std::string& option,
                                fl_status status, const std::string& reason) {
  const std::string profile = spec.profile_path.empty() ? "" : " of profile " + spec.profile_path;
  raise(status, "option " + option + profile + " is refused by adapter '" + adapter.name + "': " + reason);
}

// Tells the library one option. False: it does not know the key.
bool give_option(const fl_adapter& adapter, const std::string& path, const std::string& chip, const AdapterSpec& spec,
                 const std::string& key, const std::string& value) {
  if (!FL_HAS(&adapter, configure)) return false;
  auto& given = registry().options[path];
  const auto before = given.find(key);
  if (before != given.end() && before->second.value == value) return true;
  const fl_status status = adapter.configure(key.c_str(), value.c_str());
  if (status == FL_STATUS_UNIMPLEMENTED) return false;
  if (status != FL_STATUS_OK) {
    std::string reason = adapter_words(adapter, status);
    if (status == FL_STATUS_FAILED_PRECONDITION) {
      reason += ". Its devices are open already";
      if (before != given.end()) {
        reason += " with " + key + "=" + before->second.value + ", for chip " + before->second.chip;
      }
      reason += ": one process has one value for all chips of a library. Use the chips in two processes, or make their "
                "profiles agree.";
    }
    refuse_option(adapter, spec, key + "=" + value, status, reason);
  }
  given[key] = GivenOption{value, chip};
  return true;
}

// Before device_count(): the host's own options, which an adapter need not know, and the profile's, which it must.
void configure(const fl_adapter& adapter, const std::string& path, const std::string& chip, const AdapterSpec& spec) {
  if (spec.cache_dir) {
    const std::string folder = spec.cache_dir->empty() ? "" : *spec.cache_dir + "/" + adapter.name;
    give_option(adapter, path, chip, spec, "cache_dir", folder);
    if (spec.cache_max_mb != 0) {
      give_option(adapter, path, chip, spec, "cache_max_mb", std::to_string(spec.cache_max_mb));
    }
  }
  for (const auto& [key, value] : spec.options) {
    if (give_option(adapter, path, chip, spec, key, value)) continue;
    refuse_option(adapter, spec, key, FL_STATUS_INVALID_ARGUMENT,
                  FL_HAS(&adapter, configure) ? "it has no option of this name. Correct `options` in the profile."
                                              : "it has no options at all. Remove `options` from the profile.");
  }
}

// Leaves out what is another chip's already. Two profiles without `match` are two views of the same devices, as when a
// chip emulates another; where one of them chooses, a device belongs to the first that chose it.
void leave_out_taken(std::vector<Found>& found, const fl_adapter& adapter, const std::string& path,
                     const AdapterSpec& spec, const std::string& chip) {
  std::string owners;
  for (const OpenedSpec& known : registry().specs) {
    if (known.path != path || !(known.chose || !spec.match.empty())) continue;
    const size_t before = found.size();
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const Found& one) {
                                 return std::find(known.ordinals.begin(), known.ordinals.end(), one.ordinal) !=
                                        known.ordinals.end();
                               }),
                found.end());
    if (found.size() != before) owners += (owners.empty() ? "" : ", ") + known.chip;
  }
  if (!found.empty()) return;
  raise(FL_STATUS_NOT_FOUND, "no device of adapter '" + std::string(adapter.name) + "' is left for chip " + chip +
                                 ": all that it could have are devices of " + owners + " already.");
}

// Under registry().mutex and PlainErrors. All devices of the spec or, if one cannot be opened, none.
std::vector<int> open_spec(const AdapterSpec& given) {
  check_spec(given);
  const fl_adapter& adapter = *open_adapter(given.path);
  const std::string path = real_path(given.path);
  const std::string chip = given.device_name.empty() ? adapter.name : given.device_name;
  for (const OpenedSpec& known : registry().specs) {
    if (known.path == path && known.chip == chip) return known.indices;
  }
  configure(adapter, path, chip, given);
  std::vector<Found> found = list_devices(adapter);
  keep_matching(found, adapter, given, chip);
  leave_out_taken(found, adapter, path, given, chip);
  OpenedSpec opened_spec{path, chip, {}, !given.match.empty(), {}};
  for (const Found& one : found)
    opened_spec.ordinals.push_back(one.ordinal);
  if (given.visible.empty() && given.max_devices >= 0 && found.size() > static_cast<size_t>(given.max_devices)) {
    opened_spec.ordinals.resize(static_cast<size_t>(given.max_devices));
  }
  keep_visible(found, given, chip, registry().num_found);
  if (given.max_devices >= 0 && found.size() > static_cast<size_t>(given.max_devices)) {
    found.resize(static_cast<size_t>(given.max_devices));
  }
  const int first = num_devices.load();
  if (first + static_cast<int>(found.size()) > kMaxDevices) {
    raise(FL_STATUS_OUT_OF_RANGE, "adapter '" + std::string(adapter.name) + "' has " + std::to_string(found.size()) +
                                      " devices, but only " + std::to_string(kMaxDevices - first) +
                                      " more fit: one process "
                                      "can hold " +
                                      std::to_string(kMaxDevices) + ". Lower `count` in the configuration.");
  }
  const auto spec = std::make_shared<const AdapterSpec>(given);
  std::vector<std::unique_ptr<Device>> made;
  for (const Found& one : found) {
    opened_spec.indices.push_back(first + static_cast<int>(made.size()));
    made.push_back(make_device(adapter, one, spec, opened_spec.indices.back()));
  }
  for (auto& device : made) {
    const int index = device->index;
    devices[index].store(device.release(), std::memory_order_release);
  }
  num_devices.store(first + static_cast<int>(found.size()), std::memory_order_release);
  registry().specs.push_back(opened_spec);
  return opened_spec.indices;
}

// Several threads may run Discover at once; the first one to come back opens the devices.
void ensure_opened() noexcept {
  if (opened.load(std::memory_order_acquire) || in_discover || in_bad_fork()) return;
  Registry& all = registry();
  Discover discover;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    if (opened.load(std::memory_order_relaxed) || !all.discover) return;
    discover = all.discover;
  }
  std::vector<AdapterSpec> specs;
  std::string failure;
  in_discover = true;
  try {
    specs = discover();
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "discovery failed for an unknown reason";
  }
  in_discover = false;
  std::lock_guard<std::mutex> lock(all.mutex);
  if (opened.load(std::memory_order_relaxed)) return;
  if (!failure.empty()) all.failures.push_back({"", failure});
  const PlainErrors plain;
  for (const AdapterSpec& spec : specs) {
    try {
      open_spec(spec);
    } catch (const std::exception& error) {
      all.failures.push_back({spec.path, error.what()});
    }
  }
  opened.store(true, std::memory_order_release);
}

[[noreturn]] void raise_no_device(int index) {
  const int count = num_devices.load();
  int num_found = 0;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    num_found = registry().num_found;
  }
  std::string text = "fl:" + std::to_string(index) + " does not exist: ";
  if (count == 0) {
    text += "there are no fl devices";
    const std::vector<AdapterFailure> failures = adapter_failures();
    if (!failures.empty()) text += " (" + failures.front().reason + ")";
    if (num_found != 0) {
      text += ": TORCH_FL_VISIBLE_DEVICES shows none of the " + std::to_string(num_found) + " that were found.";
    } else {
      text += ". `flagos-torch-fl diagnose` says why.";
    }
  } else {
    text += count == 1 ? "there is 1 fl device (" : "there are " + std::to_string(count) + " fl devices (";
    for (int i = 0; i < count; ++i)
      text += (i == 0 ? "fl:" : ", fl:") + std::to_string(i);
    text += ")";
  }
  raise(FL_STATUS_NOT_FOUND, text);
}

}  // namespace

// ---------------------------------------------------------------- what internal.h declares

Device* find_device(int index) noexcept {
  if (index < 0 || index >= num_devices.load(std::memory_order_acquire)) return nullptr;
  return devices[index].load(std::memory_order_acquire);
}

std::string device_label(const Device& device) {
  return "fl:" + std::to_string(device.index) + " (" + device.chip + ")";
}

void remember_lost(int index, const std::string& words) {
  Device* device = find_device(index);
  if (device == nullptr) return;
  std::lock_guard<std::mutex> lock(lost_mutex());
  registry().lost.emplace(index, words);  // the first words stay
  device->mark_lost();
}

void raise_unusable(const Device& device) {
  if (in_bad_fork()) raise_forked();
  std::string words;
  {
    std::lock_guard<std::mutex> lock(lost_mutex());
    words = registry().lost[device.index];
  }
  raise(FL_STATUS_DEVICE_LOST,
        device_label(device) + " is lost" + (words.empty() ? "" : " (" + words + ")") +
            ": nothing more can run on it in this process. Check the chip with its vendor's tools "
            "and start the process again.");
}

// ---------------------------------------------------------------- public

void set_discover(Discover discover) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.discover = std::move(discover);
}

std::vector<int> add_adapter(const AdapterSpec& spec) {
  if (in_bad_fork()) raise_forked();
  ensure_opened();  // configured devices keep the first indices
  std::string reason;
  fl_status status = FL_STATUS_OK;
  try {
    const PlainErrors plain;
    std::lock_guard<std::mutex> lock(registry().mutex);
    return open_spec(spec);
  } catch (const Error& error) {
    status = error.status;
    reason = error.what();
  }
  raise(status, reason);
}

std::vector<AdapterFailure> adapter_failures() {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.failures;
}

int device_count() noexcept {
  ensure_opened();
  return num_devices.load(std::memory_order_acquire);
}

bool devices_opened() noexcept { return opened.load() || num_devices.load() != 0; }

Device& device(int index) {
  if (__builtin_expect(forked_child.load(std::memory_order_relaxed), 0)) raise_forked();
  Device* found = find_device(index);
  if (__builtin_expect(found != nullptr, 1)) return *found;
  ensure_opened();
  found = find_device(index);
  if (found == nullptr) raise_no_device(index);
  return *found;
}

int current_device() noexcept { return current; }

void set_current_device(int index) { current = device(index).index; }

int exchange_device(int index) {
  const int before = current;
  if (index != before) set_current_device(index);
  return before;
}

void synchronize(int index) {
  Device& target = device(index);
  check_usable(target);
  std::exception_ptr first;
  for (Stream* stream : target.streams->all()) {
    try {
      stream->synchronize();
    } catch (...) {
      if (!first) first = std::current_exception();  // the others are still waited for
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace fl
