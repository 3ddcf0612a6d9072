// What PyTorch asks of the accelerator as a whole: availability, generators, pinned memory, storage resizing.
#include "bridge/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "bridge/allocator.h"
#include "bridge/copy.h"
#include "bridge/device_context.h"
#include "bridge/generator.h"
#include "core/error.h"
#include "core/make_room.h"
#include "core/stream.h"

namespace fl::bridge {

namespace {

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return fl::device_count() > 0; }
  void init() const override { fl::device_count(); }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return devices_opened() && index >= 0 && index < fl::device_count();
  }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(fl::device_count()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : static_cast<c10::DeviceIndex>(exchange_device(index));
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return make_generator(index); }
  // Also where the chip cannot pin: PyTorch asks whether pin_memory() made it, and the copies keep its promises.
  bool isPinnedPtr(const void* data) const override { return host_find(data) != nullptr; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void*) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "fl devices cannot tell a device from a bare pointer: chips of different vendors may "
                                "use the same address range");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    DeviceContext context(storage.device());
    c10::DataPtr data = device_allocator()->allocate(bytes);
    const size_t keep = std::min(bytes, storage.nbytes());
    if (keep > 0) {
      Block* from = block_of(storage.data_ptr());
      Block* to = block_of(data);
      TORCH_CHECK(from != nullptr && to != nullptr, "resize of a storage that Torch-FL did not allocate");
      copy_within(current_stream(storage.device().index()), memory_at(*to, to->ptr), memory_at(*from, from->ptr), keep,
                  "copy while a storage was resized");
    }
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

void register_hooks() {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace fl::bridge
