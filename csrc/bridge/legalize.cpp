// Makes operands fit a constrained kernel: dense copies for layout, alignment and immediates; else the next tier.
#include "bridge/call.h"
#include "core/error.h"

namespace fl::bridge {

namespace {

int64_t numel_of(const fl_tensor& t) {
  int64_t n = 1;
  for (int d = 0; d < t.ndim; ++d) n *= t.sizes[d];
  return n;
}

bool is_dense(const fl_tensor& t) {
  int64_t step = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.sizes[d] != 1 && t.strides[d] != step) return false;
    step *= t.sizes[d];
  }
  return true;
}

bool is_broadcast(const fl_tensor& t) {
  for (int d = 0; d < t.ndim; ++d)
    if (t.strides[d] == 0 && t.sizes[d] > 1) return true;
  return false;
}

class Legalizer {
 public:
  // may_copy: false for the copy kernel itself, which cannot be helped by copying.
  Legalizer(Device& device, const fl_kernel& kernel, bool may_copy)
      : device_(device), kernel_(kernel), stream_(current_stream(device.index)), may_copy_(may_copy) {}
  ~Legalizer() {
    for (Block* b : blocks_) device_.allocator->free(b);
  }

  // False: no copy can help (too many dims or elements, no copy kernel).
  bool input(fl_tensor& t) {
    if (t.flags & FL_TENSOR_ABSENT) return true;
    if (t.flags & FL_TENSOR_IMMEDIATE) return (kernel_.flags & FL_KERNEL_NO_IMMEDIATE) == 0 || materialize(t);
    if (!sizes_fit(t)) return false;
    if (fits(t)) return true;
    if (!may_copy_) return false;
    const fl_tensor source = t;
    t = temporary(source);
    return copy_operand(device_, stream_, source, t);
  }

  bool output(fl_tensor& t) {
    if (t.flags & FL_TENSOR_ABSENT) return true;
    if (!sizes_fit(t)) return false;
    if (fits(t)) return true;
    if (!may_copy_) return false;
    const fl_tensor target = t;
    t = temporary(target);
    copies_back_.push_back({t, target});
    // The kernel may update the output in place (scatter, running statistics): it must start from the old values.
    return copy_operand(device_, stream_, target, t);
  }

  bool finish() {
    for (const auto& [from, to] : copies_back_)
      if (!copy_operand(device_, stream_, from, to)) return false;
    return true;
  }

 private:
  bool sizes_fit(const fl_tensor& t) const {
    return (kernel_.max_ndim == 0 || t.ndim <= kernel_.max_ndim) &&
           (kernel_.max_numel == 0 || static_cast<uint64_t>(numel_of(t)) <= kernel_.max_numel);
  }
  bool fits(const fl_tensor& t) const {
    if ((kernel_.flags & FL_KERNEL_CONTIGUOUS) && !is_dense(t)) return false;
    if ((kernel_.flags & FL_KERNEL_NO_BROADCAST) && is_broadcast(t)) return false;
    return kernel_.alignment <= t.alignment;
  }
  fl_tensor temporary(const fl_tensor& like) {
    const uint64_t bytes = static_cast<uint64_t>(numel_of(like)) * ((like.dtype.bits + 7u) / 8u);
    Block* block = device_.allocator->allocate(bytes, stream_);
    blocks_.push_back(block);
    auto& strides = strides_.emplace_back(std::max(like.ndim, 1));
    int64_t step = 1;
    for (int d = like.ndim - 1; d >= 0; --d) {
      strides[d] = step;
      step *= like.sizes[d];
    }
    fl_tensor t = like;
    t.memory = memory_at(*block, block->ptr);
    t.strides = strides.data();
    t.alignment = device_.alignment;
    return t;
  }
  bool materialize(fl_tensor& t) {
    const uint64_t bytes = (t.dtype.bits + 7u) / 8u;
    Block* block = device_.allocator->allocate(bytes, stream_);
    blocks_.push_back(block);
    t.memory = memory_at(*block, block->ptr);
    std::lock_guard lock(stream_.mutex);
    const fl_status status = device_.adapter->copy_h2d(stream_.handle, t.memory, t.immediate, bytes);
    if (status != FL_STATUS_OK) raise_status(*device_.adapter, device_.index, status, "copy of a scalar to the device");
    t.flags = 0;
    t.ndim = 0;
    t.alignment = device_.alignment;
    return true;
  }

  Device& device_;
  const fl_kernel& kernel_;
  Stream& stream_;
  const bool may_copy_;
  std::vector<Block*> blocks_;
  std::vector<std::vector<int64_t>> strides_;
  std::vector<std::pair<fl_tensor, fl_tensor>> copies_back_;
};

}  // namespace

bool launch_legalized(Device& device, const Kernel& kernel, fl_op_call call) {
  std::vector<fl_tensor> inputs(call.inputs, call.inputs + call.num_inputs);
  std::vector<fl_tensor> outputs(call.outputs, call.outputs + call.num_outputs);
  Legalizer legalizer(device, kernel.k, kernel.uniop != static_cast<int>(Uniop::copy));
  for (auto& t : inputs)
    if (!legalizer.input(t)) return false;
  for (auto& t : outputs)
    if (!legalizer.output(t)) return false;
  call.inputs = inputs.data();
  call.outputs = outputs.data();
  const fl_status status = kernel.k.fn(&call);
  if (status == FL_STATUS_UNIMPLEMENTED) return false;
  if (status != FL_STATUS_OK) raise_status(*device.adapter, device.index, status, uniop_name(kernel.uniop));
  return legalizer.finish();
}

}  // namespace fl::bridge
