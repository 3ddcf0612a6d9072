// The steps of Adam, AdamW and SGD over many tensors in one pass at the speed of memory. All tensors together are one
// long range that is split over the cores; chunks of half-type tensors are widened to float on the stack.
#include <cmath>

#include "half.h"
#include "kernel.h"
#include "parallel.h"

namespace ng {
namespace {

constexpr int64_t kChunk = 512;  // elements widened at a time

// A tensor's elements [begin, begin + n) in the type they are computed in: in place, or widened and written back.
template <class T, class C>
class Chunk {
 public:
  Chunk(T* data, int64_t n) : data_(data), n_(n) { to_float(data, buffer_, n); }
  C* get() { return buffer_; }
  void put() { from_float(buffer_, data_, n_); }

 private:
  T* data_;
  int64_t n_;
  alignas(64) C buffer_[kChunk];
};
template <class C>
class Chunk<C, C> {
 public:
  Chunk(C* data, int64_t) : data_(data) {}
  C* get() { return data_; }
  void put() {}

 private:
  C* data_;
};

// body(k, begin, n) for the pieces of up to kChunk elements of all tensors, each piece on one core.
template <class Body>
void for_chunks(const Tensor* tensors, int count, double cost, const Body& body) {
  int64_t total = 0;
  for (int k = 0; k < count; ++k) total += tensors[k].numel();
  parallel_for(total, cost, [&](int64_t begin, int64_t end) {
    int64_t start = 0;  // of tensor k in the whole range
    for (int k = 0; k < count && start < end; ++k) {
      const int64_t n = tensors[k].numel();
      const int64_t first = std::max<int64_t>(begin - start, 0), last = std::min(end - start, n);
      for (int64_t at = first; at < last; at += kChunk) body(k, at, std::min(kChunk, last - at));
      start += n;
    }
  });
}

// ---- Adam ----

template <class C>
struct Adam {
  C beta2, grad_share, square_share, eps, decay, keep, step_size, correction;
  bool maximize;

  explicit Adam(const Args& args) {
    const double lr = args.f(0), beta1 = args.f(1), weight_decay = args.f(4), step = args.f(6);
    const bool decoupled = args.i(5) != 0;
    beta2 = static_cast<C>(args.f(2));
    grad_share = static_cast<C>(1.0 - beta1);
    square_share = static_cast<C>(1.0 - args.f(2));
    eps = static_cast<C>(args.f(3));
    decay = static_cast<C>(decoupled ? 0.0 : weight_decay);
    keep = static_cast<C>(decoupled ? 1.0 - lr * weight_decay : 1.0);
    step_size = static_cast<C>(lr / (1.0 - std::pow(beta1, step)));
    correction = static_cast<C>(std::sqrt(1.0 - std::pow(args.f(2), step)));
    maximize = args.i(7) != 0;
  }

  void operator()(const C* grads, C* params, C* means, C* squares, int64_t n) const {
    const C sign = maximize ? C(-1) : C(1);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const C param = params[i] * keep;
      const C grad = sign * grads[i] + (decay != C(0) ? decay * param : C(0));  // 0 * inf is no decay
      const C mean = means[i] + grad_share * (grad - means[i]);
      const C square = beta2 * squares[i] + square_share * grad * grad;
      means[i] = mean;
      squares[i] = square;
      params[i] = param - step_size * mean / (std::sqrt(square) / correction + eps);
    }
  }
};

// P: parameters and gradients, S: the two moments.
template <class P, class S>
ngResult adam_all(const Args& args) {
  using C = Compute<P>;
  const int count = args.num_in;
  const Tensor *params = args.out, *means = args.out + count, *squares = args.out + 2 * count;
  const Adam<C> adam(args);
  for_chunks(params, count, 1.5, [&](int k, int64_t at, int64_t n) {
    Chunk<P, C> grad(args.in[k].as<P>() + at, n), param(params[k].as<P>() + at, n);
    Chunk<S, C> mean(means[k].as<S>() + at, n), square(squares[k].as<S>() + at, n);
    adam(grad.get(), param.get(), mean.get(), square.get(), n);
    param.put();
    mean.put();
    square.put();
  });
  return NG_SUCCESS;
}

ngResult run_adam(const Args& args) {
  const ngDataType type = args.out[0].type, state = args.out[args.num_in].type;
  switch (type) {
    case NG_FLOAT16: return state == type ? adam_all<Half, Half>(args) : adam_all<Half, float>(args);
    case NG_BFLOAT16: return state == type ? adam_all<BFloat16, BFloat16>(args) : adam_all<BFloat16, float>(args);
    case NG_FLOAT32: return adam_all<float, float>(args);
    case NG_FLOAT64: return adam_all<double, double>(args);
    default: return fail(NG_ERROR_NOT_SUPPORTED, "adam: data type %d", static_cast<int>(type));
  }
}

// ---- SGD ----

template <class C>
struct Sgd {
  C lr, momentum, fresh, decay;
  bool nesterov, maximize, first;

