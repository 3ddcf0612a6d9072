// Activations and their derivatives. Binary ones take (gradient x, input or result y), as uniops.yaml lists them.
#include "elementwise.h"
#include "scalar_math.h"

namespace ng {
namespace {

using math::exp, math::expm1, math::log1p, math::sigmoid, math::tanh;

constexpr double kGeluScale = 0.79788456080286535588;     // sqrt(2 / pi)
constexpr double kNormalDensity = 0.39894228040143267794;  // 1 / sqrt(2 pi)
constexpr double kGeluCubic = 0.044715;

// ---- forward ----

NG_OP1(sigmoid, Floats, 0.4, sigmoid(x));
NG_OP1(silu, Floats, 0.4, x / (T(1) + exp(-x)));
NG_OP1(mish, Floats, 1.2, x * tanh(log1p(exp(x))));
NG_OP1(log_sigmoid, Floats, 0.8, math::minimum(x, T(0)) - log1p(exp(-math::abs(x))));
NG_OP1(leaky_relu, Floats, 0.1, x > T(0) ? x : x * p.a);
NG_OP1(hardshrink, Floats, 0.1, (x >= -p.a) & (x <= p.a) ? T(0) : x);
NG_OP1(softshrink, Floats, 0.1, x > p.a ? x - p.a : (x < -p.a ? x + p.a : x * T(0)));

template <class T> T hard_gate(T x) { return math::minimum(math::maximum(x + T(3), T(0)), T(6)); }
NG_OP1(hardsigmoid, Floats, 0.1, hard_gate(x) / T(6));
NG_OP1(hardswish, Floats, 0.1, x * hard_gate(x) / T(6));

template <class T> T softplus_value(const Attrs<T>& p, T x) {
  const T scaled = x * p.a;
  return scaled > p.b ? x : log1p(exp(scaled)) / p.a;
}
NG_OP1(softplus, Floats, 0.8, softplus_value(p, x));

// Attributes: alpha, scale, input_scale.
NG_OP1(elu, Floats, 0.4, x < T(0) ? expm1(x * p.c) * (p.a * p.b) : x * p.b);

template <class T> T logit_value(const Attrs<T>& p, T x) {
  const T low = p.has_a & (p.a >= T(0)) ? p.a : -math::infinity<T>;
  const T high = p.has_a & (p.a >= T(0)) ? T(1) - p.a : math::infinity<T>;
  const T z = x < low ? low : (x > high ? high : x);
  return math::log(z / (T(1) - z));
}
NG_OP1(logit, Floats, 0.6, logit_value(p, x));

// Attributes: what replaces NaN, inf and -inf.
NG_OP1(nan_to_num, Floats, 0.1,
       x != x ? p.a : (x == math::infinity<T> ? p.b : (x == -math::infinity<T> ? p.c : x)));

// gelu has two forms, chosen by the attribute.
struct GeluErf {
  template <class T> static T apply(const Attrs<T>&, T x) {
    return x * T(0.5) * math::twice_normal_cdf(x);
  }
};
struct GeluTanh {
  template <class T> static T apply(const Attrs<T>&, T x) {
    return x * T(0.5) * (T(1) + tanh(T(kGeluScale) * (x + T(kGeluCubic) * x * x * x)));
  }
};

// ---- backward ----

NG_OP2(sigmoid_backward, Floats, 0.15, x * (T(1) - y) * y);
NG_OP2(tanh_backward, Floats, 0.15, x * (T(1) - y * y));
NG_OP2(threshold_backward, Reals, 0.1, y <= p.a ? T(0) : x);
NG_OP2(leaky_relu_backward, Floats, 0.1, y > T(0) ? x : x * p.a);
NG_OP2(hardtanh_backward, Floats, 0.1, (y > p.a) & (y < p.b) ? x : T(0));
NG_OP2(hardsigmoid_backward, Floats, 0.1, (y > T(-3)) & (y < T(3)) ? x / T(6) : T(0));
NG_OP2(hardswish_backward, Floats, 0.1, y <= T(-3) ? T(0) : (y >= T(3) ? x : x * (y / T(3) + T(0.5))));
NG_OP2(hardshrink_backward, Floats, 0.1, (y < -p.a) | (y > p.a) ? x : T(0));

template <class T> T silu_gradient(T grad, T x) {
  const T s = sigmoid(x);
  return grad * s * (T(1) + x * (T(1) - s));
}
NG_OP2(silu_backward, Floats, 0.5, silu_gradient(x, y));

template <class T> T mish_gradient(T grad, T x) {
  const T s = sigmoid(x), t = tanh(log1p(exp(x)));
  return grad * (t + x * s * (T(1) - t * t));
}
NG_OP2(mish_backward, Floats, 1.5, mish_gradient(x, y));

template <class T> T log_sigmoid_gradient(T grad, T x) {
  const T z = exp(-math::abs(x)), part = z / (T(1) + z);
  return grad * (x < T(0) ? T(1) - part : part);
}
NG_OP2(log_sigmoid_backward, Floats, 0.5, log_sigmoid_gradient(x, y));

template <class T> T softplus_gradient(const Attrs<T>& p, T grad, T x) {
  const T z = exp(x * p.a);
  return x * p.a > p.b ? grad : grad * z / (z + T(1));
}
NG_OP2(softplus_backward, Floats, 0.5, softplus_gradient(p, x, y));

// Attributes: alpha, scale, input_scale, is_result (then y is the output of elu, not its input).
template <class T> T elu_gradient(const Attrs<T>& p, T grad, T y) {
  const T negative = p.a * p.b;
  const T slope = p.d != T(0) ? p.c * (y + negative) : p.c * negative * exp(y * p.c);
  return grad * (y > T(0) ? p.b : slope);
}
NG_OP2(elu_backward, Floats, 0.5, elu_gradient(p, x, y));

template <class T> T logit_gradient(const Attrs<T>& p, T grad, T x) {
  const bool bounded = p.has_a & (p.a >= T(0));
  const T low = bounded ? p.a : T(0), high = bounded ? T(1) - p.a : T(1);
  const T outside = bounded ? T(0) : math::nan<T>;
  return (x >= low) & (x <= high) ? grad / (x * (T(1) - x)) : outside;
}
NG_OP2(logit_backward, Floats, 0.3, logit_gradient(p, x, y));

struct GeluErfBackward {
  template <class T> static T apply(const Attrs<T>&, T grad, T x) {
    const T cdf = T(0.5) * math::twice_normal_cdf(x);
    return grad * (cdf + x * exp(x * x * T(-0.5)) * T(kNormalDensity));
  }
};
struct GeluTanhBackward {
  template <class T> static T apply(const Attrs<T>&, T grad, T x) {
    const T t = tanh(T(kGeluScale) * (x + T(kGeluCubic) * x * x * x));
    const T inner = T(kGeluScale) * (T(1) + T(3 * kGeluCubic) * x * x);
    return grad * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner);
  }
};

template <class Erf, class Tanh, int arity> ngResult gelu_kernel(const Args& args) {
  static constexpr Loops erf_loops = loops<Erf, arity>(Floats{}), tanh_loops = loops<Tanh, arity>(Floats{});
  Params params(args);
  return elementwise(args, params.i[0] ? tanh_loops : erf_loops, args.in[0].type, 0.7, params);
}
NG_KERNEL("gelu", kFloatTypes, (gelu_kernel<GeluErf, GeluTanh, 1>));
NG_KERNEL("gelu_backward", kFloatTypes, (gelu_kernel<GeluErfBackward, GeluTanhBackward, 2>));

// Per-element losses; attribute a is beta or delta.
template <class T> T smooth_l1_value(T distance, T beta) {
  return distance < beta ? T(0.5) * distance * distance / beta : distance - T(0.5) * beta;
}
template <class T> T huber_value(T distance, T delta) {
  return distance <= delta ? T(0.5) * distance * distance : delta * (distance - T(0.5) * delta);
}
NG_OP2(smooth_l1, Floats, 0.15, smooth_l1_value(math::abs(x - y), p.a));
NG_OP2(huber, Floats, 0.15, huber_value(math::abs(x - y), p.a));

}  // namespace
}  // namespace ng
