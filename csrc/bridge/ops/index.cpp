// Indexing by tensors: index, index_put, index_fill, and reading along one dimension: gather, index_select,
// masked_scatter_. index and index_put are one elementwise walk over the result or the values, in which index operands
// add offsets. Writing along one dimension is scatter.cpp, masks to coordinates nonzero.cpp.
#include <ATen/ExpandUtils.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/index_fill_ops.h>
#include <ATen/ops/index_meta.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/masked_scatter_ops.h>
#include <torch/library.h>

#include "bridge/ops/operands.h"
#include "bridge/structured.h"
#include "lowerings.h"

namespace fl::bridge {

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

// The operands of an iterator in the ABI's terms: one order of dims for all, fastest last, strides in elements.
class Walk {
 public:
  explicit Walk(at::TensorIteratorBase& iter) : iter_(iter), ndim_(iter.ndim()), dims_(ndim_ * (1 + iter.ntensors())) {
    for (int d = 0; d < ndim_; ++d) dims_[d] = iter.shape()[ndim_ - 1 - d];
  }

  fl_tensor operand(Device& device, int arg) {
    const auto itemsize = static_cast<int64_t>(iter_.element_size(arg));
    int64_t* strides = dims_.data() + static_cast<size_t>(ndim_) * (1 + arg);
    for (int d = 0; d < ndim_; ++d) strides[d] = iter_.strides(arg)[ndim_ - 1 - d] / itemsize;
    void* address = iter_.data_ptr(arg);
    const auto place = reinterpret_cast<uintptr_t>(address) | 4096u;
    fl_tensor t{};
    t.memory = memory_of(device, iter_.tensor_base(arg), address);
    t.sizes = dims_.data();
    t.strides = strides;
    t.ndim = ndim_;
    t.dtype = abi_dtype(iter_.dtype(arg));
    t.alignment = static_cast<uint32_t>(place & (~place + 1));
    return t;
  }

