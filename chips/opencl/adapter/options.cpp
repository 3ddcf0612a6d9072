// The adapter's options: `configure` of the table. Keys and values are told in the chip's README.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "error.h"
#include "runtime.h"

namespace ocl {
namespace {

Options& set_options() {
  static auto* set = new Options;
  return *set;
}

// The values of an enumeration by their place in `words`.
template <class Choice>
void choose(Choice& choice, const std::string& key, const std::string& value, const std::vector<const char*>& words) {
  const auto word = std::find(words.begin(), words.end(), value);
  if (word != words.end()) {
    choice = static_cast<Choice>(word - words.begin());
    return;
  }
  std::string known;
  for (const char* one : words) known += (known.empty() ? "" : ", ") + std::string(one);
  fail(FL_STATUS_INVALID_ARGUMENT, "option " + key + "=" + value + ": it is one of " + known);
}

uint64_t megabytes(const std::string& key, const std::string& value) {
  char* end = nullptr;
  const unsigned long long number = std::strtoull(value.c_str(), &end, 10);
  if (value.empty() || value[0] == '-' || *end != '\0' || number > UINT32_MAX)
    fail(FL_STATUS_INVALID_ARGUMENT, "option " + key + "=" + value + ": it is a number of MiB");
  return static_cast<uint64_t>(number) << 20;
}

bool apply(Options& to, const std::string& key, const std::string& value) {
  if (key == "cache_dir")
    to.cache_dir = value;
  else if (key == "cache_max_mb")
    to.cache_max_bytes = megabytes(key, value);
  else if (key == "library")
    to.library = value;
  else if (key == "memory")
    choose(to.memory, key, value, {"auto", "usm", "svm", "buffer"});
  else if (key == "device_type")
    choose(to.device_type, key, value, {"auto", "cpu", "gpu"});
  else if (key == "probe")
    choose(to.probe, key, value, {"auto", "always", "never"});
  else
    return false;
  return true;
}

}  // namespace

const Options& options() { return set_options(); }

fl_status configure(const char* key, const char* value) noexcept {
  return guarded([&] {
    static std::mutex mutex;
    static auto* given = new std::map<std::string, std::string>;
    if (key == nullptr || value == nullptr) fail(FL_STATUS_INVALID_ARGUMENT, "an option's key or value is NULL");
    std::lock_guard<std::mutex> lock(mutex);
    Options changed = options();
    if (!apply(changed, key, value)) fail(FL_STATUS_UNIMPLEMENTED, "there is no option " + std::string(key));
    const auto before = given->find(key);
    if (before != given->end() && before->second == value) return;
    if (devices_open()) {
      fail(FL_STATUS_FAILED_PRECONDITION,
           "option " + std::string(key) + "=" + value + " comes after the devices were opened");
    }
    set_options() = changed;
    (*given)[key] = value;
  });
}

}  // namespace ocl
