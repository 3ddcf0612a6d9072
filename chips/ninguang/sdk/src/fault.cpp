// Parses and counts injected faults. The counterpart is fault.h.
#include "fault.h"

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "error.h"

namespace ng {

std::atomic<bool> faults_armed{false};

namespace {

struct Rule {
  Fault fault;
  std::string api;     // of kCall
  uint64_t nth = 0;    // the passage that fails, from 1; microseconds for kSlowCopy
  bool every = false;  // each nth passage, not only the first
  int device = -1;     // any
  uint64_t passed = 0;
};

struct Rules {
  std::mutex mutex;
  std::vector<Rule> list;
};

Rules& rules() {
  static Rules* const rules = new Rules;  // leaked: used until the process ends
  return *rules;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool parse_number(const std::string& text, uint64_t* number) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return false;
  *number = strtoull(text.c_str(), nullptr, 10);
  return true;
}

bool parse_fault(const std::string& name, Fault* fault) {
  static const struct { const char* name; Fault fault; } kNames[] = {
      {"oom", Fault::kOutOfMemory}, {"launch", Fault::kLaunch}, {"lost", Fault::kLost},
      {"copy", Fault::kCopy},       {"event", Fault::kEvent},   {"stream", Fault::kStream},
      {"sync", Fault::kSync},       {"slow_copy", Fault::kSlowCopy}, {"call", Fault::kCall}};
  for (const auto& known : kNames) {
    if (name == known.name) {
      *fault = known.fault;
      return true;
    }
  }
  return false;
}

// name:N[:every][@device], or call:<api>:N[:every][@device]
bool parse_rule(std::string text, Rule* rule) {
  const size_t at = text.find('@');
  if (at != std::string::npos) {
    uint64_t device;
    if (!parse_number(text.substr(at + 1), &device)) return false;
    rule->device = static_cast<int>(device);
    text.resize(at);
  }
  const std::vector<std::string> parts = split(text, ':');
  size_t next = 1;
  if (!parse_fault(parts[0], &rule->fault)) return false;
  if (rule->fault == Fault::kCall) {
    if (parts.size() < 3) return false;
    rule->api = parts[next++];
  }
  if (next >= parts.size() || !parse_number(parts[next++], &rule->nth)) return false;
  if (rule->nth == 0 && rule->fault != Fault::kSlowCopy) return false;
  if (next < parts.size() && parts[next] == "every") {
    rule->every = true;
    ++next;
  }
  return next == parts.size();
}

}  // namespace

bool fault_due_slow(Fault fault, int device, const char* api) {
  std::lock_guard<std::mutex> lock(rules().mutex);
  bool due = false;
  for (Rule& rule : rules().list) {
    if (rule.fault != fault || (rule.device >= 0 && rule.device != device)) continue;
    if (fault == Fault::kCall && rule.api != api) continue;
    ++rule.passed;
    if (rule.every ? rule.passed % rule.nth == 0 : rule.passed == rule.nth) due = true;
  }
  return due;
}

uint32_t copy_delay_us(int device) {
  if (!faults_armed.load(std::memory_order_relaxed)) return 0;
  std::lock_guard<std::mutex> lock(rules().mutex);
  uint64_t delay = 0;
  for (const Rule& rule : rules().list) {
    if (rule.fault == Fault::kSlowCopy && (rule.device < 0 || rule.device == device)) delay += rule.nth;
  }
  return static_cast<uint32_t>(delay);
}

ngResult arm_faults(const char* text) {
  std::vector<Rule> parsed;
  if (text != nullptr && *text != 0) {
    for (const std::string& part : split(text, ',')) {
      Rule rule;
      if (!parse_rule(part, &rule)) {
        return fail(NG_ERROR_INVALID_VALUE, "fault '%s' is not name:N[:every][@device]; see the SDK's README.md",
                    part.c_str());
      }
      parsed.push_back(rule);
    }
  }
  std::lock_guard<std::mutex> lock(rules().mutex);
  rules().list = std::move(parsed);
  faults_armed = !rules().list.empty();
  return NG_SUCCESS;
}

}  // namespace ng

ngResult ngFaultSet(const char* faults) {
  try {
    return ng::arm_faults(faults);
  } catch (...) {
    return ng::convert_exception("ngFaultSet");
  }
}
