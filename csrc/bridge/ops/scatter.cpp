// Writing through an index along one dimension: scatter*, index_add, index_copy. The host copies self into out first;
// the kernel changes what the index names. Reading through an index is index.cpp.
#include <ATen/ops/div.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "bridge/ops/operands.h"
#include "lowerings.h"

namespace fl::bridge::lower {

namespace {

enum Mode : int64_t { kSum, kProduct, kLargest, kSmallest };  // scatter_reduce's attribute

void start_from(const at::Tensor& self, const at::Tensor& out) {
  if (!out.is_same(self)) out.copy_(self);
}

void check_operands(const char* method, const at::Tensor& self, const at::Tensor& index, const at::Tensor& src = {}) {
  check_device(method, "index", index, self);
  check_device(method, "src", src, self);
}

int64_t wrapped(int64_t dim, const at::Tensor& self) { return at::maybe_wrap_dim(dim, self.dim()); }

// What is scattered: a tensor, of which the part that index covers is read, or one value.
struct Source {
  const at::Tensor* tensor = nullptr;
  c10::Scalar value;

  void add_to(Call& call, const at::Tensor& index, c10::ScalarType type) const {
    if (tensor == nullptr) call.immediate(value, type);
    else call.in(*tensor, sizes_along(index), strides_along(*tensor));
  }
};

bool scatter_into(const at::Tensor& out, int64_t dim, const at::Tensor& index, const Source& src) {
  Call call(Uniop::scatter, out);
  in_along(call, index);
  src.add_to(call, index, out.scalar_type());
  return out_along(call, out).attr(wrapped(dim, out)).launch(out.scalar_type());
}

bool reduce_into(const at::Tensor& out, int64_t dim, const at::Tensor& index, const Source& src, Mode mode) {
  Call call(Uniop::scatter_reduce, out);
  in_along(call, index);
  src.add_to(call, index, out.scalar_type());
  return out_along(call, out).attr(wrapped(dim, out)).attr(static_cast<int64_t>(mode)).launch(out.scalar_type());
}

bool scatter(const at::Tensor& self, int64_t dim, const at::Tensor& index, const Source& src, const at::Tensor& out) {
  if (index.numel() > 0 && !has_kernel(Uniop::scatter, out)) return false;
  start_from(self, out);
  return index.numel() == 0 || scatter_into(out, dim, index, src);
}

bool reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index, const Source& src, Mode mode,
            const at::Tensor& out) {
  if (index.numel() > 0 && !has_kernel(Uniop::scatter_reduce, out)) return false;
  start_from(self, out);
  return index.numel() == 0 || reduce_into(out, dim, index, src, mode);
}

Mode old_mode(c10::string_view reduce) { return reduce == "add" ? kSum : kProduct; }  // meta() allows no others

Mode new_mode(c10::string_view reduce) {
  if (reduce == "sum" || reduce == "mean") return kSum;
  if (reduce == "prod") return kProduct;
  return reduce == "amax" ? kLargest : kSmallest;
}

// The value that does not change a reduction, for places whose own value must not count.
c10::Scalar neutral(Mode mode, c10::ScalarType type) {
  if (mode == kSum) return 0;
  if (mode == kProduct) return 1;
  const bool low = mode == kLargest;
  if (c10::isFloatingType(type)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return low ? -infinity : infinity;
  }
  switch (type) {
    case c10::kBool:
      return !low;
    case c10::kByte:
      return low ? 0 : 255;
    case c10::kChar:
      return low ? -128 : 127;
    case c10::kShort:
      return low ? -32768 : 32767;
    case c10::kInt:
      return low ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
    default:
      return low ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
  }
}

// out holds sums: divides each by how many values went in.
void divide_by_count(const at::Tensor& out, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                     bool include_self) {
  at::Tensor count = include_self ? at::ones_like(out) : at::zeros_like(out);
  count.scatter_add_(dim, index, at::ones_like(src));
  count.masked_fill_(count.eq(0), 1);
  at::Tensor target = out;
  if (out.is_floating_point() || out.is_complex()) target.div_(count);
  else target.div_(count, "floor");
}

// index_add and index_copy: an index along one dimension, a source of as many slices.
template <class... Attr>
bool write_slices(Uniop uniop, const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                  const at::Tensor& out, const Attr&... attributes) {
  if (index.numel() > 0 && !has_kernel(uniop, out)) return false;
  start_from(self, out);
  if (index.numel() == 0) return true;
  Call call(uniop, out);
  in_along(call, index);
  in_along(call, source);
  out_along(call, out).attr(wrapped(dim, out));
  (call.attr(attributes), ...);
  return call.launch(out.scalar_type());
}

}  // namespace

bool scatter_src(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                 const at::Tensor& out) {
  check_operands("scatter", self, index, src);
  return scatter(self, dim, index, {&src, {}}, out);
}

bool scatter_value(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value,
                   const at::Tensor& out) {
  check_operands("scatter", self, index);
  return scatter(self, dim, index, {nullptr, value}, out);
}

bool scatter_add(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                 const at::Tensor& out) {
  check_operands("scatter_add", self, index, src);
  return reduce(self, dim, index, {&src, {}}, kSum, out);
}

bool scatter_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                    c10::string_view reduce_, const at::Tensor& out) {
  check_operands("scatter", self, index, src);
  return reduce(self, dim, index, {&src, {}}, old_mode(reduce_), out);
}

bool scatter_value_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value,
                          c10::string_view reduce_, const at::Tensor& out) {
  check_operands("scatter", self, index);
  return reduce(self, dim, index, {nullptr, value}, old_mode(reduce_), out);
}

bool scatter_reduce_two(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                        c10::string_view reduce_, bool include_self, const at::Tensor& out) {
  check_operands("scatter_reduce", self, index, src);
  if (index.numel() == 0) {
    start_from(self, out);
    return true;
  }
  const Mode mode = new_mode(reduce_);
  if (!has_kernel(Uniop::scatter_reduce, out) || (!include_self && !has_kernel(Uniop::scatter, out))) return false;
  start_from(self, out);
  // If a launch below is declined, the next tier may start over: without include_self it does not read what is set
  // here.
  if (!include_self && !scatter_into(out, dim, index, {nullptr, neutral(mode, out.scalar_type())})) return false;
  if (!reduce_into(out, dim, index, {&src, {}}, mode)) return false;
  if (reduce_ == "mean") divide_by_count(out, dim, index, src, include_self);
  return true;
}

bool index_add(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
               const at::Scalar& alpha, const at::Tensor& out) {
  check_operands("index_add", self, index, source);
  return write_slices(Uniop::index_add, self, dim, index, source, out, alpha);
}

bool index_copy(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                const at::Tensor& out) {
  check_operands("index_copy", self, index, source);
  return write_slices(Uniop::index_copy, self, dim, index, source, out);
}

}  // namespace fl::bridge::lower
