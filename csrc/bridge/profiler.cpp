// Device times for PyTorch's profiler: marks on the current stream before and after each operator, from the chips'
// timing events. torch.autograd.profiler.profile(use_device="fl") reads them.
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "core/stream.h"

namespace fl::bridge {

namespace {

using torch::profiler::impl::ProfilerStubs;
using torch::profiler::impl::ProfilerVoidEventStub;

Event& event_of(const ProfilerVoidEventStub* stub) { return *static_cast<Event*>(stub->get()); }

struct Stubs final : public ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const int index = current_device();
    if (device != nullptr) *device = static_cast<c10::DeviceIndex>(index);
    auto mark = std::make_shared<Event>(/*timing=*/true);
    mark->record(current_stream(index));
    *event = std::move(mark);
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }
  // Microseconds. A chip whose events measure no time, or marks on two devices: the profiler is told and leaves it out.
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    event_of(start).synchronize();
    event_of(end).synchronize();
    return static_cast<float>(event_of(start).elapsed_ms(event_of(end)) * 1000.0);
  }
  void mark(const char*) const override {}  // annotations are for tools that chips do not have
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return fl::device_count() > 0; }
  void onEachDevice(std::function<void(int)> act) const override {
    const int before = current_device();
    for (int index = 0; index < fl::device_count(); ++index) {
      set_current_device(index);
      act(index);
    }
    set_current_device(before);
  }
  void synchronize() const override { fl::synchronize(current_device()); }
};

const bool registered = [] {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace

}  // namespace fl::bridge
