// Makes operands fit a constrained kernel: dense copies for layout, alignment and immediates, flattening for dims, and
// several launches for sizes. What cannot be made to fit goes to the next tier.
#include "bridge/call.h"
#include "bridge/debug.h"
#include "core/error.h"
#include "core/make_room.h"

namespace fl::bridge {

namespace {

int64_t numel_of(const fl_tensor& t) {
  int64_t n = 1;
  for (int d = 0; d < t.ndim; ++d) n *= t.sizes[d];
  return n;
}

int64_t itemsize_of(const fl_tensor& t) { return (t.dtype.bits + 7) / 8; }

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

uint32_t alignment_of(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address) | 4096u;
  return static_cast<uint32_t>(value & (~value + 1));
}

// Per element: all operands have one shape, and any dense piece of them is as good as another.
bool is_elementwise(int uniop) { return uniop < static_cast<int>(Uniop::sum); }

class Legalizer {
 public:
  Legalizer(Device& device, const Kernel& kernel, const fl_op_call& call)
      : device_(device),
        kernel_(kernel.k),
        uniop_(kernel.uniop),
        stream_(current_stream(device.index)),
        inputs_(call.inputs, call.inputs + call.num_inputs),
        outputs_(call.outputs, call.outputs + call.num_outputs) {
    elementwise_ = is_elementwise(uniop_) && outputs_.size() == 1;
    flatten_ = elementwise_ && !sizes_fit(outputs_[0]);
  }
  ~Legalizer() {  // the allocator reuses them in stream order
    for (Block* b : blocks_) device_.allocator->free(b);
  }

  // False: no copy can help (too many dims or elements, no copy kernel).
  bool prepare() {
    for (auto& t : inputs_)
      if (!input(t)) return false;
    for (auto& t : outputs_)
      if (!output(t)) return false;
    return true;
  }

  fl_status launch(fl_op_call call) {
    call.inputs = inputs_.data();
    call.outputs = outputs_.data();
    const fl_status status =
        flatten_ ? launch_flat(call) : with_room(device_, [&] { return kernel_.fn(&call); });
    if (status == FL_STATUS_OK && debugging()) debug_launch(stream_, call, uniop_, kUncounted);
    return status;
  }

  bool finish() {
    for (const auto& [from, to] : copies_back_)
      if (!copy_operand(device_, stream_, from, to)) return false;
    return true;
  }

 private:
  bool input(fl_tensor& t) {
    if (t.flags & FL_TENSOR_ABSENT) return true;
    if (t.flags & FL_TENSOR_IMMEDIATE) return (kernel_.flags & FL_KERNEL_NO_IMMEDIATE) == 0 || materialize(t);
    if (!flatten_ && !sizes_fit(t)) return false;
    if (fits(t)) return true;
    const fl_tensor source = t;
    return may_copy() && temporary(source, t) && copy_operand(device_, stream_, source, t);
  }

  bool output(fl_tensor& t) {
    if (t.flags & FL_TENSOR_ABSENT) return true;
    if (!flatten_ && !sizes_fit(t)) return false;
    if (fits(t)) return true;
    const fl_tensor target = t;
    if (!may_copy() || !temporary(target, t)) return false;
    copies_back_.push_back({t, target});
    // The kernel may update the output in place (scatter, running statistics): it must start from the old values.
    return elementwise_ || copy_operand(device_, stream_, target, t);
  }

  // The copy kernel itself cannot be helped by copying.
  bool may_copy() const { return uniop_ != static_cast<int>(Uniop::copy); }
  bool sizes_fit(const fl_tensor& t) const {
    return (kernel_.max_ndim == 0 || t.ndim <= kernel_.max_ndim) &&
           (kernel_.max_numel == 0 || static_cast<uint64_t>(numel_of(t)) <= kernel_.max_numel);
  }
  bool fits(const fl_tensor& t) const {
    if ((flatten_ || (kernel_.flags & FL_KERNEL_CONTIGUOUS)) && !is_dense(t)) return false;
    if ((kernel_.flags & FL_KERNEL_NO_BROADCAST) && is_broadcast(t)) return false;
    return kernel_.alignment <= t.alignment;
  }

  fl_memory allocate(uint64_t bytes, uint32_t& alignment) {
    Block* block = device_.allocator->allocate(bytes, stream_);
    blocks_.push_back(block);
    alignment = alignment_of(block->ptr);
    return memory_at(*block, block->ptr);
  }

  // `out` = a dense tensor of like's sizes; false if the device's memory is less aligned than the kernel wants.
  bool temporary(const fl_tensor& like, fl_tensor& out) {
    auto& strides = dims_.emplace_back(std::max(like.ndim, 1));
    int64_t step = 1;
    for (int d = like.ndim - 1; d >= 0; --d) {
      strides[d] = step;
      step *= like.sizes[d];
    }
    out = like;
    out.memory = allocate(static_cast<uint64_t>(numel_of(like) * itemsize_of(like)), out.alignment);
    out.strides = strides.data();
    return kernel_.alignment <= out.alignment;
  }

