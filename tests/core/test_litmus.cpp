// The patterns of tests/litmus on the core alone: streams, events, memory of the device and pinned memory, from several
// threads, on the reference chip's runtime and adapter that were compiled as this program was. Under ThreadSanitizer the
// chip's own reads and writes of device memory are watched too, so an order that is missing is reported as a race even
// where the value happens to be right. Queued work is held up at random.
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "fixture.h"

using namespace fixture;
using namespace fl;

namespace {

constexpr int64_t kCount = 2048;  // floats
constexpr uint64_t kBytes = kCount * sizeof(float);

// Two devices of the chip, and its delays.
struct Chip {
  explicit Chip(uint64_t limit = 0) {
    AdapterSpec made = spec();
    made.path = TEST_LITMUS_CHIP;
    made.memory_limit_bytes = limit;
    made.max_devices = 2;
    const std::vector<int> indices = add_adapter(made);
    one = &device(indices.at(0));
    two = &device(indices.at(1));
    void* library = dlopen(TEST_LITMUS_CHIP, RTLD_NOW | RTLD_LOCAL);
    set_faults = reinterpret_cast<int (*)(const char*)>(dlsym(library, "ngFaultSet"));
    CHECK(set_faults != nullptr);
    delay(1);
  }
  ~Chip() { set_faults(nullptr); }
  void delay(int seed) const { CHECK_EQ(set_faults(("delay:400:" + std::to_string(seed)).c_str()), 0); }

  Device *one, *two;
  int (*set_faults)(const char*);
};

void require(const Stream& stream, fl_status status, const char* what) {
  if (status != FL_STATUS_OK) raise_status(*stream.device->adapter, stream.device->index, status, what);
}

fl_memory place(const Block* block) { return memory_at(*block, block->ptr); }

Block* take(Stream& stream, uint64_t bytes = kBytes) { return stream.device->allocator->allocate(bytes, stream); }
void give(Block* block) { block->device->allocator->free(block); }

void upload(Stream& stream, const Block* to, const void* from) {
  std::lock_guard<std::mutex> lock(stream.mutex);
  require(stream, stream.device->adapter->copy_h2d(stream.handle, place(to), from, kBytes), "copy_h2d");
}

void download(Stream& stream, void* to, const Block* from) {
  std::lock_guard<std::mutex> lock(stream.mutex);
  require(stream, stream.device->adapter->copy_d2h(stream.handle, to, place(from), kBytes), "copy_d2h");
}

// As the bridge does it: both streams wait for each other around the transfer.
void transfer(Stream& source, Stream& target, const Block* to, const Block* from) {
  Event ready, done;
  ready.record(target);
  ready.wait(source);
  {
    std::lock_guard<std::mutex> lock(source.mutex);
    require(source,
            source.device->adapter->copy_peer(source.handle, target.device->ordinal, place(to), source.device->ordinal,
                                              place(from), kBytes),
            "copy_peer");
  }
  done.record(source);
  done.wait(target);
}

// out = a + b. Launches take no lock.
void add(Stream& stream, const Block* out, const Block* a, const Block* b) {
  static const int64_t sizes[] = {kCount}, strides[] = {1};
  fl_kernel kernel{};
  const fl_dtype type{FL_FLOAT, 32, 1};
  require(stream, stream.device->adapter->kernel_find(stream.device->ordinal, "test_add", type, type, &kernel), "find");
  const auto operand = [&](const Block* block) {
    fl_tensor tensor{};
    tensor.memory = place(block);
    tensor.sizes = sizes;
    tensor.strides = strides;
    tensor.ndim = 1;
    tensor.dtype = type;
    tensor.alignment = 64;
    return tensor;
  };
  const fl_tensor inputs[] = {operand(a), operand(b)};
  fl_tensor output = operand(out);
  fl_op_call call{};
  call.struct_size = sizeof call;
  call.device = stream.device->ordinal;
  call.stream = stream.handle;
  call.kernel_data = kernel.data;
  call.inputs = inputs;
  call.outputs = &output;
  call.num_inputs = 2;
  call.num_outputs = 1;
  require(stream, kernel.fn(&call), "test_add");
}

using Values = std::array<float, kCount>;

// A pinned buffer for one use: free as soon as the copies that were recorded are done.
struct Pinned {
  explicit Pinned(const Device& on) : block(host_allocate(kBytes, on.index, &address)) {}
  ~Pinned() { host_free(block); }
  Pinned(const Pinned&) = delete;
  float* values() const { return static_cast<float*>(address); }
  void fill(float value) const { std::fill(values(), values() + kCount, value); }
  bool holds(float value) const {
    return std::all_of(values(), values() + kCount, [value](float v) { return v == value; });
  }
  void* address = nullptr;
  HostBlock* block;
};

// A block of the stream that will hold `value`, by way of pinned memory that is free again at once.
Block* filled(Stream& stream, float value) {
  const Pinned from(*stream.device);
  from.fill(value);
  Block* block = take(stream);
  upload(stream, block, from.address);
  host_record(from.block, stream);
  return block;
}

// What the block holds, read by its stream.
bool holds(Stream& stream, const Block* block, float value) {
  const Pinned to(*stream.device);
  download(stream, to.address, block);
  host_record(to.block, stream);
  Event done;
  done.record(stream);
  done.synchronize();
  return to.holds(value);
}

// Runs body(thread, round) in several threads; it returns whether what it read was right.
void in_threads(const Chip& chip, int threads, int rounds, const std::function<bool(int, int)>& body) {
  std::atomic<int> wrong{0};
  for (int seed = 1; seed <= 4; ++seed) {
    chip.delay(seed);
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; ++thread) {
      all.emplace_back([&, thread] {
        for (int round = 0; round < rounds; ++round) {
          if (!body(thread, round)) ++wrong;
        }
      });
    }
    for (std::thread& thread : all) thread.join();
  }
  CHECK_EQ(wrong.load(), 0);
  for (Device* device : {chip.one, chip.two}) synchronize(device->index);
}

