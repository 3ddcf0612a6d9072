// Convolution of channels-last images as products whose rows are output pixels and whose columns are channels: forward
// and backward to the data read the images' own runs of channels, copied only where a patch has several; backward to
// the weight packs them as they lie. Weights are channels-last too.
#include <algorithm>
#include <vector>

#include "conv_pixels.h"
#include "convolution.h"
#include "vector_math.h"

namespace ng {
namespace {

constexpr int64_t kDepth = 256;  // k per block: a panel of b stays in the first-level cache
constexpr int64_t kPixelBlock = 8 * kGemmRows;

// Weights as b, packed once: blocks of k, in each the column panels.
template <class T>
struct PackedWeights {
  const T* data;
  int64_t depth, columns;  // depth in T, columns rounded up to panels

  int64_t block() const { return divide_up(depth, divide_up(depth, kDepth)); }
  const T* panel(int64_t k, int64_t size, int64_t column) const { return data + k * columns + column * size; }
};

template <class T, class Pack>
PackedWeights<T> pack_weights(const Pack& pack, int64_t depth, int64_t columns) {
  constexpr int64_t kColumns = kGemmColumns<T>;
  PackedWeights<T> result{nullptr, depth, round_up(columns, kColumns)};
  T* data = scratch<T>(kScratchPackA, depth * result.columns);
  const int64_t block = result.block();
  parallel_for(result.columns / kColumns, 0.5 * depth * kColumns, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns, count = std::min(columns, end * kColumns) - first;
    for (int64_t k = 0; k < depth; k += block) {
      const int64_t size = std::min(block, depth - k);
      pack(data + k * result.columns + first * size, first, count, k, size);
    }
  });
  result.data = data;
  return result;
}

// One implicit product of one group.
template <class S>
struct PixelPass {
  using T = GemmElement<S>;
  using A = Compute<S>;
  ConvGrid grid;
  const S* src;
  int64_t pixel_stride, channels;  // of src
  PackedWeights<T> weights;
  S* dst;
  int64_t dst_batch, dst_stride[3], outs;  // dst_stride: over the grid
  const A* bias;

  int64_t numbers() const { return channels * static_cast<int64_t>(grid.taps.size()); }
  static constexpr int64_t kUnit = std::is_same_v<T, BFloat16Pair> ? 2 : 1;

  // The rows of a may be read in place: one tap, position = pixel, and no two rows in the same cache sets.
  bool in_place() const {
    const ConvTap& tap = grid.taps[0];
    const bool plain = grid.taps.size() == 1 && std::equal(grid.grid, grid.grid + 3, grid.extent) &&
                       tap.offset[0] == 0 && tap.offset[1] == 0 && tap.offset[2] == 0 &&
                       grid.step[0] * grid.step[1] * grid.step[2] == 1;
    return plain && sizeof(S) * kUnit == sizeof(T) && pixel_stride % kUnit == 0 && channels % kUnit == 0 &&
           pixel_stride * sizeof(S) % 2048 != 0 && grid.batch_stride == grid.plane() * pixel_stride;
  }

  void run(int64_t first, int64_t count) const {
    constexpr int64_t kColumns = kGemmColumns<T>;
    const PixelRun pixels(grid, pixel_stride, first, count);
    const bool direct = in_place();
    const int64_t block = weights.block(), ld_copy = block + 16;
    T* copy = direct ? nullptr : scratch<T>(kScratchPackB, kPixelBlock * ld_copy);
    const bool once = block == weights.depth;
    A* sums = once ? nullptr : scratch<A>(kScratchSum, kPixelBlock * weights.columns);
    alignas(64) A tile[kGemmRows * kColumns];
    for (int64_t k = 0; k < weights.depth; k += block) {
      const int64_t depth = std::min(block, weights.depth - k);
      const bool last = k + depth == weights.depth;
      const T* rows = direct ? reinterpret_cast<const T*>(src + first * pixel_stride) + k : copy;
      const int64_t ld = direct ? pixel_stride / kUnit : ld_copy;
      if (!direct) copy_rows(pixels, count, k * kUnit, std::min(depth * kUnit, numbers() - k * kUnit), copy, ld_copy);
      for (int64_t c = 0; c < outs; c += kColumns) {
        const int64_t columns = std::min(kColumns, outs - c);
        for (int64_t r = 0; r < count; r += kGemmRows) {
          const int64_t tall = std::min<int64_t>(kGemmRows, count - r);
          gemm_kernel<T>(static_cast<int>(tall), columns > kLanes<T> ? 2 : 1, false)(
              depth, rows + r * ld, ld, 1, weights.panel(k, depth, c), kColumns, tile, kColumns);
          if (!once) add_partial(tile, tall, sums + r * weights.columns + c, k == 0, last);
          if (last) write(pixels, r, tall, c, columns, tile);
        }
      }
    }
  }