  void upload(const fl_tensor& to, const void* from, uint64_t bytes) {
    const fl_status status = with_room(device_, [&] {
      std::lock_guard lock(stream_.mutex);
      return device_.adapter->copy_h2d(stream_.handle, to.memory, from, bytes);
    });
    if (status != FL_STATUS_OK)
      raise_status(*device_.adapter, device_.index, status, copy_name("copy of a scalar to the device").c_str());
    if (debugging())
      debug_copy(stream_, "copy of a scalar to the device", {device_access(stream_, to.memory, bytes, true)});
  }

  // A scalar in memory. Where all operands have one shape it has it too: by stride 0 if the kernel takes that.
  bool materialize(fl_tensor& t) {
    t.flags = 0;
    const auto item = static_cast<uint64_t>(itemsize_of(t));
    if (!elementwise_) {
      t.ndim = 0;
      t.memory = allocate(item, t.alignment);
      upload(t, t.immediate, item);
      return kernel_.alignment <= t.alignment;
    }
    auto& zeros = dims_.emplace_back(std::max(outputs_[0].ndim, 1));
    t.sizes = outputs_[0].sizes;
    t.strides = zeros.data();
    t.ndim = outputs_[0].ndim;
    t.alignment = device_.alignment;
    if (fits(t)) {
      t.memory = allocate(item, t.alignment);
      upload(t, t.immediate, item);
      return kernel_.alignment <= t.alignment;
    }
    const fl_tensor source = t;
    if (!temporary(source, t)) return false;
    std::vector<uint8_t> values(static_cast<uint64_t>(numel_of(t)) * item);
    for (uint64_t at = 0; at < values.size(); at += item) std::memcpy(values.data() + at, source.immediate, item);
    upload(t, values.data(), values.size());
    return true;
  }

  // As one dense row, in pieces of at most max_numel elements.
  fl_status launch_flat(fl_op_call call) {
    const int64_t numel = numel_of(outputs_[0]);
    int64_t piece = kernel_.max_numel == 0 ? numel : static_cast<int64_t>(std::min<uint64_t>(kernel_.max_numel, numel));
    constexpr int64_t kKeepsAlignment = 4096;  // elements: each piece is aligned as the first one
    if (piece < numel && piece > kKeepsAlignment) piece -= piece % kKeepsAlignment;
    if (piece < numel && piece % kKeepsAlignment != 0 && kernel_.alignment != 0) return FL_STATUS_UNIMPLEMENTED;
    const int64_t one = 1;
    for (int64_t begin = 0; begin < numel; begin += piece) {
      const int64_t size = std::min(piece, numel - begin);
      std::vector<fl_tensor> inputs = inputs_, outputs = outputs_;
      for (auto* list : {&inputs, &outputs}) {
        for (fl_tensor& t : *list) {
          if (t.flags & (FL_TENSOR_ABSENT | FL_TENSOR_IMMEDIATE)) continue;
          const int64_t bytes = begin * itemsize_of(t);
          t.memory.address = static_cast<char*>(t.memory.address) + bytes;
          if (t.memory.handle != nullptr) t.memory.offset += static_cast<uint64_t>(bytes);
          t.sizes = &size;
          t.strides = &one;
          t.ndim = 1;
          if (begin != 0) t.alignment = alignment_of(t.memory.address);
        }
      }
      call.inputs = inputs.data();
      call.outputs = outputs.data();
      const fl_status status = with_room(device_, [&] { return kernel_.fn(&call); });
      // After the first piece it is too late for another tier: an operation in place has changed its input.
      if (status == FL_STATUS_UNIMPLEMENTED && begin != 0) return FL_STATUS_INTERNAL;
      if (status != FL_STATUS_OK) return status;
    }
    return FL_STATUS_OK;
  }

  Device& device_;
  const fl_kernel& kernel_;
  const int uniop_;
  Stream& stream_;
  std::vector<fl_tensor> inputs_, outputs_;
  bool elementwise_ = false;
  bool flatten_ = false;
  std::vector<Block*> blocks_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<std::pair<fl_tensor, fl_tensor>> copies_back_;
};

}  // namespace

bool launch_legalized(Device& device, const Kernel& kernel, fl_op_call call) {
  Legalizer legalizer(device, kernel, call);
  if (!legalizer.prepare()) return false;
  const fl_status status = legalizer.launch(call);
  if (status == FL_STATUS_UNIMPLEMENTED) return false;
  if (status != FL_STATUS_OK)
    raise_status(*device.adapter, device.index, status,
                 debugging() ? operation_name(kernel.uniop, kUncounted).c_str() : uniop_name(kernel.uniop));
  return legalizer.finish();
}

}  // namespace fl::bridge
