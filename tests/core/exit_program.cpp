// Frees device and pinned memory from static destructors, as Python's last objects do: the process must end well.
#include "fixture.h"

using namespace fl;

namespace {

struct Last {
  Block* plain = nullptr;
  Block* shared = nullptr;
  HostBlock* host = nullptr;
  ~Last() {
    if (plain == nullptr) return;
    plain->device->allocator->free(shared);
    plain->device->allocator->free(plain);
    host_free(host);
    printf("freed after main\n");
  }
};
Last last;

}  // namespace

int main() {
  Device& device = fixture::open();
  Stream& stream = default_stream(device.index);
  last.plain = device.allocator->allocate(1000, stream);
  last.shared = device.allocator->allocate(1000, stream);
  device.allocator->record_stream(last.shared, pool_stream(device.index, 0));
  void* address = nullptr;
  last.host = host_allocate(1000, device.index, &address);
  host_record(last.host, stream);
  // The adapter is already torn down then: any call of it is an error.
  const auto lose = [] { fixture::steer().with([](test_control& control) { control.lost = 1; }); };
  std::atexit(lose);
}
