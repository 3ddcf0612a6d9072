// nll_loss and its backward over [N, C, *]: per position, the negated and weighted input of the target's class. Sums
// run in double over parts that depend on nothing but the number of positions, so they are the same on any machine.
#include "index_walk.h"

namespace ng {
namespace {

enum Reduction { kNone = 0, kMean = 1, kSum = 2 };

// The positions (N, *) of a loss with the class dimension taken out. Operands: input-like, target, out-like.
struct Positions {
  Walk walk{3};
  int64_t classes, class_stride;
  IndexReader target;
  int64_t ignore;

  // `per_position`: the operand with one element per position, or nullptr.
  Positions(const Tensor& input, const Tensor& target_tensor, const Tensor* per_position, int64_t ignore)
      : target(target_tensor), ignore(ignore) {
    const Shape in(input), at(target_tensor);
    const int class_dim = input.ndim > 1 ? 1 : 0;
    classes = in.sizes[class_dim];
    class_stride = in.strides[class_dim];
    for (int d = 0, k = 0; d < in.ndim; ++d) {
      if (d == class_dim) continue;
      const int64_t strides[3] = {in.strides[d], at.strides[k], per_position ? per_position->strides[k] : 0};
      walk.add(in.sizes[d], strides);
      ++k;
    }
  }

  // body(input offset, class, per-position offset), -1 as the class where it is ignored or, reported, out of range.
  template <class Body>
  void each(int64_t begin, int64_t end, IndexCheck& check, const Body& body) const {
    const int64_t in_stride = walk.inner_stride(0), target_stride = walk.inner_stride(1);
    const int64_t out_stride = walk.inner_stride(2);
    walk.run(begin, end, [&](const int64_t* at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t index = target[at[1] + i * target_stride];
        const bool used = index != ignore && check(index, classes, 1);
        body(at[0] + i * in_stride, used ? index : -1, at[2] + i * out_stride);
      }
    });
  }
};

template <class T>
struct Weights {
  const T* data;
  int64_t stride;
  explicit Weights(const Tensor& t) : data(t.as<const T>()), stride(data && t.ndim > 0 ? t.strides[0] : 0) {}
  Compute<T> operator[](int64_t c) const { return data ? static_cast<Compute<T>>(data[c * stride]) : Compute<T>(1); }
};

// ---- forward ----

template <class T>
ngResult forward(const Args& args) {
  using C = Compute<T>;
  const int64_t reduction = args.i(0);
  const Tensor& out = args.out[0];
  const Positions positions(args.in[0], args.in[1], reduction == kNone ? &out : nullptr, args.i(1));
  const Weights<T> weights(args.in[2]);
  const T* input = args.in[0].as<const T>();
  IndexCheck check;
  if (reduction == kNone) {
    parallel_for(positions.walk.numel, 4.0, [&](int64_t begin, int64_t end) {
      positions.each(begin, end, check, [&](int64_t in, int64_t target, int64_t to) {
        C loss(0);
        if (target >= 0) loss = -static_cast<C>(input[in + target * positions.class_stride]) * weights[target];
        out.as<T>()[to] = T(loss);
      });
    });
    if (args.out[1]) *args.out[1].as<T>() = T(C(0));
    return check.result();
  }
  constexpr int64_t kParts = 64;
  double losses[kParts] = {}, totals[kParts] = {};
  const int64_t n = positions.walk.numel, parts = std::min(kParts, (n + 2047) / 2048);
  parallel_for(parts, 4.0 * static_cast<double>(n) / static_cast<double>(parts), [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      double loss = 0, total = 0;
      positions.each(n * p / parts, n * (p + 1) / parts, check, [&](int64_t in, int64_t target, int64_t) {
        if (target < 0) return;
        const double weight = static_cast<double>(weights[target]);
        loss -= static_cast<double>(input[in + target * positions.class_stride]) * weight;
        total += weight;
      });
      losses[p] = loss, totals[p] = total;
    }
  });
  double loss = 0, total = 0;
  for (int64_t p = 0; p < parts; ++p) loss += losses[p], total += totals[p];
  *out.as<T>() = T(static_cast<C>(reduction == kMean ? loss / total : loss));
  if (args.out[1]) *args.out[1].as<T>() = T(static_cast<C>(total));
  return check.result();
}

// ---- backward ----

template <class T>
void fill_zero(const Tensor& t) {
  const Shape shape(t);
  int order[kMaxDims];
  order_by_stride(shape.ndim, shape.strides, order);
  Walk walk(1);
  for (int d = 0; d < shape.ndim; ++d) walk.add(shape.sizes[order[d]], &shape.strides[order[d]]);
  const int64_t stride = walk.inner_stride(0);
  T* data = t.as<T>();
  parallel_for(walk.numel, 0.1 * sizeof(T), [&](int64_t begin, int64_t end) {
    walk.run(begin, end, [&](const int64_t* at, int64_t n) {
      if (stride == 1) std::fill_n(data + at[0], n, T(Compute<T>(0)));
      else for (int64_t i = 0; i < n; ++i) data[at[0] + i * stride] = T(Compute<T>(0));
    });
  });
}

template <class T>
ngResult backward(const Args& args) {
  using C = Compute<T>;
  const int64_t reduction = args.i(0);
  const Tensor& grad_output = args.in[0];
  const Positions positions(args.out[0], args.in[1], reduction == kNone ? &grad_output : nullptr, args.i(1));
  const Weights<T> weights(args.in[2]);
  const T* grads = grad_output.as<const T>();
  T* out = args.out[0].as<T>();
  fill_zero<T>(args.out[0]);
  const C divisor = reduction == kMean ? static_cast<C>(*args.in[3].as<const T>()) : C(1);
  IndexCheck check;
  parallel_for(positions.walk.numel, 4.0, [&](int64_t begin, int64_t end) {
    positions.each(begin, end, check, [&](int64_t to, int64_t target, int64_t from) {
      if (target < 0) return;
      const C grad = static_cast<C>(grads[from]) / divisor;
      out[to + target * positions.class_stride] = T(-grad * weights[target]);
    });
  });
  return check.result();
}

ngResult run_nll_loss(const Args& args) {
  return for_float_types(args.in[0].type, [&](auto tag) { return forward<typename decltype(tag)::type>(args); });
}

ngResult run_nll_loss_backward(const Args& args) {
  return for_float_types(args.out[0].type, [&](auto tag) { return backward<typename decltype(tag)::type>(args); });
}

// All floats of one type: input-like, weight and the sum of weights.
ngResult accepts_nll(const Args& args) {
  const ngDataType type = args.in[0].type;
  bool fits = is_index_type(args.in[1]) && (!args.in[2] || args.in[2].type == type) && args.out[0].type == type;
  if (args.num_in > 3) fits &= !args.in[3] || args.in[3].type == type;
  if (args.num_out > 1) fits &= !args.out[1] || args.out[1].type == type;
  return fits ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

NG_KERNEL("nll_loss", kFloatTypes, run_nll_loss, 0, accepts_nll);
NG_KERNEL("nll_loss_backward", kFloatTypes, run_nll_loss_backward, 0, accepts_nll);

}  // namespace
}  // namespace ng
