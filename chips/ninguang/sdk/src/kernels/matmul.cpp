// mm, addmm, bmm, baddbmm for every type. float32, float64 and the half types (as float32) and integers (wrapping) go
// through gemm.h; tiny and skinny products have their own short ways (matmul_small.h), complex a plain loop.
#include <complex>

#include "gemm_bfloat16.h"
#include "kernel.h"
#include "matmul_small.h"

namespace ng {
namespace {

// What a storage type is multiplied and summed in.
template <class S, class = void>
struct SumTypeOf {
  using type = Compute<S>;
};
template <class S>
struct SumTypeOf<S, std::enable_if_t<std::is_integral_v<S>>> {
  using type = std::conditional_t<sizeof(S) <= 4, uint32_t, uint64_t>;
};
template <class S>
using SumType = typename SumTypeOf<S>::type;

// out = beta * self + alpha * a x b over one pair of matrices.
template <class S>
struct Product {
  MatrixView<S> a, b;
  S* out;
  int64_t out_row, out_column;
  MatrixView<S> self;  // data nullptr: none
  GemmShape shape;
  SumType<S> alpha, beta;

  void transpose() {
    std::swap(a, b);
    std::swap(a.row_stride, a.column_stride);
    std::swap(b.row_stride, b.column_stride);
    std::swap(self.row_stride, self.column_stride);
    std::swap(out_row, out_column);
    std::swap(shape.rows, shape.columns);
  }
};

template <class S>
void write_row(const Product<S>& p, int64_t row, int64_t column, int64_t columns, const SumType<S>* sums) {
  using T = SumType<S>;
  S* out = p.out + row * p.out_row + column * p.out_column;
  const bool plain = p.alpha == T(1) && !p.self.data;
  if constexpr (std::is_same_v<S, T>) {
    if (plain && p.out_column == 1 && columns == kGemmColumns<T>) {
      store(out, load(sums));
      store(out + kLanes<T>, load(sums + kLanes<T>));
      return;
    }
  }
  if (!p.self.data) {
    if constexpr (is_half<S>) {
      if (plain && p.out_column == 1) return from_float(sums, out, columns);
    }
    for (int64_t c = 0; c < columns; ++c) out[c * p.out_column] = static_cast<S>(p.alpha * sums[c]);
    return;
  }
  const S* self = p.self.at(row, column);
  if (p.out_column == 1 && p.self.column_stride == 1) {
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = static_cast<S>(p.alpha * sums[c] + p.beta * static_cast<T>(self[c]));
    }
    return;
  }
  for (int64_t c = 0; c < columns; ++c) {
    const T addend = p.beta * static_cast<T>(self[c * p.self.column_stride]);
    out[c * p.out_column] = static_cast<S>(p.alpha * sums[c] + addend);
  }
}

template <class S>
void multiply(Product<S> p, bool parallel) {
  using T = SumType<S>;
  if (p.out_column != 1 && p.out_row == 1) p.transpose();
  const auto write = [&p](int64_t row, int64_t column, int64_t columns, const T* sums) {
    write_row(p, row, column, columns, sums);
  };
  const GemmShape& s = p.shape;
  if (s.depth == 0) {
    const T zeros[64] = {};
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t c = 0; c < s.columns; c += 64) write(r, c, std::min<int64_t>(64, s.columns - c), zeros);
    }
    return;
  }
  if (s.columns <= kSkinnyRows && s.rows > kSkinnyRows) p.transpose();
  if constexpr (!std::is_integral_v<S>) {
    if (s.rows <= kSkinnyRows) return multiply_skinny<T>(p.a, p.b, s, write, parallel);
  }
  const auto finish = [&](int64_t row, int64_t rows, int64_t column, int64_t columns, const T* tile, int64_t ld) {
    for (int64_t r = 0; r < rows; ++r) write(row + r, column, columns, tile + r * ld);
  };
  if constexpr (std::is_same_v<S, float> || std::is_same_v<S, double>) {
    if (s.rows * s.columns * s.depth <= kSmallProduct && s.depth <= kGemmDepth) {
      return multiply_small(p.a, p.b, s, finish);
    }
  }
  if constexpr (std::is_same_v<S, BFloat16>) {
    using Element = GemmElement<S>;
    const GemmShape shape{s.rows, s.columns, depth_in<Element>(s.depth)};
    gemm<Element>(shape, pack_a_for(p.a, s.depth), pack_b_for(p.b, s.depth), finish, parallel);
  } else {
    gemm<T>(s, make_pack_a<T>(p.a), make_pack_b<T>(p.b), finish, parallel);
  }
}

template <class C>
void multiply_complex(const Product<C>& p, C alpha, C beta, bool parallel) {
  using R = typename C::value_type;
  const auto body = [&](int64_t begin, int64_t end) {
    C* sums = scratch<C>(kScratchRow, p.shape.columns);
    for (int64_t r = begin; r < end; ++r) {
      std::fill_n(sums, p.shape.columns, C());
      for (int64_t k = 0; k < p.shape.depth; ++k) {
        const C left = *p.a.at(r, k);
        const R re = left.real(), im = left.imag();
        for (int64_t c = 0; c < p.shape.columns; ++c) {
          const C right = *p.b.at(k, c);
          sums[c] += C(re * right.real() - im * right.imag(), re * right.imag() + im * right.real());
        }
      }
      for (int64_t c = 0; c < p.shape.columns; ++c) {
        const C addend = p.self.data ? beta * *p.self.at(r, c) : C();
        p.out[r * p.out_row + c * p.out_column] = alpha * sums[c] + addend;
      }
    }
  };
  if (!parallel) return body(0, p.shape.rows);
  parallel_for(p.shape.rows, 1.0 * p.shape.columns * p.shape.depth, body);
}

