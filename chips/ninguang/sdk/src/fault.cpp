// Parses and counts injected faults. The counterpart is fault.h.
#include "fault.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "error.h"

namespace ng {

std::atomic<bool> faults_armed{false};
thread_local uint32_t delayed_stream = 0;

namespace {

struct Rule {
  Fault fault;
  std::string api;     // of kCall
  uint64_t nth = 0;    // the passage that fails, from 1; microseconds of delays
  uint64_t seed = 0;   // of kDelay
  uint32_t works = 0;  // of delays: bits of Work
  bool every = false;  // each nth passage, not only the first
  int device = -1;     // any
  uint64_t passed = 0;

  bool concerns(int index) const { return device < 0 || device == index; }
  bool delays(Work work, int index) const { return (works & static_cast<uint32_t>(work)) != 0 && concerns(index); }
};

struct Rules {
  std::mutex mutex;
  std::vector<Rule> list;
  uint64_t generation = 0;  // counts armings
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

bool parse_fault(const std::string& name, Rule* rule) {
  static const struct { const char* name; Fault fault; Work works; } kNames[] = {
      {"oom", Fault::kOutOfMemory, {}},
      {"launch", Fault::kLaunch, {}},
      {"lost", Fault::kLost, {}},
      {"copy", Fault::kCopy, {}},
      {"event", Fault::kEvent, {}},
      {"stream", Fault::kStream, {}},
      {"sync", Fault::kSync, {}},
      {"early_copy", Fault::kEarlyCopy, {}},
      {"call", Fault::kCall, {}},
      {"slow_copy", Fault::kSlowCopy, Work::kCopy},
      {"delay", Fault::kDelay, Work::kAny},
      {"delay_kernel", Fault::kDelay, Work::kKernel},
      {"delay_copy", Fault::kDelay, Work::kCopy},
      {"delay_fill", Fault::kDelay, Work::kFill}};
  for (const auto& known : kNames) {
    if (name != known.name) continue;
    rule->fault = known.fault;
    rule->works = static_cast<uint32_t>(known.works);
    return true;
  }
  return false;
}

// name:N[:every][@device], call:<api>:N[:every][@device] or delay…:MICROSECONDS[:SEED][@device]
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
  if (!parse_fault(parts[0], rule)) return false;
  if (rule->fault == Fault::kCall) {
    if (parts.size() < 3) return false;
    rule->api = parts[next++];
  }
  if (next >= parts.size() || !parse_number(parts[next++], &rule->nth)) return false;
  if (rule->nth == 0 && rule->works == 0) return false;
  if (rule->fault == Fault::kDelay) {
    if (next < parts.size() && !parse_number(parts[next++], &rule->seed)) return false;
  } else if (next < parts.size() && parts[next] == "every") {
    rule->every = true;
    ++next;
  }
  return next == parts.size();
}

// Splitmix64: numbers that look random, the same for the same arguments.
uint64_t scramble(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t z = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Each seed gives each stream a pace (no delay, short ones, long ones) and each command a part of it, so that for some
// seeds one stream is far ahead of the other, however many commands the two have.
uint64_t drawn_delay(const Rule& rule, uint64_t passage) {
  if (rule.fault == Fault::kSlowCopy) return rule.nth;
  const uint64_t pace = scramble(rule.seed, delayed_stream, 0) % 3;
  const uint64_t most = pace == 0 ? 0 : pace == 1 ? rule.nth / 8 : rule.nth;
  return scramble(rule.seed, delayed_stream, passage) % (most + 1);
}

}  // namespace

bool fault_due_slow(Fault fault, int device, const char* api) {
  std::lock_guard<std::mutex> lock(rules().mutex);
  bool due = false;
  for (Rule& rule : rules().list) {
    if (rule.fault != fault || !rule.concerns(device)) continue;
    if (fault == Fault::kCall && rule.api != api) continue;
    ++rule.passed;
    if (rule.every ? rule.passed % rule.nth == 0 : rule.passed == rule.nth) due = true;
  }
  return due;
}

void delay_slow(Work work, int device) {
  thread_local uint64_t passage = 0, generation = 0;
  uint64_t microseconds = 0;
  {
    std::lock_guard<std::mutex> lock(rules().mutex);
    if (generation != rules().generation) passage = 0;
    generation = rules().generation;
    ++passage;
    for (const Rule& rule : rules().list) {
      if (rule.delays(work, device)) microseconds += drawn_delay(rule, passage);
    }
  }
  if (microseconds != 0) usleep(static_cast<useconds_t>(microseconds));
}

bool copies_are_delayed_slow(int device) {
  std::lock_guard<std::mutex> lock(rules().mutex);
  for (const Rule& rule : rules().list) {
    if (rule.delays(Work::kCopy, device) && rule.nth != 0) return true;
  }
  return false;
}

ngResult arm_faults(const char* text) {
  std::vector<Rule> parsed;
  if (text != nullptr && *text != 0) {
    for (const std::string& part : split(text, ',')) {
      Rule rule;
      if (!parse_rule(part, &rule)) {
        return fail(NG_ERROR_INVALID_VALUE, "fault '%s' is not name:N[:every][@device] or delay:N[:seed][@device]; see the SDK's README.md",
                    part.c_str());
      }
      parsed.push_back(rule);
    }
  }
  std::lock_guard<std::mutex> lock(rules().mutex);
  rules().list = std::move(parsed);
  ++rules().generation;
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
