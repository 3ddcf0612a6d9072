// Random tensors: elementwise loops that make element i from (seed, offset, i) alone, whatever the layout and the
// number of threads. Attributes 0 and 1 are seed and offset. The definitions are in uniops.yaml.
#include <algorithm>
#include <cmath>

#include "../parallel.h"
#include "elementwise.h"
#include "philox.h"
#include "scalar_math.h"

namespace ng {
namespace {

constexpr int64_t kChunk = 512;
constexpr double kTwoPi = 6.28318530717958647692;

// Numbers u in [0, 1) of elements [first, first + n), n <= kChunk.
void units(const Params& params, int64_t first, int64_t n, float* out) {
  uint32_t words[kChunk];
  Philox(static_cast<uint64_t>(params.i[0])).words(static_cast<uint64_t>(params.i[1]), first, n, words);
  for (int64_t i = 0; i < n; ++i) out[i] = unit_float(words[i]);
}
void units(const Params& params, int64_t first, int64_t n, double* out) {
  uint32_t words[2 * kChunk];
  Philox(static_cast<uint64_t>(params.i[0])).words(static_cast<uint64_t>(params.i[1]), 2 * first, 2 * n, words);
  for (int64_t i = 0; i < n; ++i) out[i] = unit_double(words[2 * i], words[2 * i + 1]);
}

// Makes a Loop of a function chunk(params, first, n, out) that takes at most kChunk elements.
template <class T, void (*chunk)(const Params&, int64_t, int64_t, T*)>
void in_chunks(void* const* operands, int64_t first, int64_t n, const Params& params) {
  T* const out = static_cast<T*>(operands[0]);
  for (int64_t i = 0; i < n; i += kChunk) chunk(params, first + i, std::min(kChunk, n - i), out + i);
}

template <template <class> class Distribution> constexpr Loops float_loops() {
  Loops all{};
  all[NG_FLOAT32] = all[NG_FLOAT16] = all[NG_BFLOAT16] = in_chunks<float, Distribution<float>::chunk>;
  all[NG_FLOAT64] = in_chunks<double, Distribution<double>::chunk>;
  return all;
}

// `value` in a type, and its neighbour there in the direction of `towards`.
double round_to_type(ngDataType type, double value) {
  switch (type) {
    case NG_FLOAT16: return Half(static_cast<float>(value));
    case NG_BFLOAT16: return BFloat16(static_cast<float>(value));
    case NG_FLOAT32: return static_cast<float>(value);
    default: return value;
  }
}
double neighbour(ngDataType type, double value, double towards) {
  const float narrow = static_cast<float>(value), to = static_cast<float>(towards);
  switch (type) {
    case NG_FLOAT16: return next_after(Half(narrow), Half(to));
    case NG_BFLOAT16: return next_after(BFloat16(narrow), BFloat16(to));
    case NG_FLOAT32: return std::nextafter(narrow, to);
    default: return std::nextafter(value, towards);
  }
}

// ---- uniform: attributes from, to. imaginary[0] is the last number before `to`. ----

template <class T> struct Uniform {
  static void chunk(const Params& params, int64_t first, int64_t n, T* out) {
    const T from = static_cast<T>(params.f[2]), range = static_cast<T>(params.f[3] - params.f[2]);
    const T last = static_cast<T>(params.imaginary[0]);
    units(params, first, n, out);
    for (int64_t i = 0; i < n; ++i) out[i] = std::min(out[i] * range + from, last);
  }
};

ngResult uniform(const Args& args) {
  static constexpr Loops loops = float_loops<Uniform>();
  Params params(args);
  const ngDataType type = args.out[0].type;
  const double from = params.f[2], to = round_to_type(type, params.f[3]);
  // Rounding may have moved `to` up or down; the last number must be below both.
  params.imaginary[0] = to < params.f[3] || from == params.f[3] ? to : neighbour(type, to, from);
  return elementwise(args, loops, type, 1.0, params);
}

// ---- normal: attributes mean, std. Elements come in pairs from two units. ----

template <class T> struct Normal {
  static void chunk(const Params& params, int64_t first, int64_t n, T* out) {
    const T mean = static_cast<T>(params.f[2]), deviation = static_cast<T>(params.f[3]);
    const int64_t start = first & ~int64_t{1}, count = (first + n - start + 1) & ~int64_t{1};
    T u[kChunk + 2], radius[kChunk / 2 + 1], cosine[kChunk / 2 + 1], sine[kChunk / 2 + 1];
    units(params, start, std::min(count, kChunk), u);
    if (count > kChunk) units(params, start + kChunk, count - kChunk, u + kChunk);
    const int64_t pairs = count / 2;
    for (int64_t i = 0; i < pairs; ++i) {
      const T angle = static_cast<T>(kTwoPi) * u[2 * i + 1];
      radius[i] = math::sqrt(T(-2) * math::log(T(1) - u[2 * i])) * deviation;
      cosine[i] = math::cos(angle);
      sine[i] = math::sin(angle);
    }
    for (int64_t i = 0; i < pairs; ++i) {
      u[2 * i] = mean + radius[i] * cosine[i];
      u[2 * i + 1] = mean + radius[i] * sine[i];
    }
    std::copy_n(u + (first - start), n, out);
  }
};

ngResult normal(const Args& args) {
  static constexpr Loops loops = float_loops<Normal>();
  Params params(args);
  return elementwise(args, loops, args.out[0].type, 2.5, params);
}

// ---- exponential: attribute lambda. imaginary[0] is the smallest result. ----

template <class T> struct Exponential {
  static void chunk(const Params& params, int64_t first, int64_t n, T* out) {
    const T rate = static_cast<T>(params.f[2]), least = static_cast<T>(params.imaginary[0]);
    units(params, first, n, out);
    for (int64_t i = 0; i < n; ++i) out[i] = std::max(-math::log(T(1) - out[i]) / rate, least);
  }
};

ngResult exponential(const Args& args) {
  static constexpr Loops loops = float_loops<Exponential>();
  Params params(args);
  const ngDataType type = args.out[0].type;
  params.imaginary[0] = type == NG_FLOAT64 ? std::numeric_limits<double>::min()
                        : type == NG_FLOAT16 ? 0x1p-14 : std::numeric_limits<float>::min();
  return elementwise(args, loops, type, 1.5, params);
}

// ---- bernoulli: attribute p, or an input with one p per element. Any output type. ----

template <class T> void bernoulli_loop(void* const* operands, int64_t first, int64_t n, const Params& params) {
  Stored<T>* const out = static_cast<Stored<T>*>(operands[0]);
  const double p = params.f[2];
  float u[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    units(params, first + i, count, u);
    for (int64_t k = 0; k < count; ++k) out[i + k] = static_cast<Stored<T>>(u[k] < p);
  }
}
template <class T, class P>
void bernoulli_each_loop(void* const* operands, int64_t first, int64_t n, const Params& params) {
  Stored<T>* const out = static_cast<Stored<T>*>(operands[0]);
  const P* const p = static_cast<const P*>(operands[1]);
  float u[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    units(params, first + i, count, u);
    for (int64_t k = 0; k < count; ++k) out[i + k] = static_cast<Stored<T>>(u[k] < p[i + k]);
  }
}

template <class... T> constexpr Loops bernoulli_loops(Types<T...>, bool each, bool wide) {
  Loops all{};
  ((all[TypeOf<T>::value] = !each ? bernoulli_loop<T> : wide ? bernoulli_each_loop<T, double>
                                                             : bernoulli_each_loop<T, float>), ...);
  all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32];
  return all;
}

ngResult bernoulli(const Args& args) {
  static constexpr Loops one = bernoulli_loops(RealsBool{}, false, false);
  static constexpr Loops each = bernoulli_loops(RealsBool{}, true, false);
  static constexpr Loops each_double = bernoulli_loops(RealsBool{}, true, true);
  Params params(args);
  const ngDataType type = args.out[0].type;
  if (args.num_in > 0 && args.in[0]) {
    return elementwise(args, args.in[0].type == NG_FLOAT64 ? each_double : each, type, 1.0, params);
  }
  const Args no_input{nullptr, args.out, args.attrs, 0, 1, args.num_attrs, args.device};
  return elementwise(no_input, one, type, 1.0, params);
}

ngResult accepts_bernoulli(const Args& args) {
  const bool fits = args.num_in == 0 || !args.in[0] || (bit(args.in[0].type) & kFloatTypes);
  return fits ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

// ---- random_int: attributes low, range (0: 2^64) ----

// word % range by multiplication: the estimated quotient is at most 2 too small.
struct Modulo {
  uint64_t range, inverse;
  explicit Modulo(uint64_t range) : range(range), inverse(range ? ~uint64_t{0} / range : 0) {}
  uint64_t operator()(uint64_t word) const {
    if (range == 0) return word;  // 2^64
    const uint64_t quotient = static_cast<uint64_t>(static_cast<unsigned __int128>(word) * inverse >> 64);
    const uint64_t rest = word - quotient * range, once = std::min(rest, rest - range);  // wraps if it was less
    return std::min(once, once - range);
  }
};

template <class T> void random_int_loop(void* const* operands, int64_t first, int64_t n, const Params& params) {
  Stored<T>* const out = static_cast<Stored<T>*>(operands[0]);
  const uint64_t low = static_cast<uint64_t>(params.i[2]);
  const Modulo modulo(static_cast<uint64_t>(params.i[3]));
  const Philox philox(static_cast<uint64_t>(params.i[0]));
  uint32_t words[2 * kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    philox.words(static_cast<uint64_t>(params.i[1]), 2 * (first + i), 2 * count, words);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t value = static_cast<int64_t>(low + modulo(joined(words[2 * k], words[2 * k + 1])));
      out[i + k] = std::is_same_v<T, bool> ? value != 0 : static_cast<Stored<T>>(value);
    }
  }
}
template <class... T> constexpr Loops random_int_loops(Types<T...>) {
  Loops all{};
  ((all[TypeOf<T>::value] = random_int_loop<T>), ...);
  all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32];
  return all;
}