 private:
  // Few channels: the taps along a row of the kernel are one run of the image, cut at its borders.
  int64_t merged_taps() const {
    if (channels > 16 || channels != pixel_stride) return 1;
    size_t count = 1;
    while (count < grid.taps.size() && grid.taps[count].offset[0] == grid.taps[0].offset[0] &&
           grid.taps[count].offset[1] == grid.taps[0].offset[1] &&
           grid.taps[count].offset[2] == grid.taps[0].offset[2] + static_cast<int64_t>(count)) {
      ++count;
    }
    return grid.taps.size() % count == 0 ? static_cast<int64_t>(count) : 1;
  }

  // Numbers [k, k + count) of each row of the implicit matrix, side by side.
  void copy_rows(const PixelRun& pixels, int64_t rows, int64_t k, int64_t count, T* copy, int64_t ld) const {
    using Cell = std::conditional_t<kUnit == 2, BFloat16, T>;
    const int64_t merged = merged_taps(), run = merged * channels;
    for (int64_t done = 0; done < count;) {
      const int64_t tap = (k + done) / run * merged, channel = (k + done) % run,
                    length = std::min(run - channel, count - done);
      for (int64_t r = 0; r < rows; ++r) {
        Cell* to = reinterpret_cast<Cell*>(copy + r * ld) + done;
        int64_t first = 0, last = merged;  // of the merged taps, those inside the image
        const int64_t offset = merged == 1 ? pixels.offset(r, grid.taps[tap])
                                           : pixels.offset_of_run(r, grid.taps[tap], merged, &first, &last);
        const bool inside = merged == 1 ? offset >= 0 : first < last;
        const int64_t begin = std::max(channel, first * channels),
                      end = inside ? std::min(channel + length, last * channels) : begin;
        if (end - begin < length) std::memset(static_cast<void*>(to), 0, length * sizeof(Cell));
        if (begin >= end) continue;
        if constexpr (std::is_same_v<Cell, S>) {
          std::memcpy(static_cast<void*>(to + begin - channel), src + offset + begin, (end - begin) * sizeof(S));
        } else {
          to_float(src + offset + begin, to + begin - channel, end - begin);
        }
      }
      done += length;
    }
    if (count % kUnit != 0) {
      for (int64_t r = 0; r < rows; ++r) reinterpret_cast<Cell*>(copy + r * ld)[count] = Cell(0.0f);
    }
  }

  // sums (+)= tile, and tile = sums if last.
  void add_partial(A* tile, int64_t rows, A* sums, bool first, bool last) const {
    constexpr int64_t kColumns = kGemmColumns<T>;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t v = 0; v < kColumns; v += kLanes<A>) {
        A *sum = sums + r * weights.columns + v, *part = tile + r * kColumns + v;
        const Vector<A> total = first ? load(part) : load(part) + load(sum);
        store(last ? part : sum, total);
      }
    }
  }

  void write(const PixelRun& pixels, int64_t row, int64_t rows, int64_t column, int64_t columns, const A* tile) const {
    for (int64_t r = 0; r < rows; ++r) {
      S* to = dst + pixels.target(row + r, dst_batch, dst_stride) + column;
      for (int64_t c = 0; c < columns; c += kLanes<A>) {
        const int64_t lanes = std::min<int64_t>(kLanes<A>, columns - c);
        Vector<A> value = load(tile + r * kGemmColumns<T> + c);
        if (bias) value += load_some(bias + column + c, lanes);
        store_some(to + c, value, lanes);
      }
    }
  }
};

template <class S>
void run_pass(const PixelPass<S>& pass) {
  const int64_t positions = pass.grid.positions();
  int64_t block = std::min(kPixelBlock, round_up(divide_up(positions, 4 * cores()), kGemmRows));
  const int64_t blocks = divide_up(positions, block);
  parallel_for(blocks, 0.02 * block * pass.numbers() * pass.outs / PixelPass<S>::kUnit,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) pass.run(i * block, std::min(block, positions - i * block));
               });
}

ConvGrid source_grid(const ConvProblem& p, const Image& src) {
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
  return g;
}

}  // namespace

template <class S>
void conv_forward_pixels(const ConvProblem& p, const Image& src, const Image& weight, const Compute<S>* bias,
                         const Image& dst) {
  using T = GemmElement<S>;
  const int64_t numbers = p.kernel_volume() * p.group_in(), row = dst.row_stride();
  for (int64_t group = 0; group < p.groups; ++group) {
    PixelPass<S> pass{source_grid(p, src),
                      src.as<S>() + group * p.group_in(),
                      src.row_stride(),
                      p.group_in(),
                      {},
                      dst.as<S>() + group * p.group_out(),
                      p.out_plane() * row,
                      {p.out[1] * p.out[2] * row, p.out[2] * row, row},
                      p.group_out(),
                      bias ? bias + group * p.group_out() : nullptr};
    pass.grid.batch_stride = p.in_plane() * src.row_stride();
    const MatrixView<S> columns{weight.as<S>() + group * p.group_out() * numbers, 1, numbers};
    pass.weights = pack_weights<T>(pack_b_for(columns, numbers), depth_in<T>(numbers), p.group_out());
    run_pass(pass);
  }
}

