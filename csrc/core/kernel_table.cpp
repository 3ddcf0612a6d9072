// Which kernel serves (UniOp, types) on a device: profile and switches first, then the adapter, whose answers are kept.
#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>

#include "internal.h"

namespace fl {
namespace {

struct TypeInfo {
  const char* name;
  fl_dtype abi;
};

constexpr TypeInfo kTypes[kNumDTypes] = {
    {"bool", {FL_BOOL, 8, 1}},      {"uint8", {FL_UINT, 8, 1}},         {"int8", {FL_INT, 8, 1}},
    {"int16", {FL_INT, 16, 1}},     {"int32", {FL_INT, 32, 1}},         {"int64", {FL_INT, 64, 1}},
    {"float16", {FL_FLOAT, 16, 1}}, {"bfloat16", {FL_BFLOAT, 16, 1}},   {"float32", {FL_FLOAT, 32, 1}},
    {"float64", {FL_FLOAT, 64, 1}}, {"complex64", {FL_COMPLEX, 64, 1}}, {"complex128", {FL_COMPLEX, 128, 1}},
    {"uint16", {FL_UINT, 16, 1}},   {"uint32", {FL_UINT, 32, 1}},       {"uint64", {FL_UINT, 64, 1}},
    {"unsupported", {0, 0, 0}},
};

std::atomic<const char* const*> uniop_names{nullptr};
std::atomic<int> num_uniops{0};
std::atomic<bool> native_enabled{true};

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Results that are masks or indices have their type whatever the chip computes in.
bool is_mask_or_index(DType type) { return type == DType::Bool || type == DType::Int32 || type == DType::Int64; }

bool profile_allows(const AdapterSpec& spec, const char* uniop, DType in, DType out) {
  if (contains(spec.not_native, uniop)) return false;
  const auto listed = spec.native.find(uniop);
  if (listed == spec.native.end() && spec.only_listed) return false;
  const bool own_list = listed != spec.native.end() && !listed->second.empty();
  const std::vector<std::string>& allowed = own_list ? listed->second : spec.dtypes;
  if (allowed.empty()) return true;
  if (!contains(allowed, dtype_name(in))) return false;
  return is_mask_or_index(out) || contains(allowed, dtype_name(out));
}

// The narrower of the adapter's word and the profile's. What the profile says of an operator stands instead of what it
// says of the chip.
void constrain(fl_kernel& kernel, const AdapterSpec& spec, const char* uniop) {
  const auto own = spec.op_constraints.find(uniop);
  const Constraints& more = own != spec.op_constraints.end() ? own->second : spec.constraints;
  const auto least = [](auto a, auto b) { return a == 0 || (b != 0 && b < a) ? b : a; };  // 0: any
  kernel.flags |= more.flags;
  kernel.max_ndim = least(kernel.max_ndim, more.max_ndim);
  kernel.max_numel = least(kernel.max_numel, more.max_numel);
  kernel.alignment = std::max(kernel.alignment, more.alignment);
}

int uniop_by_name(const std::string& name) {
  for (int id = 0; id < uniop_count(); ++id) {
    const char* known = uniop_name(id);
    if (known != nullptr && name == known) return id;
  }
  return -1;
}

}  // namespace

fl_dtype to_abi(DType type) { return kTypes[static_cast<int>(type)].abi; }
const char* dtype_name(DType type) { return kTypes[static_cast<int>(type)].name; }

void set_uniop_names(const char* const* names, int count) {
  uniop_names.store(names);
  num_uniops.store(count);
}

const char* uniop_name(int id) {
  const char* const* names = uniop_names.load(std::memory_order_relaxed);
  return names != nullptr && id >= 0 && id < num_uniops.load(std::memory_order_relaxed) ? names[id] : nullptr;
}

int uniop_count() { return num_uniops.load(std::memory_order_relaxed); }

// ---------------------------------------------------------------- Device

struct Device::Routing {
  std::mutex mutex;  // also held while slots of the table change
  std::set<int> disabled;
  std::unordered_map<size_t, const Kernel*> answers;  // by slot; kAbsent included
};

namespace {
const Kernel absent{};
}
const Kernel* const Device::kAbsent = &absent;

Device::Device(int num_uniops)
    : routing_(new Routing), table_size_(static_cast<size_t>(num_uniops) * kNumDTypes * kNumDTypes) {
  table_.reset(new std::atomic<const Kernel*>[table_size_]());
}

Device::~Device() {
  for (const auto& answer : routing_->answers) {
    if (answer.second != kAbsent) delete answer.second;
  }
}

namespace {

// nullptr: the adapter has none.
const Kernel* ask_adapter(const Device& device, int uniop, DType in, DType out) {
  const fl_adapter* adapter = device.adapter;
  if (!FL_HAS(adapter, kernel_find)) return nullptr;
  struct {
    fl_kernel kernel;
    char room[256];  // for an adapter newer than this host that fills a longer fl_kernel
  } answer = {};
  answer.kernel.struct_size = sizeof(fl_kernel);
  const char* name = uniop_name(uniop);
  const fl_status status = adapter->kernel_find(device.ordinal, name, to_abi(in), to_abi(out), &answer.kernel);
  if (status == FL_STATUS_UNIMPLEMENTED) return nullptr;
  const std::string what = std::string("kernel_find(") + name + ", " + dtype_name(in) + ", " + dtype_name(out) + ")";
  if (status != FL_STATUS_OK) raise_status(*adapter, device.index, status, what.c_str());
  constexpr uint32_t kLeast = offsetof(fl_kernel, data) + sizeof(void*);
  if (answer.kernel.struct_size < kLeast || answer.kernel.fn == nullptr) {
    raise(FL_STATUS_INTERNAL, what + " on " + device_label(device) + " succeeded but filled struct_size " +
                                  std::to_string(answer.kernel.struct_size) + " (expected at least " +
                                  std::to_string(kLeast) + ") and " +
                                  (answer.kernel.fn == nullptr ? "no function." : "a function."));
  }
  auto* kernel = new Kernel{answer.kernel, uniop};
  if (kernel->k.struct_size < sizeof(fl_kernel)) {
    const size_t known = kernel->k.struct_size;
    std::fill(reinterpret_cast<char*>(&kernel->k) + known, reinterpret_cast<char*>(&kernel->k + 1), '\0');
  }
  constrain(kernel->k, *device.spec, name);
  return kernel;
}

}  // namespace

const Kernel* Device::resolve_kernel(int uniop, DType in, DType out) {
  check_usable(*this);
  const size_t slot =
      (static_cast<size_t>(uniop) * kNumDTypes + static_cast<size_t>(in)) * kNumDTypes + static_cast<size_t>(out);
  std::lock_guard<std::mutex> lock(routing_->mutex);
  const Kernel* kernel = table_[slot].load(std::memory_order_acquire);
  if (kernel == nullptr) {  // else another thread was first
    const char* name = uniop_name(uniop);
    const bool typed = in != DType::Unsupported && out != DType::Unsupported;
    const bool wanted = name != nullptr && typed && native_enabled.load() && routing_->disabled.count(uniop) == 0 &&
                        profile_allows(*spec, name, in, out);
    if (!wanted) {
      kernel = kAbsent;
    } else if (const auto known = routing_->answers.find(slot); known != routing_->answers.end()) {
      kernel = known->second;
    } else {
      const Kernel* answer = ask_adapter(*this, uniop, in, out);
      kernel = answer != nullptr ? answer : kAbsent;
      routing_->answers.emplace(slot, kernel);
    }
    table_[slot].store(kernel, std::memory_order_release);
  }
  return kernel == kAbsent ? nullptr : kernel;
}

void Device::reset_kernels() {
  std::lock_guard<std::mutex> lock(routing_->mutex);
  for (size_t slot = 0; slot < table_size_; ++slot)
    table_[slot].store(nullptr, std::memory_order_release);
}

// ---------------------------------------------------------------- switches

void set_native_enabled(bool enabled) {
  native_enabled.store(enabled);
  for (int index = 0; find_device(index) != nullptr; ++index)
    find_device(index)->reset_kernels();
}

void set_uniop_enabled(int index, const std::string& uniop, bool enabled) {
  const int id = uniop_by_name(uniop);
  if (id < 0) raise(FL_STATUS_INVALID_ARGUMENT, "'" + uniop + "' is not a UniOp. docs/ops.md lists them.");
  if (index == -1) {
    for (int each = 0; find_device(each) != nullptr; ++each)
      set_uniop_enabled(each, uniop, enabled);
    return;
  }
  Device& target = device(index);
  {
    std::lock_guard<std::mutex> lock(target.routing_->mutex);
    if (enabled) {
      target.routing_->disabled.erase(id);
    } else {
      target.routing_->disabled.insert(id);
    }
  }
  target.reset_kernels();
}

}  // namespace fl