ngResult random_int(const Args& args) {
  static constexpr Loops loops = random_int_loops(RealsBool{});
  Params params(args);
  return elementwise(args, loops, args.out[0].type, 4.0, params);
}

// ---- dropout: attribute p; outputs the kept and scaled input, and the mask. Dense. ----

template <class S> void dropout_part(const Args& args, const Params& params, int64_t begin, int64_t end) {
  const S* const in = args.in[0].as<const S>();
  S* const out = args.out[0].as<S>();
  uint8_t* const mask = args.out[1].as<uint8_t>();
  using T = Compute<S>;
  const float p = static_cast<float>(params.f[2]);
  const T scale = params.f[2] < 1 ? static_cast<T>(1 / (1 - params.f[2])) : T(0);
  float u[kChunk];
  T values[kChunk];
  for (int64_t i = begin; i < end; i += kChunk) {
    const int64_t count = std::min(kChunk, end - i);
    units(params, i, count, u);
    const T* from;
    if constexpr (is_half<S>) {
      to_float(in + i, values, count);
      from = values;
    } else {
      from = in + i;
    }
#pragma GCC ivdep
    for (int64_t k = 0; k < count; ++k) {
      const bool keep = u[k] >= p;
      mask[i + k] = keep;
      values[k] = from[k] * (keep ? scale : T(0));
    }
    if constexpr (is_half<S>) from_float(values, out + i, count);
    else std::copy_n(values, count, out + i);
  }
}

ngResult dropout(const Args& args) {
  const Params params(args);
  parallel_for(args.out[0].numel(), 1.2, [&](int64_t begin, int64_t end) {
    switch (args.in[0].type) {
      case NG_FLOAT16: return dropout_part<Half>(args, params, begin, end);
      case NG_BFLOAT16: return dropout_part<BFloat16>(args, params, begin, end);
      case NG_FLOAT32: return dropout_part<float>(args, params, begin, end);
      default: return dropout_part<double>(args, params, begin, end);
    }
  });
  return NG_SUCCESS;
}

NG_KERNEL("uniform", kFloatTypes, uniform);
NG_KERNEL("normal", kFloatTypes, normal);
NG_KERNEL("exponential", kFloatTypes, exponential);
NG_KERNEL("bernoulli", kAllTypes, bernoulli, kAllTypes, accepts_bernoulli);
NG_KERNEL("random_int", kAllTypes, random_int, kAllTypes);
NG_KERNEL("dropout", kFloatTypes, dropout);

}  // namespace
}  // namespace ng