 private:
  at::TensorIteratorBase& iter_;
  int ndim_;
  c10::SmallVector<int64_t, 40> dims_;
};

// iter: (output, indices …) with `value`, else (output, input, indices …). sizes and element strides: one per index.
bool lower_indexed(Uniop uniop, at::TensorIteratorBase& iter, at::IntArrayRef sizes, at::IntArrayRef strides,
                   const c10::Scalar* value, std::optional<bool> accumulate, int overload) {
  Device& device = fl::device(iter.device(0).index());
  if (iter.numel() == 0) {
    count(device.index, overload, Tier::Native);
    return true;
  }
  Walk walk(iter);
  const c10::ScalarType type = iter.dtype(0);
  Call call(uniop, static_cast<c10::DeviceIndex>(device.index));
  if (value != nullptr) call.immediate(*value, type);
  for (int arg = 1; arg < iter.ntensors(); ++arg) call.raw_in(walk.operand(device, arg));
  call.raw_out(walk.operand(device, 0)).attrs(sizes).attrs(strides);
  if (accumulate) call.attr(*accumulate);
  return call.launch(type, overload);
}

// ---- index

template <class Op>
bool lower_index(Op& op, const at::Tensor& self, const Indices& indices, int overload) {
  const auto plan = op.meta(self, at::IOptTensorListRef(indices));
  at::DimVector strides = plan.strides;  // in bytes
  for (int64_t& stride : strides) stride /= static_cast<int64_t>(self.itemsize());
  return lower_indexed(Uniop::index, op, plan.sizes, strides, nullptr, std::nullopt, overload);
}

at::Tensor index_tensor(const at::Tensor& self, const Indices& indices) {
  static const int overload = overload_id("aten::index.Tensor");
  Functional<at::meta::structured_index_Tensor, 1, true> op;
  if (!lower_index(op, self, indices, overload)) return next_tier<at::_ops::index_Tensor>(self, indices);
  return std::move(op.outputs[0]);
}

at::Tensor& index_tensor_out(const at::Tensor& self, const Indices& indices, at::Tensor& out) {
  static const int overload = overload_id("aten::index.Tensor_out");
  Out<at::meta::structured_index_Tensor, 1, true> op({&out});
  if (!lower_index(op, self, indices, overload)) return next_tier<at::_ops::index_Tensor_out>(self, indices, out);
  return out;
}

// ---- index_put

// self with the indexed dims replaced by the indices' common shape (stride 0), and what the indices point into.
struct Indexed {
  at::Tensor self;
  std::vector<at::Tensor> indices;
  at::DimVector sizes, strides;
};

std::vector<at::Tensor> broadcast_indices(const at::Tensor& self, const Indices& indices) {
  at::native::checkIndexTensorTypes(at::IOptTensorListRef(indices), /*allow_int=*/true);
  auto expanded = at::native::expandTensors(self, at::IOptTensorListRef(indices), /*ensure_same_device=*/true);
  const auto given = expanded;
  try {
    expanded = at::expand_outplace(expanded);
  } catch (const c10::Error&) {
    std::ostringstream shapes;
    const char* separator = "";
    for (const at::Tensor& t : given) {
      if (!t.defined()) continue;
      shapes << separator << t.sizes();
      separator = ", ";
    }
    TORCH_CHECK_INDEX(false, "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                      shapes.str());
  }
  for (at::Tensor& t : expanded)
    if (t.defined() && t.scalar_type() == c10::kInt) t = t.to(c10::kLong);
  return expanded;
}

Indexed plan_indexing(at::Tensor self, const Indices& list) {
  auto indices = broadcast_indices(self, list);
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  indices.resize(self.dim());
  if (!at::native::hasContiguousSubspace(indices))
    std::tie(self, indices) = at::native::transposeToFront(self, indices);
  Indexed plan;
  at::DimVector sizes, strides;
  int64_t before = 0, after = 0;
  at::IntArrayRef shape;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!indices[d].defined()) {
      (plan.sizes.empty() ? before : after)++;
      sizes.push_back(self.size(d));
      strides.push_back(self.stride(d));
      continue;
    }
    if (plan.sizes.empty()) {
      shape = indices[d].sizes();
      sizes.append(shape.begin(), shape.end());
      strides.append(shape.size(), 0);
    }
    plan.sizes.push_back(self.size(d));
    plan.strides.push_back(self.stride(d));
  }
  const bool nothing = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (int64_t size : plan.sizes)
    TORCH_CHECK_INDEX(size > 0 || nothing, "index is out of bounds for dimension with size 0");
  plan.self = self.as_strided(sizes, strides);
  for (const at::Tensor& t : indices) {
    if (!t.defined()) continue;
    at::DimVector view_sizes(before, 1), view_strides(before, 0);
    view_sizes.append(t.sizes().begin(), t.sizes().end());
    view_strides.append(t.strides().begin(), t.strides().end());
    view_sizes.append(after, 1);
    view_strides.append(after, 0);
    plan.indices.push_back(t.as_strided(view_sizes, view_strides));
  }
  return plan;
}

// The one mask among `indices`, with dims added to broadcast against self; undefined if there is anything else.
at::Tensor only_mask(const at::Tensor& self, const Indices& indices) {
  at::Tensor mask;
  int64_t dim = 0, after = 0;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index || !index->defined()) {
      ++(mask.defined() ? after : dim);
      continue;
    }
    if (mask.defined() || index->device() != self.device() || index->scalar_type() != c10::kBool) return {};
    mask = *index;
    if (dim + mask.dim() > self.dim()) return {};
    for (int64_t d = 0; d < mask.dim(); ++d)
      if (mask.size(d) != self.size(dim + d)) return {};  // the general way reports it
  }
  if (!mask.defined() || dim + mask.dim() + after > self.dim()) return {};
  for (int64_t d = dim + mask.dim(); d < self.dim(); ++d) mask = mask.unsqueeze(-1);
  return mask;
}

at::TensorIterator index_put_iterator(const Indexed& plan, const at::Tensor* values) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).resize_outputs(false).check_all_same_dtype(false).add_output(plan.self);
  if (values != nullptr) config.add_const_input(*values);
  for (const at::Tensor& index : plan.indices) config.add_const_input(index);
  return config.build();
}

