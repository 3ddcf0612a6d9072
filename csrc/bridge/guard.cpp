// The device guard: current device, streams and events of PrivateUse1 for PyTorch's own C++ (autograd, DDP, futures).
#include "bridge/guard.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "bridge/allocator.h"

namespace fl::bridge {

namespace {

c10::Device fl_device(int index) { return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)); }

struct GuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device d) const override {
    return fl_device(d.has_index() ? exchange_device(d.index()) : current_device());
  }
  c10::Device getDevice() const override { return fl_device(current_device()); }
  void setDevice(c10::Device d) const override {
    if (d.has_index()) set_current_device(d.index());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    try {
      setDevice(d);
    } catch (...) {  // a guard's destructor must not throw; the device was valid when the guard was made
    }
  }
  c10::Stream getStream(c10::Device d) const override { return torch_stream(current_stream(index_of(d))); }
  c10::Stream getDefaultStream(c10::Device d) const override { return torch_stream(default_stream(index_of(d))); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool high_priority = false) const override {
    return torch_stream(pool_stream(index_of(d), high_priority ? -1 : 0));
  }
  c10::Stream getNewStream(c10::Device d, int priority = 0) const override {
    return torch_stream(pool_stream(index_of(d), priority));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    Stream& previous = current_stream(s.device_index());
    fl::set_current_stream(core_stream(s));
    return torch_stream(previous);
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return core_stream(s).handle; }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device_index == -1 || device_index == stream.device_index(), "an event of ", fl_device(device_index),
                " cannot be recorded on a stream of ", fl_device(stream.device_index()),
                ". Make one event per device.");
    if (*event == nullptr) *event = new Event(flag == c10::EventFlag::BACKEND_DEFAULT);
    static_cast<Event*>(*event)->record(core_stream(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) static_cast<Event*>(event)->wait(core_stream(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || static_cast<Event*>(event)->query(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Event*>(event)->synchronize();
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    return static_cast<Event*>(start)->elapsed_ms(*static_cast<Event*>(end));
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    // Autograd's engine asks once and starts its device threads by the answer, so chips are opened here.
    return devices_opened() || !in_bad_fork() ? static_cast<c10::DeviceIndex>(fl::device_count()) : c10::DeviceIndex{0};
  }
  bool queryStream(const c10::Stream& stream) const override { return core_stream(stream).query(); }
  void synchronizeStream(const c10::Stream& stream) const override { core_stream(stream).synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    fl::synchronize(index < 0 ? current_device() : index);
  }
  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    static_cast<c10::DeviceAllocator*>(device_allocator())->recordStream(ptr, stream);
  }

 private:
  static int index_of(c10::Device d) { return d.has_index() ? d.index() : current_device(); }
};

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

}  // namespace fl::bridge
