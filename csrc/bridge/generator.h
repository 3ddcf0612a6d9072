// The Philox generator of a device: a seed and an offset. One seed gives the same numbers on every chip and device,
// because kernels compute them from (seed, offset, element) alone: uniops.yaml, category random.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>
#include <optional>

namespace fl::bridge {

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex index);
  static c10::DeviceType device_type() { return c10::kPrivateUse1; }

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Takes `counters` Philox counters (4 words of 32 bits each): returns the offset to start from. Hold mutex_.
  uint64_t take(uint64_t counters) {
    const uint64_t at = offset_;
    offset_ += counters;
    return at;
  }

 private:
  PhiloxGenerator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex index);  // -1: current device
at::Generator make_generator(c10::DeviceIndex index);
// The first seed of the default generators that are not made yet.
void seed_new_generators(uint64_t seed);

struct PhiloxState {
  uint64_t seed, offset;
};
// Reserves numbers for `elements` elements that use 32-bit words each (wide: 64-bit) from `generator` or the default.
PhiloxState reserve(const std::optional<at::Generator>& generator, c10::Device device, int64_t elements,
                    bool wide = false);

// A CPU generator for the CPU tier, seeded from the device's (which advances): results repeat with the device's seed.
at::Generator host_generator(const std::optional<at::Generator>& generator, c10::Device device);

}  // namespace fl::bridge
