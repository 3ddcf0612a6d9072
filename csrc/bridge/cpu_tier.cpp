// The CPU tier: copies exactly the operands in and the results out, or aliases device memory that the host can see.
// Views never come here (they would lose their aliasing); undeclared mutations are listed below.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/List.h>

#include "bridge/debug.h"
#include "bridge/device_context.h"
#include "bridge/generator.h"
#include "bridge/route.h"
#include "bridge/user_kernel.h"
#include "core/stream.h"

namespace fl::bridge {

namespace {

// Operators whose schema does not say that they write these arguments (pytorch/pytorch#88697).
const std::unordered_map<std::string, std::vector<size_t>>& undeclared_writes() {
  static const auto* table = new std::unordered_map<std::string, std::vector<size_t>>{
      {"aten::native_batch_norm", {3, 4}},       {"aten::batch_norm_update_stats", {1, 2}},
      {"aten::batch_norm_gather_stats", {3, 4}}, {"aten::batch_norm_gather_stats_with_counts", {3, 4}},
      {"aten::rrelu_with_noise", {1}},
  };
  return *table;
}

class CpuCall {
 public:
  CpuCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device)
      : op_(op), stack_(stack), device_(device) {
    const Device& d = fl::device(device.index());  // opaque buffers have no address that the host could read
    unified_ = d.has(FL_CAP_HOST_VISIBLE) && d.has(FL_CAP_POINTERS);
  }

  void run() {
    const auto& schema = op_.schema();
    const size_t num_arguments = schema.arguments().size();
    originals_.assign(stack_->end() - static_cast<long>(num_arguments), stack_->end());
    if (unified_) current_stream(device_.index()).synchronize();
    for (size_t i = 0; i < num_arguments; ++i) {
      only_written_ = is_out(schema.arguments()[i]);
      written_ = writes(schema, i);
      to_cpu((*stack_)[stack_->size() - num_arguments + i]);
    }
    hosted_.assign(stack_->end() - static_cast<long>(num_arguments), stack_->end());
    if (debugging(kRaceCheck)) debug_host(schema.name() + " on the CPU", accesses_);
    op_.callBoxed(stack_);
    for (size_t i = 0; i < num_arguments; ++i)
      if (writes(schema, i)) write_back(originals_[i], hosted_[i]);
    const size_t num_returns = schema.returns().size();
    for (size_t i = 0; i < num_returns; ++i) to_device(schema, i, (*stack_)[stack_->size() - num_returns + i]);
    count_bytes(device_.index(), Tier::Cpu, bytes_);
  }

 private:
  bool writes(const c10::FunctionSchema& schema, size_t i) const {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) return true;
    const auto it = undeclared_writes().find(schema.name());
    return it != undeclared_writes().end() && std::find(it->second.begin(), it->second.end(), i) != it->second.end();
  }

  // `out=`: written and never read, so only its shape goes in.
  static bool is_out(const c10::Argument& argument) {
    return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  }

