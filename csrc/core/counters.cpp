// The tables behind count(): one per device, made on first use and never freed, and the numbering of overload names.
#include "counters.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace fl {

std::atomic<CounterTable*> counter_tables[kMaxDevices];

namespace {

struct Names {
  std::mutex mutex;
  std::unordered_map<std::string, int> ids;
  std::vector<std::string> names;
};

Names& names() {
  static Names* all = new Names;  // never destroyed: counted until the very end of the process
  return *all;
}

constexpr const char* kOverflowName = "(more overloads than can be counted)";

}  // namespace

int overload_id(const char* name) {
  Names& all = names();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.ids.find(name);
  if (found != all.ids.end()) return found->second;
  // The last number is shared by all that come too late.
  if (all.names.size() >= kMaxOverloads - 1) {
    if (all.names.size() < kMaxOverloads) all.names.emplace_back(kOverflowName);
    return kMaxOverloads - 1;
  }
  const int id = static_cast<int>(all.names.size());
  all.names.emplace_back(name);
  all.ids.emplace(name, id);
  return id;
}

std::string overload_name(int id) {
  Names& all = names();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (id < 0 || id >= static_cast<int>(all.names.size())) return "";
  return all.names[id];
}

CounterTable* make_counter_table(int device) {
  std::unique_ptr<CounterTable> made(new CounterTable());  // () zeroes
  CounterTable* expected = nullptr;
  if (counter_tables[device].compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) {
    return made.release();
  }
  return expected;
}

std::vector<Count> counts() {
  std::vector<Count> all;
  for (int device = 0; device < kMaxDevices; ++device) {
    CounterTable* table = counter_tables[device].load(std::memory_order_acquire);
    if (table == nullptr) continue;
    for (int id = 0; id < kMaxOverloads; ++id) {
      for (int tier = 0; tier < kNumTiers; ++tier) {
        const uint64_t calls = table->calls[id][tier].load(std::memory_order_relaxed);
        if (calls != 0) all.push_back({device, overload_name(id), static_cast<Tier>(tier), calls});
      }
    }
  }
  return all;
}

std::vector<std::vector<uint64_t>> count_bytes_by_tier() {
  std::vector<std::vector<uint64_t>> all;
  for (int device = 0; device < kMaxDevices; ++device) {
    CounterTable* table = counter_tables[device].load(std::memory_order_acquire);
    if (table == nullptr) continue;
    all.resize(device + 1, std::vector<uint64_t>(kNumTiers, 0));
    for (int tier = 0; tier < kNumTiers; ++tier)
      all[device][tier] = table->bytes[tier].load(std::memory_order_relaxed);
  }
  return all;
}

void reset_counts() {
  for (auto& slot : counter_tables) {
    CounterTable* table = slot.load(std::memory_order_acquire);
    if (table == nullptr) continue;
    for (auto& overload : table->calls) {
      for (auto& calls : overload)
        calls.store(0, std::memory_order_relaxed);
    }
    for (auto& bytes : table->bytes)
      bytes.store(0, std::memory_order_relaxed);
  }
}

}  // namespace fl