template <class T>
T scalar_as(const ngScalar& s) {
  if (s.kind == 2) return static_cast<T>(s.v.f);
  if (s.kind == 4) return static_cast<T>(s.v.c[0]);
  return static_cast<T>(s.v.i);
}
template <class C>
C complex_as(const ngScalar& s) {
  using R = typename C::value_type;
  if (s.kind == 4) return C(static_cast<R>(s.v.c[0]), static_cast<R>(s.v.c[1]));
  return C(scalar_as<R>(s));
}

template <class S>
struct IsComplex : std::false_type {};
template <class R>
struct IsComplex<std::complex<R>> : std::true_type {};

template <class S>
ngResult run_typed(const Args& args, bool has_self, bool batched) {
  const Tensor &a = args.in[has_self], &b = args.in[has_self + 1], &out = args.out[0];
  const int d = batched;  // position of the row dimension
  Product<S> p{};
  p.a = {a.as<S>(), a.strides[d], a.strides[d + 1]};
  p.b = {b.as<S>(), b.strides[d], b.strides[d + 1]};
  p.out = out.as<S>();
  p.out_row = out.strides[d], p.out_column = out.strides[d + 1];
  p.shape = {out.sizes[d], out.sizes[d + 1], a.sizes[d + 1]};
  p.alpha = SumType<S>(1), p.beta = SumType<S>(0);
  std::complex<double> alpha = 1, beta = 0;
  const Tensor* self = nullptr;
  if (has_self) {
    if constexpr (IsComplex<S>::value) {
      beta = complex_as<std::complex<double>>(args.attrs[0]), alpha = complex_as<std::complex<double>>(args.attrs[1]);
      if (beta != 0.0) self = &args.in[0];
    } else {
      using Scalar = std::conditional_t<std::is_integral_v<S>, int64_t, double>;
      p.beta = static_cast<SumType<S>>(scalar_as<Scalar>(args.attrs[0]));
      p.alpha = static_cast<SumType<S>>(scalar_as<Scalar>(args.attrs[1]));
      if (p.beta != SumType<S>(0)) self = &args.in[0];
    }
  }
  if (self) p.self = {self->as<S>(), self->strides[d], self->strides[d + 1]};
  const auto one = [&](int64_t index, bool parallel) {
    Product<S> item = p;
    if (batched) {
      item.a.data += index * a.strides[0];
      item.b.data += index * b.strides[0];
      item.out += index * out.strides[0];
      if (self) item.self.data += index * self->strides[0];
    }
    if constexpr (IsComplex<S>::value) {
      multiply_complex(item, S(alpha), S(beta), parallel);
    } else {
      multiply(item, parallel);
    }
  };
  const int64_t batch = batched ? out.sizes[0] : 1;
  const double cost = 0.01 * p.shape.rows * p.shape.columns * (p.shape.depth + 20) + 20;
  // Many small products: one core each. Few large ones: all cores on each.
  if (batch >= 4 * cores() || (batch > 1 && batch % cores() == 0) || cost < 20000) {
    parallel_for(batch, cost, [&](int64_t begin, int64_t end) {
      const bool alone = begin == 0 && end == batch;
      for (int64_t i = begin; i < end; ++i) one(i, alone && cost >= 20000);
    });
  } else {
    for (int64_t i = 0; i < batch; ++i) one(i, true);
  }
  return NG_SUCCESS;
}

template <bool kSelf, bool kBatched>
ngResult run_matmul(const Args& args) {
  switch (args.in[kSelf].type) {
    case NG_UINT8:
      return run_typed<uint8_t>(args, kSelf, kBatched);
    case NG_INT8:
      return run_typed<int8_t>(args, kSelf, kBatched);
    case NG_INT16:
      return run_typed<int16_t>(args, kSelf, kBatched);
    case NG_INT32:
      return run_typed<int32_t>(args, kSelf, kBatched);
    case NG_INT64:
      return run_typed<int64_t>(args, kSelf, kBatched);
    case NG_FLOAT16:
      return run_typed<Half>(args, kSelf, kBatched);
    case NG_BFLOAT16:
      return run_typed<BFloat16>(args, kSelf, kBatched);
    case NG_FLOAT32:
      return run_typed<float>(args, kSelf, kBatched);
    case NG_FLOAT64:
      return run_typed<double>(args, kSelf, kBatched);
    case NG_COMPLEX64:
      return run_typed<std::complex<float>>(args, kSelf, kBatched);
    case NG_COMPLEX128:
      return run_typed<std::complex<double>>(args, kSelf, kBatched);
    default:
      return fail(NG_ERROR_NOT_SUPPORTED, "matmul: type %d", args.in[kSelf].type);
  }
}

NG_KERNEL("mm", kRealTypes | kComplexTypes, run_matmul<false, false>);
NG_KERNEL("addmm", kRealTypes | kComplexTypes, run_matmul<true, false>);
NG_KERNEL("bmm", kRealTypes | kComplexTypes, run_matmul<false, true>);
NG_KERNEL("baddbmm", kRealTypes | kComplexTypes, run_matmul<true, true>);

}  // namespace
}  // namespace ng
