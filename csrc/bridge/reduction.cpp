// The table of reductions: operation and type of the caller to operation and type on the wire, and the conversions on
// either side of it.
#include "bridge/reduction.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace fl::bridge {

namespace {

using c10d::ReduceOp;

const char* op_name(const ReduceOp& op) {
  static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op.op_ <= ReduceOp::PREMUL_SUM ? kNames[op.op_] : "an unknown operation";
}

bool is_bitwise(const ReduceOp& op) {
  return op.op_ == ReduceOp::BAND || op.op_ == ReduceOp::BOR || op.op_ == ReduceOp::BXOR;
}
bool is_sum(const ReduceOp& op) {
  return op.op_ == ReduceOp::SUM || op.op_ == ReduceOp::AVG || op.op_ == ReduceOp::PREMUL_SUM;
}
bool is_order(const ReduceOp& op) { return op.op_ == ReduceOp::MIN || op.op_ == ReduceOp::MAX; }

// Undefined: there is no exact way.
at::ScalarType wire_type(const ReduceOp& op, at::ScalarType type) {
  const auto none = at::ScalarType::Undefined;
  if (type == at::kBool) return op.op_ == ReduceOp::AVG || op.op_ == ReduceOp::PREMUL_SUM ? none : at::kByte;
  if (at::isComplexType(type)) return is_sum(op) ? (type == at::kComplexDouble ? at::kDouble : at::kFloat) : none;
  if (at::isFloatingType(type)) return is_bitwise(op) ? none : type == at::kDouble ? at::kDouble : at::kFloat;
  if (!at::isIntegralType(type, false) || op.op_ == ReduceOp::PREMUL_SUM) return none;
  if (type == at::kUInt64) return is_order(op) || op.op_ == ReduceOp::AVG ? none : at::kLong;  // same bits modulo 2^64
  if (op.op_ == ReduceOp::AVG) return at::kLong;  // no wrap before the division
  switch (type) {
    case at::kShort:
    case at::kUInt16: return at::kInt;
    case at::kUInt32: return at::kLong;
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong: return type;
    default: return none;
  }
}

// On bytes that are 0 or 1 a sum is "any" and a product "all", as in NumPy.
ReduceOp::RedOpType wire_op(const ReduceOp& op, at::ScalarType type) {
  if (type == at::kBool && op.op_ == ReduceOp::SUM) return ReduceOp::MAX;
  if (type == at::kBool && op.op_ == ReduceOp::PRODUCT) return ReduceOp::MIN;
  return is_sum(op) ? ReduceOp::SUM : op.op_;
}

}  // namespace

Reduction plan_reduction(const ReduceOp& op, at::ScalarType type, const char* title) {
  const at::ScalarType wire = op.op_ <= ReduceOp::PREMUL_SUM ? wire_type(op, type) : at::ScalarType::Undefined;
  TORCH_CHECK_NOT_IMPLEMENTED(wire != at::ScalarType::Undefined, title, " with ", op_name(op), " of ", type,
                              " is not available while collectives are staged through gloo; convert the tensor first");
  return {wire, ReduceOp(wire_op(op, type)), op};
}

at::Tensor download(const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor host = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  host.copy_(tensor);
  return host;
}

at::Tensor pack(const Reduction& reduction, const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor host = download(tensor);
  if (host.is_complex()) host = at::view_as_real(host);
  host = host.scalar_type() == at::kUInt64 ? host.view(at::kLong) : host.to(reduction.wire);
  if (reduction.wanted.op_ != ReduceOp::PREMUL_SUM) return host;
  const auto* factor = static_cast<const c10d::PreMulSumSupplement*>(reduction.wanted.supplement_.get());
  TORCH_CHECK(factor != nullptr, "PREMUL_SUM without its factor");
  if (!factor->tensor_factor.defined()) return host.mul_(factor->double_factor);
  return host.mul_(download(factor->tensor_factor).view(at::IntArrayRef{}));
}

void finish_reduction(const Reduction& reduction, at::Tensor wire, int group_size) {
  if (!reduction.average()) return;
  if (at::isFloatingType(wire.scalar_type())) wire.div_(group_size);
  else wire.div_(group_size, "trunc");
}

at::Tensor unpack(const at::Tensor& wire, const at::Tensor& like) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (like.scalar_type() == at::kUInt64) return wire.view(like.sizes()).view(at::kUInt64);
  if (!like.is_complex()) return wire.view(like.sizes());
  auto sizes = like.sizes().vec();
  sizes.push_back(2);
  return at::view_as_complex(wire.view(sizes));
}

}  // namespace fl::bridge