void check_values(const at::Tensor& self, const Indices& indices, const at::Tensor& values) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    TORCH_WARN(
        "Use of index_put_ on expanded tensors is deprecated. Please clone() the tensor before performing this "
        "operation. This also applies to advanced indexing e.g. tensor[indices] = tensor");
  }
  at::assert_no_overlap(self, values);
  for (const std::optional<at::Tensor>& index : indices)
    if (index && index->defined()) at::assert_no_overlap(self, *index);
}

at::Tensor& index_put_impl(at::Tensor& self, const Indices& indices, const at::Tensor& given, bool accumulate,
                           bool unsafe) {
  static const int overload = overload_id("aten::_index_put_impl_");
  check_values(self, indices, given);
  const bool elsewhere = given.dim() == 0 && !given.is_cpu() && given.device() != self.device();
  const at::Tensor values = elsewhere ? given.to(self.device()) : given;
  const bool host_value = values.device().is_cpu() && values.dim() == 0;
  if (!accumulate && values.numel() == 1 && (host_value || values.scalar_type() == self.scalar_type())) {
    // One value through one mask needs no coordinates, whose number the host would have to wait for.
    const at::Tensor mask = only_mask(self, indices);
    if (mask.defined()) return self.masked_fill_(mask, values.reshape({}));
  }
  const Indexed plan = plan_indexing(self, indices);
  TORCH_CHECK(at::is_expandable_to(values.sizes(), plan.self.sizes()), "shape mismatch: value tensor of shape ",
              values.sizes(), " cannot be broadcast to indexing result of shape ", plan.self.sizes());
  TORCH_CHECK(values.scalar_type() == self.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  if (plan.indices.empty()) {
    if (accumulate)
      self.add_(values);
    else
      self.copy_(values);
    return self;
  }
  std::optional<c10::Scalar> value;
  if (host_value) value = values.item();
  auto iter = index_put_iterator(plan, host_value ? nullptr : &values);
  if (lower_indexed(Uniop::index_put, iter, plan.sizes, plan.strides, value ? &*value : nullptr, accumulate, overload))
    return self;
  return next_tier<at::_ops::_index_put_impl_>(self, indices, values, accumulate, unsafe);
}

// ---- index_fill: index_put of one value along one dimension, which also knows negative indices

bool fill_along(at::Tensor& self, int64_t dim, const at::Tensor& index, const c10::Scalar& value, int overload) {
  if (index.numel() == 0 || self.numel() == 0) {
    count_native_call(self, overload);
    return true;
  }
  at::DimVector sizes(sizes_along(self)), strides(strides_along(self)), index_strides(sizes.size(), 0);
  const int64_t size = sizes[dim], stride = strides[dim];
  sizes[dim] = index.numel();
  strides[dim] = 0;
  index_strides[dim] = index.dim() == 0 ? 0 : index.stride(0);
  Call call(Uniop::index_put, self);
  call.immediate(value, self.scalar_type()).in(index, sizes, index_strides).out(self, sizes, strides);
  return call.attr(size).attr(stride).attr(false).launch(self.scalar_type(), overload);
}

at::Tensor& index_fill_scalar(at::Tensor& self, int64_t dim, const at::Tensor& index, const c10::Scalar& value) {
  static const int overload = overload_id("aten::index_fill_.int_Scalar");
  TORCH_CHECK_INDEX(index.scalar_type() == c10::kLong, "index_fill_(): Expected dtype int64 for index.");
  at::assert_no_overlap(self, index);
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    TORCH_WARN(
        "Use of index_fill_ on expanded tensors is deprecated. Please clone() the tensor before performing this "
        "operation. This also applies to advanced indexing e.g. tensor[mask] = scalar");
  }
  TORCH_CHECK(self.is_complex() || !value.isComplex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  TORCH_CHECK(self.device() == index.device(),
              "index_fill_(): self and index value tensors should have same device type, but got "
              "self tensor device type ",
              self.device(), " and index value tensor device type ", index.device());
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
  if (!fill_along(self, dim, index, value, overload))
    return next_tier<at::_ops::index_fill__int_Scalar>(self, dim, index, value);
  return self;
}

at::Tensor& index_fill_tensor(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  return self.index_fill_(dim, index, value.item());
}

// ---- index_select

void check_index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(self.dim() > 0 || index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ",
              index.numel(), " value(s)");
  TORCH_CHECK(index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt,
              "index_select(): Expected dtype int32 or int64 for index");
  check_device("index_select", "index", index, self);
  TORCH_CHECK(index.numel() == 0 || self.dim() == 0 || self.size(dim) > 0,
              "index_select(): self indexing axis dim should be positive");
}

