// Convolution as one matrix product per group, reading patches in place (conv_patch.h): forward, backward to the data
// and backward to the weight, for row-major
// operands. No reordered copy of the images is made.
#include <algorithm>
#include <vector>

#include "conv_patch.h"
#include "convolution.h"
#include "gemm_bfloat16.h"
#include "vector_math.h"

namespace ng {
namespace {

// Without a border and with steps of one, the positions of a plane are one long row: fewer, longer segments.
void flatten(ConvGrid& g) {
  const bool plain = g.taps.size() == 1 && g.taps[0].offset[0] == 0 && g.taps[0].offset[1] == 0 &&
                     g.taps[0].offset[2] == 0 && std::equal(g.grid, g.grid + 3, g.extent) && g.step[0] == 1 &&
                     g.step[1] == 1 && g.step[2] == 1;
  if (!plain) return;
  g.grid[2] = g.extent[2] = g.plane();
  g.grid[0] = g.grid[1] = g.extent[0] = g.extent[1] = 1;
}

ConvGrid forward_grid(const ConvProblem& p, const Image& src) {
  ConvGrid g{};
  g.batch = p.batch;
  g.batch_stride = src.batch_stride;
  for (int d = 0; d < 3; ++d) g.grid[d] = p.out[d], g.extent[d] = p.in[d], g.step[d] = p.stride[d];
  for (int64_t i = 0; i < p.kernel[0]; ++i) {
    for (int64_t j = 0; j < p.kernel[1]; ++j) {
      for (int64_t k = 0; k < p.kernel[2]; ++k) {
        g.taps.push_back(
            {{i * p.dilation[0] - p.padding[0], j * p.dilation[1] - p.padding[1], k * p.dilation[2] - p.padding[2]}});
      }
    }
  }
  flatten(g);
  return g;
}

// The patches of one row of k, put where the panels want them: first(v) of a pair, or the only one.
template <class S, class T>
void put_patch_row(const ConvPatch<S>& patch, const S* channel, int64_t tap, T* row, int64_t panel_size, bool upper,
                   int64_t ahead) {
  const auto place = [=](int64_t v) { return row + v / kGemmVectors * panel_size + v % kGemmVectors * kLanes<T>; };
  detail::with_step(patch.step(), [&](auto step) {
    if constexpr (!std::is_same_v<T, BFloat16Pair>) {
      patch.template for_vectors<step.value>(
          channel, tap, ahead, [&](int64_t v, auto raw) { store(place(v), detail::raw_to_float(raw, channel)); });
    } else if (upper) {
      patch.template for_vectors<step.value>(channel, tap, ahead, [&](int64_t v, auto raw) {
        uint32_t* to = &place(v)->bits;
        store(to, load(to) | raw << 16);
      });
    } else {
      patch.template for_vectors<step.value>(channel, tap, ahead,
                                             [&](int64_t v, auto raw) { store(&place(v)->bits, raw); });
    }
  });
}

// b of a product with columns = positions and k = channel * taps + tap; `numbers` is the depth in numbers.
template <class S>
auto make_pack_patches(const ConvGrid& g, const S* src, int64_t channel_stride, int64_t numbers) {
  using T = GemmElement<S>;
  return [&g, src, channel_stride, numbers](T* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    constexpr int64_t kUnit = std::is_same_v<T, BFloat16Pair> ? 2 : 1;
    const ConvPatch<S> patch(g, column, columns);
    const int64_t taps = static_cast<int64_t>(g.taps.size()), panel_size = depth * kGemmColumns<T>;
    if (patch.vectors() % kGemmVectors != 0) {
      // The last panel has one vector.
      T* last = dst + columns / kGemmColumns<T> * panel_size + kLanes<T>;
      for (int64_t i = 0; i < depth; ++i) std::memset(static_cast<void*>(last + i * kGemmColumns<T>), 0, kVectorBytes);
    }
    int64_t tap = k * kUnit % taps;
    const S* channel = src + k * kUnit / taps * channel_stride;
    const int64_t count = std::min(depth * kUnit, numbers - k * kUnit), ahead = std::max<int64_t>(1, 5 / taps);
    for (int64_t i = 0; i < count; ++i) {
      const bool foresee = tap == 0 && i + ahead * taps < count;
      put_patch_row(patch, channel, tap, dst + i / kUnit * kGemmColumns<T>, panel_size, i % kUnit != 0,
                    foresee ? ahead * channel_stride : 0);
      if (++tap == taps) tap = 0, channel += channel_stride;
    }
  };
}

// Writes a finished tile (rows = channels, columns = positions of the grid) into an image tensor.
template <class S>
struct TileWriter {
  using T = Compute<S>;
  S* data;
  int64_t batch_stride, channel_stride;
  const T* bias;
  int64_t plane;    // positions per image
  bool dense;       // a plane's positions are consecutive in memory
  int64_t grid[3];  // if not: their grid and strides
  int64_t stride[3];

