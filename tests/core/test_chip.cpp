// What must hold on any adapter, real asynchrony included: TEST_ADAPTER names one, else it is the in-memory one.
#include <cstring>
#include <thread>

#include "fixture.h"

using namespace fixture;
using namespace fl;

namespace {

AdapterSpec chip_spec() {
  AdapterSpec made = spec();
  if (const char* path = std::getenv("TEST_ADAPTER")) made.path = path;
  if (const char* option = std::getenv("TEST_ADAPTER_OPTION")) {  // "memory=buffer"
    const std::string text = option;
    made.options[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  made.max_devices = 1;
  return made;
}

void require(Stream& stream, fl_status status, const char* what) {
  if (status != FL_STATUS_OK) raise_status(*stream.device->adapter, stream.device->index, status, what);
}

void fill(Stream& stream, const Block& block, uint8_t value) {
  std::lock_guard<std::mutex> lock(stream.mutex);
  require(stream, stream.device->adapter->fill(stream.handle, memory_at(block, block.ptr), value, block.requested),
          "fill");
}

void copy(Stream& stream, const Block& to, const Block& from) {
  std::lock_guard<std::mutex> lock(stream.mutex);
  require(
      stream,
      stream.device->adapter->copy_d2d(stream.handle, memory_at(to, to.ptr), memory_at(from, from.ptr), from.requested),
      "copy_d2d");
}

void read(Stream& stream, void* to, const Block& from) {
  std::lock_guard<std::mutex> lock(stream.mutex);
  require(stream, stream.device->adapter->copy_d2h(stream.handle, to, memory_at(from, from.ptr), from.requested),
          "copy_d2h");
}

bool all_are(const char* bytes, uint64_t count, uint8_t value) {
  for (uint64_t i = 0; i < count; ++i) {
    if (static_cast<uint8_t>(bytes[i]) != value) return false;
  }
  return true;
}

}  // namespace

TEST(chip_round_trip) {
  Device& one = open(chip_spec());
  Stream& stream = default_stream(one.index);
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1000}, 3 * kMiB}) {
    Block* block = one.allocator->allocate(bytes, stream);
    CHECK_EQ(reinterpret_cast<uintptr_t>(block->ptr) % one.alignment, 0u);
    std::vector<char> there(bytes), back(bytes);
    for (uint64_t i = 0; i < bytes; ++i) there[i] = static_cast<char>(i * 31);
    require(stream, one.adapter->copy_h2d(stream.handle, memory_at(*block, block->ptr), there.data(), bytes),
            "copy_h2d");
    read(stream, back.data(), *block);
    stream.synchronize();
    CHECK(there == back);
    one.allocator->free(block);
  }
  one.allocator->empty_cache();
  CHECK_EQ(one.allocator->stats().reserved_bytes.current, 0);
}

// Each thread writes on its own stream and reads on another one that waits for an event; blocks are freed at once, so
// a block that is reused too early shows as a wrong value.
TEST(chip_memory_is_not_reused_too_early) {
  AdapterSpec limited = chip_spec();
  limited.memory_limit_bytes = 96 * kMiB;
  Device& one = open(limited);
  std::atomic<int> wrong{0};
  std::thread threads[3];
  for (int t = 0; t < 3; ++t) {
    threads[t] = std::thread([&, t] {
      Stream& writer = pool_stream(one.index, 0);
      Stream& reader = pool_stream(one.index, -1);
      std::vector<char> host(512 * kKiB);
      for (int i = 0; i < 150; ++i) {
        const uint64_t bytes = 1 + static_cast<uint64_t>(i * 7919 + t) % host.size();
        const auto value = static_cast<uint8_t>(1 + (i * 3 + t * 85) % 250);
        Block* source = one.allocator->allocate(bytes, writer);
        Block* result = one.allocator->allocate(bytes, reader);
        fill(writer, *source, value);
        Event written;
        written.record(writer);
        written.wait(reader);
        copy(reader, *result, *source);
        one.allocator->record_stream(source, reader);
        one.allocator->free(source);
        Block* spoiler = one.allocator->allocate(bytes, writer);  // must not be `source` before it was read
        fill(writer, *spoiler, 0);
        one.allocator->free(spoiler);
        read(reader, host.data(), *result);
        one.allocator->free(result);
        reader.synchronize();
        if (!all_are(host.data(), bytes, value)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  fl::synchronize(one.index);
  one.allocator->empty_cache();
  CHECK_EQ(one.allocator->stats().active.current, 0);
  CHECK_EQ(one.allocator->stats().reserved_bytes.current, 0);
}

TEST(chip_pinned_memory_is_not_reused_too_early) {
  Device& one = open(chip_spec());
  Stream& stream = pool_stream(one.index, 0);
  constexpr uint64_t kBytes = 64 * kKiB;
  std::vector<Block*> blocks;
  for (int i = 0; i < 40; ++i) {
    void* address = nullptr;
    HostBlock* host = host_allocate(kBytes, one.index, &address);
    memset(address, i + 1, kBytes);
    blocks.push_back(one.allocator->allocate(kBytes, stream));
    {
      std::lock_guard<std::mutex> lock(stream.mutex);
      require(stream,
              one.adapter->copy_h2d(stream.handle, memory_at(*blocks.back(), blocks.back()->ptr), address, kBytes),
              "copy_h2d");
    }
    host_record(host, stream);
    host_free(host);
  }
  std::vector<char> back(kBytes);
  for (int i = 0; i < 40; ++i) {
    read(stream, back.data(), *blocks[i]);
    stream.synchronize();
    CHECK(all_are(back.data(), kBytes, static_cast<uint8_t>(i + 1)));
    one.allocator->free(blocks[i]);
  }
  host_empty_cache();
}

TEST(chip_memory_limit_and_out_of_memory) {
  AdapterSpec limited = chip_spec();
  limited.memory_limit_bytes = 16 * kMiB;
  Device& one = open(limited);
  Stream& stream = default_stream(one.index);
  std::vector<Block*> held;
  bool raised = false;
  try {
    for (int i = 0; i < 40; ++i) held.push_back(one.allocator->allocate(1 * kMiB, stream));
  } catch (const Error& error) {
    raised = error.status == FL_STATUS_OUT_OF_MEMORY;
  }
  CHECK(raised);
  CHECK_EQ(held.size(), 16u);
  for (Block* block : held) one.allocator->free(block);
  one.allocator->free(one.allocator->allocate(15 * kMiB, stream));
}