at::DimVector index_select_sizes(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  at::DimVector sizes(self.sizes());
  if (!sizes.empty()) sizes[dim] = index.numel();
  return sizes;
}

bool lower_index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& out,
                        int overload) {
  if (out.numel() == 0) {
    count_native_call(self, overload);
    return true;
  }
  Call call(Uniop::index_select, self);
  in_along(call, self);
  in_along(call, index);
  return out_along(call, out).attr(dim).launch(self.scalar_type(), overload);
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  static const int overload = overload_id("aten::index_select");
  dim = at::maybe_wrap_dim(dim, self.dim());
  check_index_select(self, dim, index);
  const at::Tensor out = empty_like(self, index_select_sizes(self, dim, index));
  return lower_index_select(self, dim, index, out, overload) ? out
                                                             : next_tier<at::_ops::index_select>(self, dim, index);
}

at::Tensor& index_select_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  static const int overload = overload_id("aten::index_select.out");
  dim = at::maybe_wrap_dim(dim, self.dim());
  check_index_select(self, dim, index);
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "index_select(): self and result must have the same scalar type");
  check_out("index_select", out, self.scalar_type(), self);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, index);
  resize_to(out, index_select_sizes(self, dim, index));
  if (!lower_index_select(self, dim, index, out, overload))
    return next_tier<at::_ops::index_select_out>(self, dim, index, out);
  return out;
}

// ---- masked_scatter_: the next element of source goes where the mask is set

at::Tensor& masked_scatter(at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  static const int overload = overload_id("aten::masked_scatter_");
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter_: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  check_device("masked_scatter_", "mask", mask, self);
  check_device("masked_scatter_", "source", source, self);
  at::assert_no_internal_overlap(self);
  const auto expanded = at::expand_inplace(self, mask, "masked_scatter_");
  if (!has_kernel(Uniop::nonzero, self, c10::kBool, c10::kLong) || !has_kernel(Uniop::index_put, self)) {
    return next_tier<at::_ops::masked_scatter_>(self, mask, source);
  }
  const at::Tensor places = expanded->nonzero();
  TORCH_CHECK(places.size(0) <= source.numel(), "Number of elements of source < number of ones in mask");
  Indices indices;
  for (int64_t d = 0; d < self.dim(); ++d) indices.push_back(places.select(1, d));
  if (self.dim() == 0) {
    if (places.size(0) > 0) self.copy_(source.reshape({-1}).select(0, 0));
  } else if (places.size(0) > 0) {
    self.index_put_(indices, source.reshape({-1}).narrow(0, 0, places.size(0)));
  }
  count_native_call(self, overload);
  return self;
}

}  // namespace

namespace lower {

bool gather(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool, const at::Tensor& out) {
  check_device("gather", "index", index, self);
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(self.numel() > 0, "gather(): index is out of bounds for dimension ", dim, " with size 0");
  Call call(Uniop::gather, self);
  in_along(call, self);
  in_along(call, index);
  return out_along(call, out).attr(dim).launch(self.scalar_type());
}

}  // namespace lower

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("index.Tensor", index_tensor);
  m.impl("index.Tensor_out", index_tensor_out);
  m.impl("_index_put_impl_", index_put_impl);
  m.impl("index_fill_.int_Scalar", index_fill_scalar);
  m.impl("index_fill_.int_Tensor", index_fill_tensor);
  m.impl("index_select", index_select);
  m.impl("index_select.out", index_select_out);
  m.impl("masked_scatter_", masked_scatter);
}

}  // namespace fl::bridge