  void operator()(int64_t row, int64_t rows, int64_t column, int64_t columns, const T* tile, int64_t ld) const {
    while (columns > 0) {
      const int64_t image = column / plane, at = column % plane, count = std::min(columns, plane - at);
      S* out = data + image * batch_stride + row * channel_stride;
      for (int64_t r = 0; r < rows; ++r, out += channel_stride) {
        const T add = bias ? bias[row + r] : T(0);
        if (dense) {
          write_run(out + at, tile + r * ld, count, add);
        } else {
          scatter(out, tile + r * ld, at, count, add);
        }
      }
      column += count;
      columns -= count;
      tile += count;
    }
  }

 private:
  static void write_run(S* out, const T* sums, int64_t count, T add) {
    const Vector<T> addend = broadcast(add);
    for (int64_t i = 0; i < count; i += kLanes<T>)
      store_some(out + i, load_some(sums + i, count - i) + addend, count - i);
  }
  void scatter(S* out, const T* sums, int64_t at, int64_t count, T add) const {
    int64_t x = at % grid[2], y = at / grid[2] % grid[1], z = at / (grid[2] * grid[1]);
    for (int64_t i = 0; i < count; ++i) {
      out[z * stride[0] + y * stride[1] + x * stride[2]] = S(sums[i] + add);
      if (++x == grid[2]) {
        x = 0;
        if (++y == grid[1]) y = 0, ++z;
      }
    }
  }
};

// The weight of one group as a [channels][k] matrix.
template <class S>
MatrixView<S> weight_rows(const ConvProblem& p, const Image& w, int64_t group) {
  return {w.as<S>() + group * p.group_out() * w.batch_stride, w.batch_stride, 1};
}

// a for backward to the data: rows = input channels, k = output channel * taps + tap, taps of one phase.
// from[tap][output channel][input channel] of the group.
template <class W>
auto make_pack_tap_major(const W* from, int64_t group_out, int64_t group_in, const std::vector<int64_t>& taps) {
  return [=, &taps](Compute<W>* dst, int64_t row, int64_t rows, int64_t k, int64_t depth) {
    const int64_t count = static_cast<int64_t>(taps.size());
    int64_t channel = k / count, tap = k % count;
    for (int64_t i = 0; i < depth; ++i, dst += rows) {
      const W* line = from + (taps[tap] * group_out + channel) * group_in + row;
      for (int64_t r = 0; r < rows; r += kLanes<Compute<W>>)
        store_some(dst + r, load_some(line + r, rows - r), rows - r);
      if (++tap == count) tap = 0, ++channel;
    }
  };
}

// The weight of one group with its taps outermost, as computing type.
template <class S>
const Compute<S>* tap_major_weight(const ConvProblem& p, const Image& w, int64_t group) {
  using T = Compute<S>;
  const int64_t taps = p.kernel_volume(), ins = p.group_in(), outs = p.group_out();
  T* result = scratch<T>(kScratchOperand3, taps * ins * outs);
  const S* from = w.as<S>() + group * outs * w.batch_stride;
  parallel_for(outs, 0.5 * ins * taps, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      transpose_block(from + o * w.batch_stride, taps, result + o * ins, outs * ins, ins, taps);
  });
  return result;
}

// weight: tap-major, of the group.
template <class S, class W>
void run_phase(const ConvProblem& p, const ConvPhase& phase, int64_t group, const Image& dst_grad, const W* weight,
               const Compute<S>* bias, const Image& src_grad) {
  using Element = GemmElement<S>;
  ConvGrid g = phase.grid;
  g.batch_stride = dst_grad.batch_stride;
  TileWriter<S> writer{};
  writer.batch_stride = src_grad.batch_stride, writer.channel_stride = src_grad.channel_stride;
  writer.plane = g.plane();
  writer.dense = writer.plane == p.in_plane();
  const int64_t row_strides[3] = {p.in[1] * p.in[2], p.in[2], 1};
  int64_t start = 0;
  for (int d = 0; d < 3; ++d) {
    writer.grid[d] = g.grid[d];
    writer.stride[d] = row_strides[d] * p.stride[d];
    start += phase.first[d] * row_strides[d];
  }
  flatten(g);
  writer.data = src_grad.as<S>() + group * p.group_in() * src_grad.channel_stride + start;
  writer.bias = bias ? bias + group * p.group_in() : nullptr;
  const int64_t depth = p.group_out() * static_cast<int64_t>(phase.taps.size());
  const GemmShape shape{p.group_in(), g.positions(), depth_in<Element>(depth)};
  const S* from = dst_grad.as<S>() + group * p.group_out() * dst_grad.channel_stride;
  const auto pack_weight = make_pack_tap_major(weight, p.group_out(), p.group_in(), phase.taps);
  const auto pack_patches = make_pack_patches(g, from, dst_grad.channel_stride, depth);
  if constexpr (std::is_same_v<Element, BFloat16Pair>) {
    gemm<Element>(shape, pair_up_a(pack_weight, depth), pack_patches, writer);
  } else {
    gemm<Element>(shape, pack_weight, pack_patches, writer);
  }
}

template <class S>
void fill_planes(const ConvProblem& p, const Image& t, const Compute<S>* bias) {
  const int64_t plane = p.in_plane();
  parallel_for(p.batch * p.in_channels, 0.1 * plane, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / p.in_channels, c = i % p.in_channels;
      std::fill_n(t.as<S>() + n * t.batch_stride + c * t.channel_stride, plane, bias ? S(bias[c]) : S(0));
    }
  });
}

