// Which of an adapter's devices become logical devices of a chip; see device_choice.h.
#include "device_choice.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>

#include "internal.h"

namespace fl {
namespace {

// An output struct with room behind it, for an adapter newer than this host that writes a longer one.
template <class T>
struct Roomy {
  T value{};
  char room[256] = {};
  Roomy() { value.struct_size = sizeof(T); }
};

std::string copy_text(const char* text) { return text != nullptr ? text : ""; }

// "gpu-2" before "gpu-10": runs of digits compare as numbers.
bool natural_less(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      size_t end_a = i, end_b = j;
      while (end_a < a.size() && digit(a[end_a]))
        ++end_a;
      while (end_b < b.size() && digit(b[end_b]))
        ++end_b;
      while (i + 1 < end_a && a[i] == '0')
        ++i;
      while (j + 1 < end_b && b[j] == '0')
        ++j;
      if (end_a - i != end_b - j) return end_a - i < end_b - j;
      const int order = a.compare(i, end_a - i, b, j, end_b - j);
      if (order != 0) return order < 0;
      i = end_a;
      j = end_b;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

Found read_properties(const fl_adapter& adapter, int ordinal) {
  Roomy<fl_device_properties> out;
  const fl_status status = adapter.device_properties(ordinal, &out.value);
  const std::string what = "device_properties(" + std::to_string(ordinal) + ")";
  if (status != FL_STATUS_OK) raise_status(adapter, -1, status, what.c_str());
  Found found{ordinal, out.value};
  constexpr uint32_t kLeast = offsetof(fl_device_properties, total_memory) + sizeof(uint64_t);
  if (found.properties.struct_size < kLeast) {
    raise(FL_STATUS_INVALID_ARGUMENT, what + " of adapter '" + adapter.name + "' filled struct_size " +
                                          std::to_string(found.properties.struct_size) + ", expected at least " +
                                          std::to_string(kLeast) + ". Set it to sizeof(fl_device_properties).");
  }
  if (found.properties.struct_size < sizeof(fl_device_properties)) {
    const size_t known = found.properties.struct_size;
    std::memset(reinterpret_cast<char*>(&found.properties) + known, 0, sizeof(fl_device_properties) - known);
  }
  return found;
}

std::string describe(const Found& one) {
  return "'" + copy_text(one.properties.name) + "' (arch " + copy_text(one.properties.arch) + ", uuid " +
         copy_text(one.properties.uuid) + ")";
}

bool fits(const Found& one, const std::map<std::string, std::string>& match) {
  for (const auto& [field, glob] : match) {
    const char* value = field == "name"   ? one.properties.name
                        : field == "arch" ? one.properties.arch
                        : field == "uuid" ? one.properties.uuid
                                          : nullptr;
    if (fnmatch(glob.c_str(), value != nullptr ? value : "", FNM_CASEFOLD) != 0) return false;
  }
  return true;
}

}  // namespace

// The adapter's devices in the order that survives restarts.
std::vector<Found> list_devices(const fl_adapter& adapter) {
  int32_t count = 0;
  const fl_status status = adapter.device_count(&count);
  watch_process();  // the SDK is open now
  if (status != FL_STATUS_OK) raise_status(adapter, -1, status, "device_count");
  if (count <= 0) {
    raise(FL_STATUS_UNAVAILABLE, std::string("adapter '") + adapter.name +
                                     "' found no device. Check that the chip is plugged in and its driver is loaded.");
  }
  std::vector<Found> all;
  for (int ordinal = 0; ordinal < count; ++ordinal)
    all.push_back(read_properties(adapter, ordinal));
  std::stable_sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
    return natural_less(copy_text(a.properties.uuid), copy_text(b.properties.uuid));
  });
  return all;
}

void keep_matching(std::vector<Found>& found, const fl_adapter& adapter, const AdapterSpec& spec,
                   const std::string& chip) {
  if (spec.match.empty()) return;
  std::string wanted, present;
  for (const auto& [field, glob] : spec.match) {
    if (field != "name" && field != "arch" && field != "uuid") {
      raise(FL_STATUS_INVALID_ARGUMENT,
            "match of chip " + chip + " names '" + field + "', expected name, arch or uuid.");
    }
    wanted += (wanted.empty() ? "" : ", ") + field + " " + glob;
  }
  for (const Found& one : found)
    present += (present.empty() ? "" : "; ") + describe(one);
  found.erase(std::remove_if(found.begin(), found.end(), [&](const Found& one) { return !fits(one, spec.match); }),
              found.end());
  if (!found.empty()) return;
  raise(FL_STATUS_NOT_FOUND, "no device of adapter '" + std::string(adapter.name) + "' is chip " + chip + ": `match`" +
                                 (spec.profile_path.empty() ? "" : " of profile " + spec.profile_path) + " wants " +
                                 wanted + ", and there are: " + present + ".");
}

// Leaves the devices that a selector means: a flat index, a chip, chip:index or a uuid.
void keep_visible(std::vector<Found>& found, const AdapterSpec& spec, const std::string& chip, int& num_found) {
  const int first = num_found;
  num_found += static_cast<int>(found.size());
  if (spec.visible.empty()) return;
  std::vector<Found> kept;
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string names[] = {std::to_string(first + static_cast<int>(i)), chip, chip + ":" + std::to_string(i),
                                 copy_text(found[i].properties.uuid)};
    const bool wanted = std::any_of(std::begin(names), std::end(names), [&](const std::string& name) {
      return std::find(spec.visible.begin(), spec.visible.end(), name) != spec.visible.end();
    });
    if (wanted) kept.push_back(found[i]);
  }
  found = std::move(kept);
}

}  // namespace fl
