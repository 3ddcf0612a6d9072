// Output handling of structured ATen operators: meta() computes shapes and types and asks for its outputs here.
// Used by the generated wrappers only.
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>

#include <array>

#include "bridge/call.h"
#include "bridge/factory.h"
#include "bridge/route.h"

namespace fl::bridge {

// Iter: S is a TensorIteratorBase, which also wants to hear of its output.
template <class S, int N, bool Iter>
struct Functional final : S {
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    outputs[i] = new_output(sizes, strides, options);
    if constexpr (Iter) S::set_output_raw_strided(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t i) override { return outputs[i]; }
  std::array<at::Tensor, N> outputs;
};

template <class S, int N, bool Iter>
struct Out final : S {
  explicit Out(std::array<const at::Tensor*, N> out) : outputs(out) {}
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    resize_out(*outputs[i], sizes, strides, options);
    if constexpr (Iter) S::set_output_raw_strided(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t i) override { return *outputs[i]; }
  std::array<const at::Tensor*, N> outputs;
};

template <class S, bool Iter>
struct Inplace final : S {
  explicit Inplace(at::Tensor& self) : self_(self) {}
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    check_inplace(self_, sizes, options);
    if constexpr (Iter) S::set_output_raw_strided(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t) override { return self_; }

 private:
  at::Tensor& self_;
};

inline fl_scalar scalar(at::OptionalScalarRef value) { return value.has_value() ? scalar(value.get()) : fl_scalar{}; }

inline void count_native(const at::Tensor& out, int overload) { count(out.device().index(), overload, Tier::Native); }

}  // namespace fl::bridge