// a of the weight's gradient: rows = output channels, k = positions.
template <class S>
auto make_pack_images(const S* data, int64_t batch_stride, int64_t channel_stride, int64_t plane) {
  return [=](Compute<S>* dst, int64_t row, int64_t rows, int64_t k, int64_t depth) {
    while (depth > 0) {
      const int64_t image = k / plane, at = k % plane, count = std::min(depth, plane - at);
      transpose_block(data + image * batch_stride + row * channel_stride + at, channel_stride, dst, rows, rows, count);
      dst += rows * count;
      k += count;
      depth -= count;
    }
  };
}

template <class S, class Cell>
void put_cells(const ConvPatch<S>& patch, const S* channel, int64_t tap, int64_t ahead, Cell* line) {
  detail::with_step(patch.step(), [&](auto step) {
    patch.template for_vectors<step.value>(channel, tap, ahead, [&](int64_t v, auto raw) {
      if constexpr (std::is_same_v<Cell, uint16_t>) {
        for (int i = 0; i < kLanes<uint32_t>; ++i) line[v * kLanes<uint32_t> + i] = static_cast<uint16_t>(raw[i]);
      } else {
        store(line + v * kLanes<Cell>, detail::raw_to_float(raw, channel));
      }
    });
  });
}
template <class T>
void transpose_cells(const T* block, T* dst, int64_t units) {
  transpose_block(block, 4 * kLanes<T>, dst, kGemmColumns<T>, kGemmColumns<T>, units);
}
inline void transpose_cells(const uint16_t* block, BFloat16Pair* dst, int64_t units) {
  constexpr int64_t kColumns = kGemmColumns<BFloat16Pair>;
  transpose_block(reinterpret_cast<const uint32_t*>(block), 2 * kLanes<uint32_t>, reinterpret_cast<uint32_t*>(dst),
                  kColumns, kColumns, units);
}

// b of the weight's gradient: k = positions, columns = channel * taps + tap; numbers: of positions.
template <class S>
auto make_pack_patch_columns(const ConvGrid& g, const S* src, int64_t channel_stride, int64_t numbers) {
  using T = GemmElement<S>;
  // Pairs of positions are what neighbouring 16-bit values are in memory.
  using Cell = std::conditional_t<std::is_same_v<T, BFloat16Pair>, uint16_t, T>;
  return [&g, src, channel_stride, numbers](T* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    constexpr int64_t kColumns = kGemmColumns<T>, kLane = kLanes<T>, kUnit = sizeof(T) / sizeof(Cell),
                      kCells = 4 * kLane;
    const int64_t taps = static_cast<int64_t>(g.taps.size());
    alignas(64) Cell block[kColumns * kCells];
    for (int64_t i = 0; i < depth; i += kCells / kUnit) {
      const int64_t units = std::min(kCells / kUnit, depth - i), first = (k + i) * kUnit;
      const ConvPatch<S> patch(g, first, std::min(units * kUnit, numbers - first));
      int64_t tap = column % taps;
      const S* channel = src + column / taps * channel_stride;
      for (int64_t c0 = 0; c0 < columns; c0 += kColumns) {
        const int64_t width = std::min(kColumns, columns - c0);
        std::fill(block + width * kCells, block + kColumns * kCells, Cell(0));
        for (int64_t c = 0; c < width; ++c) {
          put_cells(patch, channel, tap, tap == 0 && c + 4 * taps < width ? 4 * channel_stride : 0, block + c * kCells);
          if (++tap == taps) tap = 0, channel += channel_stride;
        }
        transpose_cells(block, dst + c0 * depth + i * kColumns, units);
      }
    }
  };
}

}  // namespace

