// Copies in every direction: dtype, layout, host to device and back, device to device, chip to chip; and the reads of
// single elements. copy_() of PyTorch arrives here as _copy_from(self, dst).
#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "bridge/copy.h"

#include "bridge/call.h"
#include "bridge/debug.h"
#include "bridge/factory.h"
#include "bridge/route.h"
#include "bridge/settings.h"
#include "bridge/user_kernel.h"
#include "core/error.h"
#include "core/make_room.h"
#include "core/transfer.h"

namespace fl::bridge {

namespace {

// Copies are [object: stream] in the ABI: one thread at a time per stream.
template <class Queue>
fl_status locked(Stream& stream, const Queue& queue) {
  return with_room(*stream.device, [&] {
    std::lock_guard lock(stream.mutex);
    return queue();
  });
}

void check(Device& device, fl_status status, const char* what) {
  if (status != FL_STATUS_OK) raise_status(*device.adapter, device.index, status, copy_name(what).c_str());
}

fl_memory memory(const at::Tensor& t) {
  Device& device = fl::device(t.device().index());
  return memory_of(
      device, t,
      static_cast<char*>(t.storage().mutable_data()) + t.storage_offset() * static_cast<int64_t>(t.itemsize()));
}

uint64_t bytes_of(const at::Tensor& t) { return static_cast<uint64_t>(t.numel()) * t.itemsize(); }

void on_device_slow(const at::Tensor& src, const at::Tensor& dst);
void parts(const at::Tensor& src, const at::Tensor& dst);

// The tensor as it lies in memory, without lazy conjugate and negative bits.
at::Tensor without_bits(const at::Tensor& t) {
  at::Tensor plain = t.is_neg() ? t._neg_view() : t;
  return plain.is_conj() ? plain._conj() : plain;
}

// Same device: one copy kernel over the broadcast pair.
void on_device(const at::Tensor& src, const at::Tensor& dst) {
  if (src.is_conj() != dst.is_conj() || src.is_neg() != dst.is_neg()) {
    // The bits undo themselves and commute: what is left to do to the bare values is where the two differ.
    at::Tensor values = without_bits(src);
    if (src.is_conj() != dst.is_conj()) values = at::conj_physical(values);
    if (src.is_neg() != dst.is_neg()) values = at::neg(values);
    return on_device(values, without_bits(dst));
  }
  if (src.dtype() == dst.dtype() && src.sizes() == dst.sizes() && src.strides() == dst.strides() &&
      src.is_non_overlapping_and_dense()) {
    const fl_memory from = memory(src), to = memory(dst);
    if (from.address == to.address) return;  // two tensors over the same place
    at::assert_no_partial_overlap(dst, src);
    return copy_within(current_stream(dst.device().index()), to, from, bytes_of(src), "copy");
  }
  auto iter = at::TensorIteratorConfig()
                  .add_output(dst)
                  .add_const_input(src)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .check_all_same_device(true)
                  .set_check_mem_overlap(true)
                  .build();
  if (iter.numel() == 0) return;
  static const int overload = overload_id("aten::copy_");
  if (lower_copy(iter, overload)) return;
  if (dst.is_complex()) return parts(src, dst);
  on_device_slow(src, dst);
}

// Complex types without a copy kernel of their own: their real and imaginary parts.
void parts(const at::Tensor& src, const at::Tensor& dst) {
  const auto plain = [](const at::Tensor& t) { return at::view_as_real(without_bits(t)); };
  if (src.is_complex()) return on_device(plain(src), plain(dst));
  on_device(src, plain(dst).select(-1, 0));
  plain(dst).select(-1, 1).zero_();
}

// Host source into a dense device target of the same sizes, type and strides.
void upload(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  Stream& stream = current_stream(dst.device().index());
  const fl_memory to = memory(dst);
  const void* from = src.const_data_ptr();
  const uint64_t bytes = bytes_of(src);
  const auto queue = [&] { return stream.device->adapter->copy_h2d(stream.handle, to, from, bytes); };
  check(*stream.device, locked(stream, queue), "copy from the host");
  HostBlock* block = host_find(from);
  if (block != nullptr && non_blocking) host_record(block, stream);
  if (debugging())
    debug_copy(stream, "copy from the host",
               {host_access(from, bytes, false), device_access(stream, to, bytes, true)});
  if (block != nullptr && !non_blocking) stream.synchronize();
}

void download(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  Stream& stream = current_stream(src.device().index());
  const fl_memory from = memory(src);
  void* to = dst.mutable_data_ptr();
  const uint64_t bytes = bytes_of(src);
  const auto queue = [&] { return stream.device->adapter->copy_d2h(stream.handle, to, from, bytes); };
  check(*stream.device, locked(stream, queue), "copy to the host");
  HostBlock* block = non_blocking && is_pinned(to) ? host_find(to) : nullptr;
  if (block != nullptr) host_record(block, stream);
  if (debugging())
    debug_copy(stream, "copy to the host", {device_access(stream, from, bytes, false), host_access(to, bytes, true)});
  if (block == nullptr) stream.synchronize();
}

bool has_bits(const at::Tensor& t) { return t.is_conj() || t.is_neg(); }

// The device can convert and rearrange by itself.
bool converts(c10::Device where, const at::Tensor& src, const at::Tensor& dst) {
  return fl::device(where.index())
             .kernel(static_cast<int>(Uniop::copy), to_dtype(src.scalar_type()), to_dtype(dst.scalar_type())) != nullptr;
}

bool same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

void from_host(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  if (same_dense_layout(src, dst)) return upload(src, dst, non_blocking);
  // As CUDA does: a copy that may not wait is converted by the device, any other by the host, which saves memory there.
  const bool asynchronous = non_blocking && is_pinned(src.const_data_ptr());
  if (asynchronous && src.is_non_overlapping_and_dense() && converts(dst.device(), src, dst)) {
    at::Tensor raw = empty_strided(src.sizes(), src.strides(), src.scalar_type(), dst.device());
    upload(without_bits(src), raw, true);
    if (src.is_conj()) raw = raw._conj();
    if (src.is_neg()) raw = raw._neg_view();
    return on_device(raw, dst);
  }
  const auto options = src.options().dtype(dst.scalar_type()).pinned_memory(asynchronous);
  if (dst.is_non_overlapping_and_dense() && !has_bits(dst)) {
    at::Tensor staged = at::empty_strided(dst.sizes(), dst.strides(), options);
    staged.copy_(src);
    return upload(staged, dst, asynchronous);
  }
  at::Tensor staged = at::empty(dst.sizes(), options);
  staged.copy_(src);
  at::Tensor dense = empty(dst.sizes(), dst.scalar_type(), dst.device());
  upload(staged, dense, asynchronous);
  on_device(dense, dst);
}

void to_host(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  if (same_dense_layout(src, dst)) return download(src, dst, non_blocking);
  at::Tensor dense = src;
  if (src.sizes() != dst.sizes()) dense = src.expand(dst.sizes());
  const bool same_type = src.scalar_type() == dst.scalar_type();
  if ((same_type || non_blocking) && dst.is_non_overlapping_and_dense() && !has_bits(dst) &&
      converts(src.device(), src, dst)) {
    at::Tensor ready = empty_strided(dst.sizes(), dst.strides(), dst.scalar_type(), src.device());
    on_device(dense, ready);
    return download(ready, dst, non_blocking);
  }
  if (!dense.is_non_overlapping_and_dense() || dense.is_conj() || dense.is_neg()) {
    at::Tensor packed = empty(dense.sizes(), dense.scalar_type(), dense.device());
    on_device(dense, packed);
    dense = packed;
  }
  at::Tensor staged = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(at::kCPU));
  download(dense, staged, false);
  dst.copy_(staged);
}

void on_device_slow(const at::Tensor& src, const at::Tensor& dst) {
  // No copy kernel for these types: through the host. Counted as the CPU tier's.
  TORCH_CHECK_NOT_IMPLEMENTED(settings.enable_cpu.load(std::memory_order_relaxed) && forbid_cpu_depth == 0,
                              "no copy kernel from ", src.scalar_type(), " to ", dst.scalar_type(), " on ",
                              dst.device(), ", and the CPU tier is off");
  static const int overload = overload_id("aten::copy_");
  at::Tensor host = at::empty_strided(
      src.sizes(),
      src.is_non_overlapping_and_dense() ? src.strides() : at::IntArrayRef(c10::contiguous_strides(src.sizes())),
      src.options().device(at::kCPU));
  if (!src.is_non_overlapping_and_dense() || !dst.is_non_overlapping_and_dense()) {
    // Strided without a kernel: move the whole storage span both ways.
    const auto whole = [](const at::Tensor& t) {
      const int64_t span = static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
      return t.as_strided({span}, {1}, 0);
    };
    at::Tensor from = at::empty({whole(src).numel()}, host.options());
    download(whole(src), from, false);
    at::Tensor to = at::empty({whole(dst).numel()}, host.options().dtype(dst.scalar_type()));
    download(whole(dst), to, false);
    to.as_strided(dst.sizes(), dst.strides(), dst.storage_offset())
        .copy_(from.as_strided(src.sizes(), src.strides(), src.storage_offset()));
    upload(to, whole(dst), false);
  } else {
    download(src, host, false);
    at::Tensor cast = at::empty_strided(dst.sizes(), dst.strides(), host.options().dtype(dst.scalar_type()));
    cast.copy_(host);
    upload(cast, dst, false);
  }
  count(dst.device().index(), overload, Tier::Cpu);
  count_bytes(dst.device().index(), Tier::Cpu, bytes_of(src) + bytes_of(dst));
}

// Two devices: what lies dense in both memories moves as bytes.
void across(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  at::Tensor packed = src;
  if (src.scalar_type() != dst.scalar_type() || src.sizes() != dst.sizes() || !same_dense_layout(src, dst)) {
    const bool dense = dst.is_non_overlapping_and_dense();
    packed = dense ? empty_strided(dst.sizes(), dst.strides(), dst.scalar_type(), src.device())
                   : empty(dst.sizes(), dst.scalar_type(), src.device());
    if (dst.is_conj()) packed = packed._conj();
    if (dst.is_neg()) packed = packed._neg_view();
    on_device(src, packed);
  }
  at::Tensor target = dst;
  if (!dst.is_non_overlapping_and_dense()) {
    target = empty(dst.sizes(), dst.scalar_type(), dst.device());
    if (dst.is_conj()) target = target._conj();
    if (dst.is_neg()) target = target._neg_view();
  }
  Stream &source = current_stream(src.device().index()), &sink = current_stream(dst.device().index());
  const fl_memory from = memory(packed), to = memory(target);
  const char* what = "copy to another device";
  // Noted before it is queued: the copy ends with waits of the host and of the two streams that order what follows it.
  if (debugging(kRaceCheck)) {
    note_accesses(source, what, {device_access(source, from, bytes_of(packed), false)});
    note_accesses(sink, what, {device_access(sink, to, bytes_of(packed), true)});
  }
  copy_between(source, from, sink, to, bytes_of(packed));
  if (debugging(kSyncDebug)) {
    synchronize_after(source, copy_name(what));
    synchronize_after(sink, copy_name(what));
  }
  if (!target.is_same(dst)) {
    DeviceContext context(dst.device());
    on_device(target, dst);
  }
  if (!non_blocking) sink.synchronize();
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0) return dst;
  if (self.is_same(dst)) return dst;
  at::Tensor src = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  at::assert_no_internal_overlap(dst);
  DeviceContext context(dst.is_privateuseone() ? dst.device() : src.device());
  if (src.is_privateuseone() && dst.is_privateuseone()) {
    if (src.device() == dst.device())
      on_device(src, dst);
    else
      across(src, dst, non_blocking);
  } else if (dst.is_privateuseone()) {
    TORCH_CHECK_NOT_IMPLEMENTED(src.is_cpu(), "copy from ", src.device(), " to ", dst.device(),
                                " is not supported; go through the CPU");
    count_user_bytes(dst.device().index(), bytes_of(dst));
    from_host(src, dst, non_blocking);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(dst.is_cpu(), "copy from ", src.device(), " to ", dst.device(),
                                " is not supported; go through the CPU");
    count_user_bytes(src.device().index(), bytes_of(src));
    to_host(src, dst, non_blocking);
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::native::resize_output(dst, self.sizes());
  return copy_from(self, dst, false);
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  DeviceContext context(self.device());
  count_user_bytes(self.device().index(), self.itemsize());
  at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  at::Tensor element = self.dim() == 0 ? self : self.reshape({});
  if (element.is_conj() || element.is_neg()) {
    at::Tensor packed = empty({}, self.scalar_type(), self.device());
    on_device(element, packed);
    element = packed;
  }
  download(element, host, false);
  return host.item();
}

}  // namespace

void copy_within(Stream& stream, const fl_memory& to, const fl_memory& from, uint64_t bytes, const char* what) {
  const auto queue = [&] { return stream.device->adapter->copy_d2d(stream.handle, to, from, bytes); };
  check(*stream.device, locked(stream, queue), what);
  if (debugging())
    debug_copy(stream, what, {device_access(stream, from, bytes, false), device_access(stream, to, bytes, true)});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace fl::bridge