  // The device's memory as a tensor of the host. An operator may resize it (out=): it then moves to memory of the host's
  // own, from where write_back() brings the result.
  static at::Tensor host_alias(const at::Tensor& t) {
    c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::CPU);
    const auto bytes = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize());
    auto* keep = new at::Tensor(t);
    const auto drop = [](void* kept) { delete static_cast<at::Tensor*>(kept); };
    at::DataPtr data(t.mutable_data_ptr(), keep, drop, at::kCPU);
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), allocator, true);
    at::Tensor host = at::detail::empty_generic({0}, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                t.scalar_type(), std::nullopt);
    host.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    host.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
    return host;
  }

  at::Tensor host_copy(const at::Tensor& t) {
    if (!t.defined() || !t.is_privateuseone()) return t;
    for (const auto& [from, to] : seen_)
      if (from.is_same(t)) return to;
    at::Tensor host;
    const bool plain = t.layout() == c10::kStrided && !t.is_conj() && !t.is_neg();
    if (plain && unified_ && t.device() == device_ && !(only_written_ && !t.is_contiguous())) {
      host = host_alias(t);
      if (debugging(kRaceCheck)) {
        accesses_.push_back({device_.index(),
                             Extent::tensor(t.const_data_ptr(), static_cast<int64_t>(t.itemsize()),
                                            static_cast<int>(t.dim()), t.sizes().data(), t.strides().data()),
                             written_});
      }
    } else if (plain && only_written_) {
      // Dense: some of the CPU's kernels (gelu.out) leave a strided out= as it was.
      host = at::empty(t.sizes(), t.options().device(at::kCPU));
    } else {
      host = t.to(at::kCPU);
      bytes_ += static_cast<uint64_t>(t.numel()) * t.itemsize();
    }
    seen_.emplace_back(t, host);
    return host;
  }

  void to_cpu(c10::IValue& value) {
    if (value.isTensor()) {
      value = host_copy(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(host_copy(t));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
        list.push_back(t ? std::optional<at::Tensor>(host_copy(*t)) : std::nullopt);
      value = std::move(list);
    } else if (value.isGenerator()) {
      value = host_generator(value.toGenerator(), device_);
    } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
      value = c10::IValue(c10::Device(at::kCPU));
    } else if (value.isNone() && expects_generator(value)) {
      value = host_generator({}, device_);
    }
  }

  // A random operator called without a generator must draw from this device's, not from the CPU's.
  bool expects_generator(const c10::IValue& value) const {
    const auto& arguments = op_.schema().arguments();
    const size_t position = static_cast<size_t>(&value - (stack_->data() + stack_->size() - arguments.size()));
    const auto& type = arguments[position].type();
    return type->kind() == c10::TypeKind::OptionalType &&
           type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType;
  }

  void write_back(const c10::IValue& original, const c10::IValue& hosted) {
    if (original.isTensor()) {
      write_back(original.toTensor(), hosted.toTensor());
    } else if (original.isTensorList()) {
      const auto originals = original.toTensorVector(), hosts = hosted.toTensorVector();
      for (size_t i = 0; i < originals.size(); ++i) write_back(originals[i], hosts[i]);
    }
  }

  void write_back(const at::Tensor& original, const at::Tensor& hosted) {
    if (!original.defined() || !original.is_privateuseone()) return;
    if (original.sizes() != hosted.sizes()) original.resize_(hosted.sizes());  // an out= that the operator resized
    if (unified_ && original.data_ptr() == hosted.data_ptr()) {
      if (original.strides() != hosted.strides())
        original.as_strided_(hosted.sizes(), hosted.strides(), original.storage_offset());
      return;
    }
    original.copy_(hosted);
    bytes_ += static_cast<uint64_t>(hosted.numel()) * hosted.itemsize();
  }

  at::Tensor device_copy(const at::Tensor& t) {
    if (!t.defined() || !t.device().is_cpu()) return t;
    for (const auto& [from, to] : seen_)
      if (to.is_same(t)) return from;  // the operator returned one of its operands
    bytes_ += static_cast<uint64_t>(t.numel()) * t.itemsize();
    return t.to(device_);
  }

  void to_device(const c10::FunctionSchema& schema, size_t i, c10::IValue& value) {
    const auto* alias = schema.returns()[i].alias_info();
    if (alias != nullptr && !alias->isWrite() && value.isTensor() && value.toTensor().defined()) {
      // A view operator: right only if it did not alias after all (reshape-like operators that may copy).
      for (const auto& [from, to] : seen_)
        TORCH_CHECK_NOT_IMPLEMENTED(!value.toTensor().is_alias_of(to), schema.name(),
                                    " returns a view and has no implementation for ", device_,
                                    ": a copy through the CPU would lose the aliasing. Report this operator.");
    }
    if (alias != nullptr && alias->isWrite()) {  // returns the argument it wrote
      for (size_t a = 0; a < originals_.size(); ++a) {
        const auto* argument = schema.arguments()[a].alias_info();
        if (argument != nullptr && argument->isWrite() && *argument == *alias) {
          value = originals_[a];
          return;
        }
      }
    }
    if (value.isTensor()) {
      value = device_copy(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(device_copy(t));
      value = std::move(list);
    }
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  c10::Device device_;
  bool unified_ = false;
  bool only_written_ = false;  // the argument that to_cpu() is at
  bool written_ = false;       // the same
  uint64_t bytes_ = 0;
  std::vector<c10::IValue> originals_, hosted_;
  std::vector<RaceAccess> accesses_;  // of the host to memory of the device
  std::vector<std::pair<at::Tensor, at::Tensor>> seen_;  // device tensor -> its host twin, so aliases stay one
};

}  // namespace

void cpu_tier(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device) {
  DeviceContext context(device);
  const NotInUserKernel counts_its_own_bytes;
  CpuCall(op, stack, device).run();
}

}  // namespace fl::bridge