float value_of(int thread, int round) { return static_cast<float>(1 + thread * 100 + round); }

}  // namespace

TEST(litmus_consume_after_event) {
  const Chip chip;
  in_threads(chip, 3, 12, [&](int thread, int round) {
    Stream &producer = pool_stream(chip.one->index, 0), &consumer = pool_stream(chip.one->index, -1);
    const float value = value_of(thread, round);
    Block* x = filled(producer, value);
    Event done;
    done.record(producer);
    done.wait(consumer);
    Block* y = take(consumer);
    add(consumer, y, x, x);
    const bool right = holds(consumer, y, 2 * value);
    give(y);
    give(x);
    return right;
  });
}

TEST(litmus_freed_while_another_stream_reads) {
  const Chip chip;
  in_threads(chip, 3, 12, [&](int thread, int round) {
    Stream &owner = pool_stream(chip.one->index, 0), &reader = pool_stream(chip.one->index, -1);
    const float value = value_of(thread, round);
    Block* x = filled(owner, value);
    Event written;
    written.record(owner);
    written.wait(reader);
    Block *y = take(reader), *z = take(reader);
    add(reader, y, x, x);
    add(reader, z, x, y);
    chip.one->allocator->record_stream(x, reader);
    give(x);
    for (int i = 0; i < 3; ++i) give(filled(owner, -1));  // must not lie where x lies
    const bool right = holds(reader, z, 3 * value);
    give(y);
    give(z);
    return right;
  });
}

// All threads use the same two streams.
TEST(litmus_streams_shared_by_threads) {
  const Chip chip;
  Stream &first = pool_stream(chip.one->index, 0), &second = pool_stream(chip.one->index, 0);
  in_threads(chip, 3, 10, [&](int thread, int round) {
    set_current_stream(thread % 2 == 0 ? first : second);
    Stream &mine = current_stream(chip.one->index), &other = &mine == &first ? second : first;
    const float value = value_of(thread, round);
    Block* x = filled(mine, value);
    Event done;
    done.record(mine);
    done.wait(other);
    Block* y = take(other);
    add(other, y, x, x);
    chip.one->allocator->record_stream(x, other);
    give(x);
    const bool right = holds(other, y, 2 * value) && &current_stream(chip.one->index) == &mine;
    give(y);
    return right;
  });
}

