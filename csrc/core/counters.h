// Calls by device, ATen overload and tier. Adding is one relaxed atomic add; names are known only to readers.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace fl {

enum class Tier : uint8_t { Native, Decompose, Library, Cpu };
constexpr int kNumTiers = 4;
constexpr int kMaxOverloads = 4096;
constexpr int kMaxDevices = 64;

// The number of an overload ("aten::add.Tensor"), the same for equal names. Takes a lock: call it once, keep it.
int overload_id(const char* name);
std::string overload_name(int id);

struct CounterTable { std::atomic<uint64_t> calls[kMaxOverloads][kNumTiers]; std::atomic<uint64_t> bytes[kNumTiers]; };
extern std::atomic<CounterTable*> counter_tables[kMaxDevices];
CounterTable* make_counter_table(int device);

inline void count(int device, int overload, Tier tier) {
  CounterTable* table = counter_tables[device].load(std::memory_order_acquire);
  if (__builtin_expect(table == nullptr, 0)) table = make_counter_table(device);
  table->calls[overload][static_cast<int>(tier)].fetch_add(1, std::memory_order_relaxed);
}
inline void count_bytes(int device, Tier tier, uint64_t bytes) {  // bytes moved between host and device for that tier
  CounterTable* table = counter_tables[device].load(std::memory_order_acquire);
  if (__builtin_expect(table == nullptr, 0)) table = make_counter_table(device);
  table->bytes[static_cast<int>(tier)].fetch_add(bytes, std::memory_order_relaxed);
}

struct Count { int device; std::string overload; Tier tier; uint64_t calls; };
std::vector<Count> counts();
std::vector<std::vector<uint64_t>> count_bytes_by_tier();  // [device][tier]
void reset_counts();

}  // namespace fl
