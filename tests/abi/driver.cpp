// What a test runs against an adapter, through the core: `driver open|devices|use|page PATH`. Prints "OK …" or "ERROR
// <status>: <text>" and exits 0 in both cases: anything else is a crash.
#include <cstdio>
#include <cstring>
#include <string>

#include "allocator.h"
#include "device.h"
#include "error.h"
#include "memory_report.h"
#include "stream.h"

using namespace fl;

namespace {

void use(Device& device) {
  Stream& stream = default_stream(device.index);
  Block* block = device.allocator->allocate(1000, stream);
  const fl_memory place = memory_at(*block, block->ptr);
  char there[4] = "abc", back[4] = "";
  device.adapter->copy_h2d(stream.handle, place, there, sizeof there);
  device.adapter->copy_d2h(stream.handle, back, place, sizeof back);
  Event event;
  event.record(stream);
  event.wait(pool_stream(device.index, 0));
  stream.synchronize();
  device.allocator->record_stream(block, pool_stream(device.index, 0));
  device.allocator->free(block);
  void* host = nullptr;
  host_free(host_allocate(100, device.index, &host));
  const Kernel* kernel = device.kernel(0, DType::Float32, DType::Float32);
  printf("OK %s copies=%s query=%d kernel=%s memory=%llu alignment=%u\n", device.chip.c_str(),
         strcmp(there, back) == 0 ? "right" : "wrong", stream.query(), kernel != nullptr ? "yes" : "no",
         static_cast<unsigned long long>(device.total_memory), device.alignment);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string command = argv[1];
  static const char* const names[] = {"add"};
  set_uniop_names(names, 1);
  try {
    if (command == "open") {
      const fl_adapter* adapter = open_adapter(argv[2]);
      printf("OK %s %u.%u\n", adapter->name, adapter->abi_major, adapter->abi_minor);
    } else {
      AdapterSpec spec;
      spec.path = argv[2];
      Device& device = fl::device(add_adapter(spec).at(0));
      if (command == "use") {
        use(device);
      } else if (command == "page") {
        printf("OK page=%llu\n", static_cast<unsigned long long>(allocator_settings(device).page_bytes));
      } else {
        printf("OK %d devices\n", device_count());
      }
    }
  } catch (const Error& error) {
    printf("ERROR %s: %s\n", status_name(error.status).c_str(), error.what());
  }
  return 0;
}
