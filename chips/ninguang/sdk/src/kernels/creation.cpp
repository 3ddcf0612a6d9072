// Tensors made from their positions: arange, linspace, eye.
#include <algorithm>

#include "elementwise.h"

namespace ng {
namespace {

// Attributes start, step. In int64 if both are integers, else in double; then cast.
template <class T> void arange_loop(void* const* operands, int64_t first, int64_t n, const Params& params) {
  T* const out = static_cast<T*>(operands[0]);
  if (params.has[3]) {
    const uint64_t start = static_cast<uint64_t>(params.i[0]), step = static_cast<uint64_t>(params.i[1]);
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<T>(static_cast<int64_t>(start + static_cast<uint64_t>(first + i) * step));
    }
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(params.f[0] + static_cast<double>(first + i) * params.f[1]);
  }
}

// Attributes start, end; i[3] is the number of elements. From each end towards the middle, so both ends are exact.
template <class T> void linspace_loop(void* const* operands, int64_t first, int64_t n, const Params& params) {
  T* const out = static_cast<T*>(operands[0]);
  const int64_t steps = params.i[3];
  const double start = params.f[0], end = params.f[1];
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t position = first + i;
    const double value = position < steps / 2 || steps == 1 ? start + step * static_cast<double>(position)
                                                            : end - step * static_cast<double>(steps - 1 - position);
    out[i] = static_cast<T>(value);
  }
}

// i[0]: columns; i[1]: length of the diagonal.
template <class T> void eye_loop(void* const* operands, int64_t first, int64_t n, const Params& params) {
  T* const out = static_cast<T*>(operands[0]);
  std::fill_n(out, n, T(0));
  const int64_t step = params.i[0] + 1;
  const int64_t last = std::min(params.i[1], (first + n + step - 1) / step);
  for (int64_t k = (first + step - 1) / step; k < last; ++k) out[k * step - first] = T(1);
}

#define NG_LOOPS(name)                                                 \
  template <class... T> constexpr Loops name##_loops(Types<T...>) {    \
    Loops all{};                                                       \
    ((all[TypeOf<T>::value] = name##_loop<Stored<T>>), ...);           \
    all[NG_FLOAT16] = all[NG_BFLOAT16] = all[NG_FLOAT32];              \
    return all;                                                        \
  }
NG_LOOPS(arange)
NG_LOOPS(linspace)
NG_LOOPS(eye)
#undef NG_LOOPS

ngResult arange(const Args& args) {
  static constexpr Loops loops = arange_loops(Reals{});
  Params params(args);
  params.has[3] = args.attrs[0].kind == 1 && args.attrs[1].kind == 1;
  return elementwise(args, loops, args.out[0].type, 0.3, params);
}

ngResult linspace(const Args& args) {
  static constexpr Loops loops = linspace_loops(Reals{});
  Params params(args);
  params.i[3] = args.out[0].numel();
  return elementwise(args, loops, args.out[0].type, 0.5, params);
}

ngResult eye(const Args& args) {
  static constexpr Loops loops = eye_loops(join(RealsBool{}, Complexes{}));
  const Tensor& out = args.out[0];
  if (out.ndim != 2) return fail(NG_ERROR_INVALID_VALUE, "eye: %d dims, 2 are needed", out.ndim);
  Params params;
  params.i[0] = out.sizes[1];
  params.i[1] = std::min(out.sizes[0], out.sizes[1]);
  return elementwise(args, loops, out.type, 0.1, params);
}

NG_KERNEL("arange", kRealTypes, arange, kRealTypes);
NG_KERNEL("linspace", kRealTypes, linspace, kRealTypes);
NG_KERNEL("eye", kAllTypes | kComplexTypes, eye);

}  // namespace
}  // namespace ng
