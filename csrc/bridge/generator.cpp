// See generator.h.
#include "bridge/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/GeneratorForPrivateuseone.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "core/counters.h"
#include "core/device.h"

namespace fl::bridge {

PhiloxGenerator::PhiloxGenerator(c10::DeviceIndex index)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void PhiloxGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t PhiloxGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

// The state is 16 bytes: seed and offset, both little-endian 64-bit.
void PhiloxGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK_TYPE(state.device().is_cpu() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                       state.is_contiguous() && state.numel() == 16,
                   "RNG state of an fl device must be a contiguous CPU torch.uint8 tensor of 16 bytes, got ",
                   state.numel(), " elements of ", state.dtype().name(), " on ", state.device());
  uint64_t words[2];
  std::memcpy(words, state.data(), sizeof(words));
  seed_ = words[0];
  offset_ = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  at::TensorBase state = at::detail::empty_cpu({16}, at::kByte, false, std::nullopt);
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, sizeof(words));
  return state.getIntrusivePtr();
}

PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  auto* copy = new PhiloxGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

at::Generator make_generator(c10::DeviceIndex index) {
  if (index < 0) index = static_cast<c10::DeviceIndex>(current_device());
  device(index);  // raises for a device that does not exist
  return at::make_generator<PhiloxGenerator>(index);
}

namespace {
// torch.manual_seed() of a process that has not opened its chips yet; also for chips that are registered later.
std::atomic<uint64_t> seed_of_new{c10::default_rng_seed_val};
}  // namespace

void seed_new_generators(uint64_t seed) { seed_of_new.store(seed); }

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::mutex mutex;
  static auto* generators = new std::vector<at::Generator>(kMaxDevices);
  if (index < 0) index = static_cast<c10::DeviceIndex>(current_device());
  device(index);
  std::lock_guard lock(mutex);
  at::Generator& slot = (*generators)[index];
  if (!slot.defined()) {
    slot = at::make_generator<PhiloxGenerator>(index);
    slot.set_current_seed(seed_of_new.load());
  }
  return slot;
}

namespace {
PhiloxGenerator& philox(const std::optional<at::Generator>& generator, c10::Device device) {
  const at::Generator& g = generator && generator->defined() ? *generator : default_generator(device.index());
  TORCH_CHECK(g.device().type() == c10::kPrivateUse1, "Expected a '", device, "' generator but found one of device '",
              g.device(), "'");
  return *static_cast<PhiloxGenerator*>(g.unsafeGetGeneratorImpl());
}
}  // namespace

PhiloxState reserve(const std::optional<at::Generator>& generator, c10::Device device, int64_t elements, bool wide) {
  PhiloxGenerator& g = philox(generator, device);
  std::lock_guard lock(g.mutex_);
  const uint64_t words = static_cast<uint64_t>(elements) * (wide ? 2 : 1);
  return {g.current_seed(), g.take((words + 3) / 4)};
}

at::Generator host_generator(const std::optional<at::Generator>& generator, c10::Device device) {
  if (generator && generator->defined() && generator->device().is_cpu()) return *generator;
  const PhiloxState state = reserve(generator, device, 4);
  // Mixes seed and offset so that consecutive calls get unrelated CPU streams (splitmix64).
  uint64_t z = state.seed + 0x9e3779b97f4a7c15ull * (state.offset + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return at::detail::createCPUGenerator(z ^ (z >> 31));
}

}  // namespace fl::bridge