  explicit Sgd(const Args& args)
      : lr(static_cast<C>(args.f(0))),
        momentum(static_cast<C>(args.f(1))),
        fresh(static_cast<C>(1.0 - args.f(2))),
        decay(static_cast<C>(args.f(3))),
        nesterov(args.i(4) != 0),
        maximize(args.i(5) != 0),
        first(args.i(6) != 0) {}

  // The gradient with its sign and weight decay; without decay an infinite parameter stays out of it.
  C effective(C grad, C param) const {
    const C signed_grad = maximize ? -grad : grad;
    return decay != C(0) ? signed_grad + decay * param : signed_grad;
  }

  void plain(const C* grads, C* params, int64_t n) const {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) params[i] -= lr * effective(grads[i], params[i]);
  }

  void with_momentum(const C* grads, C* params, C* buffers, int64_t n) const {
    if (first) {  // the buffers hold nothing yet, perhaps NaN: they are not read
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) buffers[i] = effective(grads[i], params[i]);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) buffers[i] = momentum * buffers[i] + fresh * effective(grads[i], params[i]);
    }
    if (nesterov) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) params[i] -= lr * (effective(grads[i], params[i]) + momentum * buffers[i]);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) params[i] -= lr * buffers[i];
    }
  }
};

template <class T>
ngResult sgd_all(const Args& args) {
  using C = Compute<T>;
  const int count = args.num_in;
  const Sgd<C> sgd(args);
  const bool buffered = args.num_out > count && args.out[count] && args.f(1) != 0.0;
  for_chunks(args.out, count, 1.0, [&](int k, int64_t at, int64_t n) {
    Chunk<T, C> grad(args.in[k].as<T>() + at, n), param(args.out[k].as<T>() + at, n);
    if (buffered) {
      Chunk<T, C> buffer(args.out[count + k].as<T>() + at, n);
      sgd.with_momentum(grad.get(), param.get(), buffer.get(), n);
      buffer.put();
    } else {
      sgd.plain(grad.get(), param.get(), n);
    }
    param.put();
  });
  return NG_SUCCESS;
}

ngResult run_sgd(const Args& args) {
  switch (args.out[0].type) {
    case NG_FLOAT16: return sgd_all<Half>(args);
    case NG_BFLOAT16: return sgd_all<BFloat16>(args);
    case NG_FLOAT32: return sgd_all<float>(args);
    case NG_FLOAT64: return sgd_all<double>(args);
    default: return fail(NG_ERROR_NOT_SUPPORTED, "sgd: data type %d", static_cast<int>(args.out[0].type));
  }
}

// Gradients and parameters of one type; each group of outputs of one type; moments of that type or float32.
ngResult accepts_adam(const Args& args) {
  const int count = args.num_in;
  if (count == 0 || args.num_out != 3 * count) return NG_ERROR_NOT_SUPPORTED;
  const ngDataType type = args.in[0].type, state = args.out[count].type;
  const bool half = type == NG_FLOAT16 || type == NG_BFLOAT16;
  bool fits = state == type || (half && state == NG_FLOAT32);
  for (int k = 0; k < count; ++k) {
    fits &= args.in[k].type == type && args.out[k].type == type;
    fits &= args.out[count + k].type == state && args.out[2 * count + k].type == state;
  }
  return fits ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

ngResult accepts_sgd(const Args& args) {
  if (args.num_in == 0 || args.num_out < args.num_in) return NG_ERROR_NOT_SUPPORTED;
  const ngDataType type = args.in[0].type;
  bool fits = true;
  for (int k = 0; k < args.num_in; ++k) fits &= args.in[k].type == type;
  for (int k = 0; k < args.num_out; ++k) fits &= !args.out[k] || args.out[k].type == type;
  return fits ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

NG_KERNEL("adam", kFloatTypes, run_adam, 0, accepts_adam);
NG_KERNEL("sgd", kFloatTypes, run_sgd, 0, accepts_sgd);

}  // namespace
}  // namespace ng
