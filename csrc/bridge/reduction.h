// How one reduction runs on a host backend that knows few types: what travels, which operation is asked of it, and what
// is left to do on either side. Halves accumulate as float, averages are sums, booleans are bytes.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace fl::bridge {

struct Reduction {
  at::ScalarType wire;
  c10d::ReduceOp op;      // one that every c10d backend for the CPU has
  c10d::ReduceOp wanted;  // what the caller asked for

  bool average() const { return wanted.op_ == c10d::ReduceOp::AVG; }
  // The host backend can take CPU tensors of this type with the caller's operation as they are.
  bool plain(at::ScalarType type) const { return wire == type && op.op_ == wanted.op_; }
};

// Raises NotImplementedError naming collective, operation and type where no exact way exists.
Reduction plan_reduction(const c10d::ReduceOp& op, at::ScalarType type, const char* title);

// A contiguous host copy in the wire type, pre-scaled for PREMUL_SUM. A complex tensor gets a last dimension of 2.
at::Tensor pack(const Reduction& reduction, const at::Tensor& tensor);
// What is left after the sum, in place.
void finish_reduction(const Reduction& reduction, at::Tensor wire, int group_size);
// `wire`, any shape, seen with the shape of `like`; it shares memory and still may have to be converted by a copy.
at::Tensor unpack(const at::Tensor& wire, const at::Tensor& like);

// A contiguous copy on the host, free of autograd.
at::Tensor download(const at::Tensor& tensor);

}  // namespace fl::bridge