TEST(litmus_pinned_buffers_in_a_ring) {
  const Chip chip;
  in_threads(chip, 2, 4, [&](int thread, int round) {
    Stream& stream = pool_stream(chip.one->index, 0);
    const Pinned buffers[] = {Pinned(*chip.one), Pinned(*chip.one)};
    Event free[2];  // recorded again for each use
    Block *total = filled(stream, 0), *part = take(stream);
    float wanted = 0;
    for (int i = 0; i < 6; ++i) {
      const int at = i % 2;
      i % 4 < 2 ? free[at].synchronize() : [&] { while (!free[at].query()) std::this_thread::yield(); }();
      const float value = value_of(thread, round) + static_cast<float>(i);
      buffers[at].fill(value);
      wanted += value;
      upload(stream, part, buffers[at].address);
      free[at].record(stream);
      add(stream, total, total, part);
    }
    const bool right = holds(stream, total, wanted);
    for (const Pinned& buffer : buffers) host_record(buffer.block, stream);
    give(total);
    give(part);
    return right;
  });
}

TEST(litmus_between_two_devices) {
  const Chip chip;
  in_threads(chip, 2, 10, [&](int thread, int round) {
    Stream &here = pool_stream(chip.one->index, 0), &there = pool_stream(chip.two->index, 0);
    const float value = value_of(thread, round);
    Block *x = filled(here, value), *y = filled(there, -value), *kept = take(there);
    add(there, kept, y, y);  // reads the target before it is overwritten
    transfer(here, there, y, x);
    give(filled(here, -1));
    Block* z = take(there);
    add(there, z, y, y);
    transfer(there, here, x, z);
    const bool right = holds(here, x, 2 * value) && holds(there, kept, -2 * value) && holds(there, y, value);
    for (Block* block : {x, y, kept, z}) give(block);
    return right;
  });
}

// One thread gives all cached memory back, and asks for reports, while others work with little memory.
TEST(litmus_memory_given_back_while_busy) {
  const Chip chip(12 * kMiB);
  in_threads(chip, 3, 10, [&](int thread, int round) {
    if (thread == 0) {
      chip.one->allocator->empty_cache();
      host_empty_cache();
      (void)chip.one->allocator->stats();
      (void)chip.one->allocator->snapshot();
      synchronize(chip.one->index);
      return true;
    }
    Stream &owner = pool_stream(chip.one->index, 0), &reader = pool_stream(chip.one->index, -1);
    const float value = value_of(thread, round);
    Block* x = filled(owner, value);
    Block* large = take(owner, 3 * kMiB);
    give(large);
    Event written;
    written.record(owner);
    written.wait(reader);
    Block* y = take(reader);
    add(reader, y, x, x);
    chip.one->allocator->record_stream(x, reader);
    give(x);
    give(take(reader, 2 * kMiB));
    const bool right = holds(reader, y, 2 * value);
    give(y);
    return right;
  });
}

// Work is queued by one thread and waited for by another, by stream, event and query.
TEST(litmus_threads_that_wait_for_each_others_work) {
  const Chip chip;
  in_threads(chip, 2, 8, [&](int thread, int round) {
    Stream& stream = pool_stream(chip.one->index, 0);
    const float value = value_of(thread, round);
    const Pinned to(*chip.one);
    to.fill(0);
    Block* x = filled(stream, value);
    download(stream, to.address, x);
    host_record(to.block, stream);
    Event done;
    done.record(stream);
    bool right = false;
    std::thread waiter([&] {
      if (round % 3 == 0) stream.synchronize();
      if (round % 3 == 1) done.synchronize();
      while (round % 3 == 2 && !stream.query()) std::this_thread::yield();
      right = to.holds(value);
    });
    waiter.join();
    give(x);
    return right;
  });
}
