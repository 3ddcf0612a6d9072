// Small helpers shared by the hand-written lowerings in ops/.
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>

#include "bridge/call.h"
#include "bridge/factory.h"
#include "bridge/route.h"

namespace fl::bridge {

// True if the device has a kernel for these types: ask before allocating or composing several calls.
inline bool has_kernel(Uniop uniop, const at::Tensor& like, c10::ScalarType in, c10::ScalarType out) {
  return fl::device(like.device().index()).kernel(static_cast<int>(uniop), to_dtype(in), to_dtype(out)) != nullptr;
}
inline bool has_kernel(Uniop uniop, const at::Tensor& like) {
  return has_kernel(uniop, like, like.scalar_type(), like.scalar_type());
}

inline void count_native_call(const at::Tensor& t, int overload) { count(t.device().index(), overload, Tier::Native); }

// fill of a whole tensor by the native kernel; false without one.
bool lower_fill(const at::Tensor& out, const c10::Scalar& value);

}  // namespace fl::bridge
