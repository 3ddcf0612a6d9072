// Scans along one dim: cumsum, cumprod, cummax, cummin, logcumsumexp. Lines along the dim are independent; where
// neighbouring lines lie closer in memory than neighbours on a line, a block of lines advances together.
#include <algorithm>
#include <cmath>

#include "../parallel.h"
#include "elementwise.h"
#include "scalar_math.h"

namespace ng {
namespace {

constexpr int64_t kLines = 128;  // in a block

// Sums and products of floats run in double, of 16-bit floats in float, of integers in their own type, wrapping.
template <class S>
using Wide = std::conditional_t<is_half<S>, float, std::conditional_t<std::is_same_v<S, float>, double, S>>;

// A scan's state and its step; `emit` is what goes to the outputs.
template <class S> struct CumSum {
  static constexpr bool indexed = false;
  Wide<S> value = Wide<S>(0);
  void step(S x, int64_t) { value = math::add(value, static_cast<Wide<S>>(x)); }
  void emit(S* out, int64_t*) const { *out = static_cast<S>(value); }
};
template <class S> struct CumProd {
  static constexpr bool indexed = false;
  Wide<S> value = Wide<S>(1);
  void step(S x, int64_t) { value = math::mul(value, static_cast<Wide<S>>(x)); }
  void emit(S* out, int64_t*) const { *out = static_cast<S>(value); }
};
template <class S, bool largest> struct CumExtreme {
  static constexpr bool indexed = true;
  Compute<S> value = Compute<S>();
  int64_t index = -1;
  // A new extreme is rare: the branch is cheaper than carrying both values through every step.
  void step(S s, int64_t i) {
    const Compute<S> x = s;
    if (largest ? x < value : x > value) {
      if (index >= 0) return;
    } else if (value != value && x == x) {
      return;
    }
    value = x;
    index = i;
  }
  void emit(S* out, int64_t* out_index) const {
    *out = static_cast<S>(value);
    *out_index = index;
  }
};
template <class S> using CumMax = CumExtreme<S, true>;
template <class S> using CumMin = CumExtreme<S, false>;
template <class S> struct LogCumSumExp {
  static constexpr bool indexed = false;
  Wide<S> value = -math::infinity<Wide<S>>;
  void step(S s, int64_t) {
    const Wide<S> x = static_cast<Wide<S>>(s);
    const Wide<S> high = math::maximum(x, value), low = math::minimum(x, value);
    const bool same_infinity = (high == low) & (std::fabs(low) == math::infinity<Wide<S>>);
    value = same_infinity ? high : high + std::log1p(std::exp(low - high));
  }
  void emit(S* out, int64_t*) const { *out = static_cast<S>(value); }
};

// One line alone keeps its state in registers.
template <class S, class State>
void scan_line(const S* in, S* out, int64_t* index, int64_t length, const int64_t* step) {
  State state;
  int64_t position;
  for (int64_t i = 0; i < length; ++i) {
    state.step(in[i * step[0]], i);
    state.emit(out + i * step[1], &position);
    if constexpr (State::indexed) index[i * step[2]] = position;
  }
}

struct Line {
  int64_t length, step[3];  // strides of input, output and indices along the scanned dim
};

// `count` lines, `step_*` apart.
template <class S, class State>
void scan_lines(const S* in, S* out, int64_t* index, const Line& line, int64_t count, int64_t step_in,
                int64_t step_out, int64_t step_index) {
  if (count == 1) return scan_line<S, State>(in, out, index, line.length, line.step);
  State states[kLines];
  for (int64_t i = 0; i < line.length; ++i) {
    const S* const from = in + i * line.step[0];
    S* const to = out + i * line.step[1];
    int64_t* const index_to = State::indexed ? index + i * line.step[2] : nullptr;
#pragma GCC ivdep
    for (int64_t k = 0; k < count; ++k) {
      states[k].step(from[k * step_in], i);
      states[k].emit(to + k * step_out, index_to + (State::indexed ? k * step_index : 0));
    }
  }
}

// The dim along which lines are gathered into blocks: the one with the smallest input stride, or -1.
int block_dim(const Tensor& in, int64_t dim) {
  int best = -1;
  for (int d = 0; d < in.ndim; ++d) {
    if (d == dim || in.sizes[d] == 1) continue;
    if (best < 0 || in.strides[d] < in.strides[best]) best = d;
  }
  return best;
}

template <class S, class State> void scan(const Args& args, int64_t dim) {
  const Tensor& in = args.in[0];
  const Tensor& out = args.out[0];
  const bool indexed = args.num_out > 1;
  const Tensor& index = args.out[indexed ? 1 : 0];
  const bool scalar = in.ndim == 0;
  const Line line = scalar ? Line{1, {0, 0, 0}}
                           : Line{in.sizes[dim], {in.strides[dim], out.strides[dim], index.strides[dim]}};
  const int along = scalar ? -1 : block_dim(in, dim);
  const int64_t lines = along < 0 ? 1 : in.sizes[along];
  const bool together = along >= 0 && in.strides[along] < line.step[0];
  const int64_t block = together ? std::min(kLines, lines) : 1, blocks = (lines + block - 1) / block;
  const int64_t step_in = along < 0 ? 0 : in.strides[along], step_out = along < 0 ? 0 : out.strides[along];
  const int64_t step_index = along < 0 ? 0 : index.strides[along];
  const int64_t outer = in.numel() / (line.length * lines);
  parallel_for(outer * blocks, 1.2 * static_cast<double>(line.length * block), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = k % blocks * block;
      int64_t rest = k / blocks, at_in = first * step_in, at_out = first * step_out, at_index = first * step_index;
      for (int d = in.ndim - 1; d >= 0; --d) {
        if (d == dim || d == along) continue;
        const int64_t position = rest % in.sizes[d];
        rest /= in.sizes[d];
        at_in += position * in.strides[d];
        at_out += position * out.strides[d];
        at_index += position * index.strides[d];
      }
      scan_lines<S, State>(in.as<const S>() + at_in, out.as<S>() + at_out,
                           indexed ? index.as<int64_t>() + at_index : nullptr, line, std::min(block, lines - first),
                           step_in, step_out, step_index);
    }
  });
}