template <class S>
void conv_backward_data_pixels(const ConvProblem& p, const Image& dst_grad, const Image& weight, const Compute<S>* bias,
                               const Image& src_grad) {
  using T = GemmElement<S>;
  const int64_t row = src_grad.row_stride(), taps_in_all = p.kernel_volume(), ins = p.group_in(), outs = p.group_out();
  const auto fill = [&] {
    parallel_for(p.batch * p.in_plane(), 0.1 * p.in_channels, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t c = 0; c < p.in_channels; ++c) src_grad.as<S>()[i * row + c] = bias ? S(bias[c]) : S(0);
      }
    });
  };
  if (for_phases(p, [](const ConvPhase&) {})) fill();
  for (int64_t group = 0; group < p.groups; ++group) {
    for_phases(p, [&](const ConvPhase& phase) {
      const int64_t start = (phase.first[0] * p.in[1] * p.in[2] + phase.first[1] * p.in[2] + phase.first[2]) * row;
      PixelPass<S> pass{phase.grid,
                        dst_grad.as<S>() + group * outs,
                        dst_grad.row_stride(),
                        outs,
                        {},
                        src_grad.as<S>() + group * ins + start,
                        p.in_plane() * row,
                        {p.stride[0] * p.in[1] * p.in[2] * row, p.stride[1] * p.in[2] * row, p.stride[2] * row},
                        ins,
                        bias ? bias + group * ins : nullptr};
      pass.grid.batch_stride = p.out_plane() * dst_grad.row_stride();
      // k = tap * outs + output channel; weight[output channel][tap][input channel].
      const S* from = weight.as<S>() + group * outs * taps_in_all * ins;
      const std::vector<int64_t>& taps = phase.taps;
      const auto line = [=, &taps](int64_t k) { return from + (k % outs * taps_in_all + taps[k / outs]) * ins; };
      const int64_t numbers = pass.numbers();
      pass.weights = pack_weights<T>(make_pack_lines<S>(line, numbers), depth_in<T>(numbers), ins);
      run_pass(pass);
    });
  }
}

template <class S>
void conv_backward_weight_pixels(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                 const Image& weight_grad) {
  using A = Compute<S>;
  using T = GemmElement<S>;
  const int64_t plane = p.out_plane(), taps = p.kernel_volume(), ins = p.group_in(), outs = p.group_out(),
                columns = taps * ins;
  const int64_t images = std::max<int64_t>(1, (int64_t{8} << 20) / static_cast<int64_t>(outs * plane * sizeof(A)));
  for (int64_t group = 0; group < p.groups; ++group) {
    S* target = weight_grad.as<S>() + group * outs * columns;
    A* out;
    if constexpr (is_half<S>) {
      out = scratch<A>(kScratchResult2, outs * columns);
    } else {
      out = target;
    }
    for (int64_t n = 0; n < p.batch; n += images) {
      ConvProblem part = p;
      part.batch = std::min(images, p.batch - n);
      ConvGrid g = source_grid(part, src);
      g.batch_stride = p.in_plane() * src.row_stride();
      const int64_t depth = part.batch * plane, grad_row = dst_grad.row_stride();
      const S* from = src.as<S>() + n * g.batch_stride + group * ins;
      const S* grad = dst_grad.as<S>() + n * plane * grad_row + group * outs;
      const auto pack_columns = [&](T* dst, int64_t column, int64_t count, int64_t k, int64_t units) {
        pack_pixel_columns<S>(g, src.row_stride(), from, ins, depth, dst, column, count, k, units);
      };
      const auto finish = [&](int64_t row, int64_t rows, int64_t column, int64_t count, const A* tile, int64_t ld) {
        for (int64_t r = 0; r < rows; ++r) {
          A* to = out + (row + r) * columns + column;
          for (int64_t c = 0; c < count; ++c) to[c] = n == 0 ? tile[r * ld + c] : to[c] + tile[r * ld + c];
        }
      };
      const GemmShape shape{outs, columns, depth_in<T>(depth)};
      gemm<T>(shape, pack_a_for(MatrixView<S>{grad, 1, grad_row}, depth), pack_columns, finish);
    }
    if constexpr (is_half<S>) from_float(out, target, outs * columns);
  }
}

#define NG_INSTANTIATE(S)                                                                                       \
  template void conv_forward_pixels<S>(const ConvProblem&, const Image&, const Image&, const Compute<S>*,       \
                                       const Image&);                                                           \
  template void conv_backward_data_pixels<S>(const ConvProblem&, const Image&, const Image&, const Compute<S>*, \
                                             const Image&);                                                     \
  template void conv_backward_weight_pixels<S>(const ConvProblem&, const Image&, const Image&, const Image&);
NG_INSTANTIATE(float)
NG_INSTANTIATE(double)
NG_INSTANTIATE(Half)
NG_INSTANTIATE(BFloat16)
#undef NG_INSTANTIATE

}  // namespace ng
