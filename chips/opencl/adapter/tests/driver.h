// The adapter as the host sees it: opened at run time, used through its table alone. Scenarios are functions that the
// command line names: test_adapter LIBRARY SCENARIO [key=value …]; options go to configure() first. A failed check
// ends the process with 1 and says where. Run by ../../tests/test_adapter.py.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "torch_fl/adapter.h"

extern const fl_adapter* a;

[[noreturn]] void failed(const char* file, int line, const char* condition);
#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) failed(__FILE__, __LINE__, #condition); \
  } while (0)
#define OK(call) CHECK((call) == FL_STATUS_OK)

int num_devices();
fl_device_properties properties_of(int device);
std::string last_text();  // "CL_OUT_OF_RESOURCES: message"
bool said(const char* words);

// Of one device, with a stream; destroyed at the end.
struct Bench {
  explicit Bench(int ordinal) : device(ordinal), stream(new_stream()) {}
  ~Bench() { OK(a->stream_destroy(stream)); }
  fl_stream new_stream(int priority = 0) const {
    fl_stream made;
    OK(a->stream_create(device, priority, &made));
    return made;
  }
  fl_memory alloc(uint64_t bytes) const {
    fl_memory made;
    OK(a->memory_alloc(device, bytes, &made));
    return made;
  }
  void free(fl_memory memory) const { OK(a->memory_free(device, memory)); }
  template <class T>
  fl_memory put(const std::vector<T>& values) const {
    const fl_memory made = alloc(values.size() * sizeof(T));
    OK(a->copy_h2d(stream, made, values.data(), values.size() * sizeof(T)));
    return made;
  }
  template <class T>
  std::vector<T> get(fl_memory memory, size_t count) const {
    std::vector<T> values(count);
    OK(a->copy_d2h(stream, values.data(), memory, count * sizeof(T)));
    OK(a->stream_synchronize(stream));
    return values;
  }
  const int device;
  const fl_stream stream;
};

// A place `bytes` further on, in whichever way the device names places.
inline fl_memory plus(fl_memory memory, uint64_t bytes) {
  if (memory.handle != nullptr) {
    memory.offset += bytes;
  } else {
    memory.address = static_cast<char*>(memory.address) + bytes;
  }
  return memory;
}

// y = x + x over float32 vectors, or false if the chip has no `add`.
bool run_add(const Bench& bench, fl_memory x, fl_memory y, int64_t count, fl_status* status = nullptr);

struct Scenario {
  const char* name;
  void (*run)();
};
extern const std::vector<Scenario> memory_scenarios, stream_scenarios, kernel_scenarios;