using Scan = void (*)(const Args&, int64_t);
using Scans = std::array<Scan, NG_DATA_TYPE_COUNT>;
template <template <class> class State, class... S> constexpr Scans scans(Types<S...>) {
  Scans all{};
  ((all[TypeOf<S>::value] = scan<S, State<S>>), ...);
  return all;
}

template <const Scans& table> ngResult run_scan(const Args& args) {
  table[args.out[0].type](args, args.in[0].ndim == 0 ? 0 : args.i(0));
  return NG_SUCCESS;
}

using Halves = Types<Half, BFloat16>;
constexpr Scans kCumSum = scans<CumSum>(join(join(Halves{}, Reals{}), Complexes{}));
constexpr Scans kCumProd = scans<CumProd>(join(join(Halves{}, Reals{}), Complexes{}));
constexpr Scans kCumMax = scans<CumMax>(join(Halves{}, RealsBool{}));
constexpr Scans kCumMin = scans<CumMin>(join(Halves{}, RealsBool{}));
constexpr Scans kLogCumSumExp = scans<LogCumSumExp>(join(Halves{}, Floats{}));

NG_KERNEL("cumsum", kRealTypes | kComplexTypes, run_scan<kCumSum>);
NG_KERNEL("cumprod", kRealTypes | kComplexTypes, run_scan<kCumProd>);
NG_KERNEL("cummax", kAllTypes, run_scan<kCumMax>);
NG_KERNEL("cummin", kAllTypes, run_scan<kCumMin>);
NG_KERNEL("logcumsumexp", kFloatTypes, run_scan<kLogCumSumExp>);

}  // namespace
}  // namespace ng