template <class S>
void conv_forward_gemm(const ConvProblem& p, const Image& src, const Image& weight, const Compute<S>* bias,
                       const Image& dst) {
  using Element = GemmElement<S>;
  const ConvGrid g = forward_grid(p, src);
  TileWriter<S> writer{};
  writer.batch_stride = dst.batch_stride, writer.channel_stride = dst.channel_stride;
  writer.plane = p.out_plane();
  writer.dense = true;
  const int64_t depth = p.group_in() * p.kernel_volume();
  const GemmShape shape{p.group_out(), g.positions(), depth_in<Element>(depth)};
  for (int64_t group = 0; group < p.groups; ++group) {
    writer.data = dst.as<S>() + group * p.group_out() * dst.channel_stride;
    writer.bias = bias ? bias + group * p.group_out() : nullptr;
    const S* from = src.as<S>() + group * p.group_in() * src.channel_stride;
    gemm<Element>(shape, pack_a_for(weight_rows<S>(p, weight, group), depth),
                  make_pack_patches(g, from, src.channel_stride, depth), writer);
  }
}

template <class S>
void conv_backward_data_gemm(const ConvProblem& p, const Image& dst_grad, const Image& weight, const Compute<S>* bias,
                             const Image& src_grad) {
  if (for_phases(p, [](const ConvPhase&) {})) fill_planes<S>(p, src_grad, bias);
  for (int64_t group = 0; group < p.groups; ++group) {
    const auto run_phases = [&](const auto* taps) {
      for_phases(p, [&](const ConvPhase& phase) { run_phase<S>(p, phase, group, dst_grad, taps, bias, src_grad); });
    };
    if (p.kernel_volume() == 1) {
      run_phases(weight.as<S>() + group * p.group_out() * weight.batch_stride);
    } else {
      run_phases(tap_major_weight<S>(p, weight, group));
    }
  }
}

template <class S>
void conv_backward_weight_gemm(const ConvProblem& p, const Image& src, const Image& dst_grad,
                               const Image& weight_grad) {
  using T = Compute<S>;
  using Element = GemmElement<S>;
  const int64_t plane = p.out_plane(), columns = p.group_in() * p.kernel_volume();
  // A few images at a time, so that the packed gradient stays in the cache.
  const int64_t images =
      std::max<int64_t>(1, (int64_t{8} << 20) / static_cast<int64_t>(p.group_out() * plane * sizeof(T)));
  for (int64_t group = 0; group < p.groups; ++group) {
    S* target = weight_grad.as<S>() + group * p.group_out() * columns;
    T* out;
    if constexpr (is_half<S>) {
      out = scratch<T>(kScratchResult2, p.group_out() * columns);
    } else {
      out = target;
    }
    for (int64_t n = 0; n < p.batch; n += images) {
      ConvProblem part = p;
      part.batch = std::min(images, p.batch - n);
      const ConvGrid g = forward_grid(part, src);
      const int64_t depth = part.batch * plane;
      const S* from = src.as<S>() + n * src.batch_stride + group * p.group_in() * src.channel_stride;
      const S* grad = dst_grad.as<S>() + n * dst_grad.batch_stride + group * p.group_out() * dst_grad.channel_stride;
      const auto finish = [&](int64_t row, int64_t rows, int64_t column, int64_t count, const T* tile, int64_t ld) {
        for (int64_t r = 0; r < rows; ++r) {
          T* to = out + (row + r) * columns + column;
          if (n == 0) {
            std::memcpy(to, tile + r * ld, count * sizeof(T));
          } else {
            for (int64_t c = 0; c < count; ++c) to[c] += tile[r * ld + c];
          }
        }
      };
      const GemmShape shape{p.group_out(), columns, depth_in<Element>(depth)};
      const auto pack_grad = make_pack_images(grad, dst_grad.batch_stride, dst_grad.channel_stride, plane);
      const auto pack_columns = make_pack_patch_columns(g, from, src.channel_stride, depth);
      if constexpr (std::is_same_v<Element, BFloat16Pair>) {
        gemm<Element>(shape, pair_up_a(pack_grad, depth), pack_columns, finish);
      } else {
        gemm<Element>(shape, pack_grad, pack_columns, finish);
      }
    }
    if constexpr (is_half<S>) from_float(out, target, p.group_out() * columns);
  }
}

#define NG_INSTANTIATE(S)                                                                                              \
  template void conv_forward_gemm<S>(const ConvProblem&, const Image&, const Image&, const Compute<S>*, const Image&); \
  template void conv_backward_data_gemm<S>(const ConvProblem&, const Image&, const Image&, const Compute<S>*,          \
                                           const Image&);                                                              \
  template void conv_backward_weight_gemm<S>(const ConvProblem&, const Image&, const Image&, const Image&);
NG_INSTANTIATE(float)
NG_INSTANTIATE(double)
NG_INSTANTIATE(Half)
NG_INSTANTIATE(BFloat16)
#undef NG_INSTANTIATE

}  // namespace ng
