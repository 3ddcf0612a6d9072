// Convolution as one matrix product per group, reading patches in place (conv_patch.h): forward, backward to the data
// and backward to the weight, for row-major
// operands. No reordered copy of the images is made.
#include <algorithm>
#include <vector>

#include "conv_patch.h"
#include "convolution.h"
#include "gemm.h"

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
        g.taps.push_back({{i * p.dilation[0] - p.padding[0], j * p.dilation[1] - p.padding[1],
                           k * p.dilation[2] - p.padding[2]}});
      }
    }
  }
  flatten(g);
  return g;
}

// b of a product with columns = positions and k = channel * taps + tap.
template <class T> auto make_pack_patches(const ConvGrid& g, const T* src, int64_t channel_stride) {
  return [&g, src, channel_stride](T* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    const ConvPatch<T> patch(g, column, columns);
    const int64_t taps = static_cast<int64_t>(g.taps.size()), panel_size = depth * kGemmColumns<T>;
    if (patch.vectors() % kGemmVectors != 0) {
      // The last panel has one vector.
      T* last = dst + columns / kGemmColumns<T> * panel_size + kLanes<T>;
      for (int64_t i = 0; i < depth; ++i) store(last + i * kGemmColumns<T>, Vector<T>{});
    }
    detail::with_step(patch.step(), [&](auto step) {
      int64_t tap = k % taps;
      const T* channel = src + k / taps * channel_stride;
      T* row = dst;
      for (int64_t i = 0; i < depth; ++i, row += kGemmColumns<T>) {
        patch.template for_vectors<step.value>(channel, tap, [&](int64_t v, Vector<T> values) {
          store(row + v / kGemmVectors * panel_size + v % kGemmVectors * kLanes<T>, values);
        });
        if (++tap == taps) tap = 0, channel += channel_stride;
      }
    });
  };
}

// Writes a finished tile (rows = channels, columns = positions of the grid) into an image tensor.
template <class T> struct TileWriter {
  T* data;
  int64_t batch_stride, channel_stride;
  const T* bias;
  int64_t plane;    // positions per image
  bool dense;       // a plane's positions are consecutive in memory
  int64_t grid[3];  // if not: their grid and strides
  int64_t stride[3];

  void operator()(int64_t row, int64_t rows, int64_t column, int64_t columns, const T* tile, int64_t ld) const {
    while (columns > 0) {
      const int64_t image = column / plane, at = column % plane, count = std::min(columns, plane - at);
      T* out = data + image * batch_stride + row * channel_stride;
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
  static void write_run(T* out, const T* sums, int64_t count, T add) {
    if (count == kGemmColumns<T>) {
      const Vector<T> addend = broadcast(add);
      store(out, load(sums) + addend);
      store(out + kLanes<T>, load(sums + kLanes<T>) + addend);
      return;
    }
    for (int64_t i = 0; i < count; ++i) out[i] = sums[i] + add;
  }
  void scatter(T* out, const T* sums, int64_t at, int64_t count, T add) const {
    int64_t x = at % grid[2], y = at / grid[2] % grid[1], z = at / (grid[2] * grid[1]);
    for (int64_t i = 0; i < count; ++i) {
      out[z * stride[0] + y * stride[1] + x * stride[2]] = sums[i] + add;
      if (++x == grid[2]) {
        x = 0;
        if (++y == grid[1]) y = 0, ++z;
      }
    }
  }
};

// The weight of one group as a [channels][k] matrix.
template <class T> MatrixView<T> weight_rows(const ConvProblem& p, const Image& w, int64_t group) {
  return {w.as<T>() + group * p.group_out() * w.batch_stride, w.batch_stride, 1};
}

// a for backward to the data: rows = input channels, k = output channel * taps + tap, taps of one phase.
template <class T>
auto make_pack_transposed_weight(MatrixView<T> w, int64_t kernel_volume, const std::vector<int64_t>& taps) {
  return [=, &taps](T* dst, int64_t row, int64_t rows, int64_t k, int64_t depth) {
    const int64_t count = static_cast<int64_t>(taps.size());
    constexpr int64_t kMaxTaps = 64;
    alignas(64) T block[kMaxTaps * kGemmRows];
    for (int64_t i = 0; i < depth;) {
      const int64_t channel = (k + i) / count, first = (k + i) % count, last = std::min(count, first + depth - i);
      const T* from = w.data + channel * w.row_stride + row * kernel_volume;
      if (kernel_volume <= kMaxTaps) {
        transpose_block(from, kernel_volume, block, rows, rows, kernel_volume);
        for (int64_t t = first; t < last; ++t, ++i) std::memcpy(dst + i * rows, block + taps[t] * rows, rows * sizeof(T));
        continue;
      }
      for (int64_t t = first; t < last; ++t, ++i) {
        for (int64_t r = 0; r < rows; ++r) dst[i * rows + r] = from[r * kernel_volume + taps[t]];
      }
    }
  };
}

// Positions x of one residue class modulo the stride, and the taps that reach them.
struct Phase {
  int64_t first[3], count[3];
  std::vector<int64_t> taps[3], offsets[3];
};

Phase make_phase(const ConvProblem& p, const int64_t* residue) {
  Phase phase;
  for (int d = 0; d < 3; ++d) {
    phase.first[d] = residue[d];
    phase.count[d] = residue[d] < p.in[d] ? (p.in[d] - residue[d] + p.stride[d] - 1) / p.stride[d] : 0;
    for (int64_t k = 0; k < p.kernel[d]; ++k) {
      const int64_t position = residue[d] + p.padding[d] - k * p.dilation[d];
      if (position % p.stride[d] != 0) continue;
      phase.taps[d].push_back(k);
      phase.offsets[d].push_back(position / p.stride[d]);
    }
  }
  return phase;
}

template <class T>
void run_phase(const ConvProblem& p, const Phase& phase, const Image& dst_grad, const Image& weight,
               const T* bias, const Image& src_grad) {
  ConvGrid g{};
  g.batch = p.batch;
  g.batch_stride = dst_grad.batch_stride;
  std::vector<int64_t> taps;
  for (int d = 0; d < 3; ++d) g.grid[d] = phase.count[d], g.extent[d] = p.out[d], g.step[d] = 1;
  for (size_t i = 0; i < phase.taps[0].size(); ++i) {
    for (size_t j = 0; j < phase.taps[1].size(); ++j) {
      for (size_t k = 0; k < phase.taps[2].size(); ++k) {
        g.taps.push_back({{phase.offsets[0][i], phase.offsets[1][j], phase.offsets[2][k]}});
        taps.push_back((phase.taps[0][i] * p.kernel[1] + phase.taps[1][j]) * p.kernel[2] + phase.taps[2][k]);
      }
    }
  }
  const int64_t phase_plane = g.plane();
  TileWriter<T> writer{};
  writer.batch_stride = src_grad.batch_stride, writer.channel_stride = src_grad.channel_stride;
  writer.plane = phase_plane;
  writer.dense = phase_plane == p.in_plane();
  const int64_t row_strides[3] = {p.in[1] * p.in[2], p.in[2], 1};
  int64_t start = 0;
  for (int d = 0; d < 3; ++d) {
    writer.grid[d] = phase.count[d];
    writer.stride[d] = row_strides[d] * p.stride[d];
    start += phase.first[d] * row_strides[d];
  }
  flatten(g);
  for (int64_t group = 0; group < p.groups; ++group) {
    writer.data = src_grad.as<T>() + group * p.group_in() * src_grad.channel_stride + start;
    writer.bias = bias ? bias + group * p.group_in() : nullptr;
    const GemmShape shape{p.group_in(), g.positions(), p.group_out() * static_cast<int64_t>(taps.size())};
    const T* from = dst_grad.as<T>() + group * p.group_out() * dst_grad.channel_stride;
    const auto pack_a = make_pack_transposed_weight(weight_rows<T>(p, weight, group), p.kernel_volume(), taps);
    gemm<T>(shape, pack_a, make_pack_patches(g, from, dst_grad.channel_stride), writer);
  }
}

template <class T> void fill_planes(const ConvProblem& p, const Image& t, const T* bias) {
  const int64_t plane = p.in_plane();
  parallel_for(p.batch * p.in_channels, 0.1 * plane, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / p.in_channels, c = i % p.in_channels;
      std::fill_n(t.as<T>() + n * t.batch_stride + c * t.channel_stride, plane, bias ? bias[c] : T(0));
    }
  });
}

// a of the weight's gradient: rows = output channels, k = positions.
template <class T> auto make_pack_images(const T* data, int64_t batch_stride, int64_t channel_stride, int64_t plane) {
  return [=](T* dst, int64_t row, int64_t rows, int64_t k, int64_t depth) {
    while (depth > 0) {
      const int64_t image = k / plane, at = k % plane, count = std::min(depth, plane - at);
      transpose_block(data + image * batch_stride + row * channel_stride + at, channel_stride, dst, rows, rows, count);
      dst += rows * count;
      k += count;
      depth -= count;
    }
  };
}

// b of the weight's gradient: k = positions, columns = channel * taps + tap.
template <class T> auto make_pack_patch_columns(const ConvGrid& g, const T* src, int64_t channel_stride) {
  return [&g, src, channel_stride](T* dst, int64_t column, int64_t columns, int64_t k, int64_t depth) {
    constexpr int64_t kColumns = kGemmColumns<T>, kLane = kLanes<T>, kVectors = 4;
    const int64_t taps = static_cast<int64_t>(g.taps.size());
    alignas(64) T block[kColumns * kLane * kVectors] = {};
    for (int64_t i = 0; i < depth; i += kLane * kVectors) {
      const int64_t count = std::min(kLane * kVectors, depth - i);
      const ConvPatch<T> patch(g, k + i, count);
      detail::with_step(patch.step(), [&](auto step) {
        int64_t tap = column % taps;
        const T* channel = src + column / taps * channel_stride;
        for (int64_t c0 = 0; c0 < columns; c0 += kColumns) {
          const int64_t width = std::min(kColumns, columns - c0);
          if (width < kColumns) std::fill(block, block + kColumns * kLane * kVectors, T(0));
          for (int64_t c = 0; c < width; ++c) {
            T* line = block + c * kLane * kVectors;
            patch.template for_vectors<step.value>(channel, tap, [&](int64_t v, Vector<T> values) { store(line + v * kLane, values); });
            if (++tap == taps) tap = 0, channel += channel_stride;
          }
          transpose_block(block, kLane * kVectors, dst + c0 * depth + i * kColumns, kColumns, kColumns, count);
        }
      });
    }
  };
}

}  // namespace

template <class T>
void conv_forward_gemm(const ConvProblem& p, const Image& src, const Image& weight, const T* bias,
                       const Image& dst) {
  const ConvGrid g = forward_grid(p, src);
  TileWriter<T> writer{};
  writer.batch_stride = dst.batch_stride, writer.channel_stride = dst.channel_stride;
  writer.plane = p.out_plane();
  writer.dense = true;
  const GemmShape shape{p.group_out(), g.positions(), p.group_in() * p.kernel_volume()};
  for (int64_t group = 0; group < p.groups; ++group) {
    writer.data = dst.as<T>() + group * p.group_out() * dst.channel_stride;
    writer.bias = bias ? bias + group * p.group_out() : nullptr;
    const T* from = src.as<T>() + group * p.group_in() * src.channel_stride;
    gemm<T>(shape, make_pack_a<T>(weight_rows<T>(p, weight, group)), make_pack_patches(g, from, src.channel_stride),
            writer);
  }
}

template <class T>
void conv_backward_data_gemm(const ConvProblem& p, const Image& dst_grad, const Image& weight, const T* bias,
                             const Image& src_grad) {
  std::vector<Phase> phases;
  bool gaps = false;  // positions that no tap reaches
  int64_t residue[3];
  for (residue[0] = 0; residue[0] < p.stride[0]; ++residue[0]) {
    for (residue[1] = 0; residue[1] < p.stride[1]; ++residue[1]) {
      for (residue[2] = 0; residue[2] < p.stride[2]; ++residue[2]) {
        Phase phase = make_phase(p, residue);
        if (phase.count[0] * phase.count[1] * phase.count[2] == 0) continue;
        if (phase.taps[0].empty() || phase.taps[1].empty() || phase.taps[2].empty()) {
          gaps = true;
        } else {
          phases.push_back(std::move(phase));
        }
      }
    }
  }
  if (gaps) fill_planes(p, src_grad, bias);
  for (const Phase& phase : phases) run_phase(p, phase, dst_grad, weight, bias, src_grad);
}

template <class T>
void conv_backward_weight_gemm(const ConvProblem& p, const Image& src, const Image& dst_grad,
                               const Image& weight_grad) {
  const int64_t taps = p.kernel_volume(), plane = p.out_plane(), columns = p.group_in() * taps;
  // A few images at a time, so that the packed gradient stays in the cache.
  const int64_t images = std::max<int64_t>(1, (int64_t{8} << 20) / static_cast<int64_t>(p.group_out() * plane * sizeof(T)));
  for (int64_t group = 0; group < p.groups; ++group) {
    T* out = weight_grad.as<T>() + group * p.group_out() * weight_grad.batch_stride;
    for (int64_t n = 0; n < p.batch; n += images) {
      ConvProblem part = p;
      part.batch = std::min(images, p.batch - n);
      const ConvGrid g = forward_grid(part, src);
      const T* from = src.as<T>() + n * src.batch_stride + group * p.group_in() * src.channel_stride;
      const T* grad = dst_grad.as<T>() + n * dst_grad.batch_stride + group * p.group_out() * dst_grad.channel_stride;
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
      gemm<T>({p.group_out(), columns, part.batch * plane},
              make_pack_images(grad, dst_grad.batch_stride, dst_grad.channel_stride, plane),
              make_pack_patch_columns(g, from, src.channel_stride), finish);
    }
  }
}

#define NG_INSTANTIATE(T)                                                                                      \
  template void conv_forward_gemm<T>(const ConvProblem&, const Image&, const Image&, const T*,       \
                                     const Image&);                                                       \
  template void conv_backward_data_gemm<T>(const ConvProblem&, const Image&, const Image&, const T*, \
                                           const Image&);                                                 \
  template void conv_backward_weight_gemm<T>(const ConvProblem&, const Image&, const Image&,         \
                                             const Image&);
NG_INSTANTIATE(float)
NG_INSTANTIATE(double)
#undef NG_INSTANTIATE

}  // namespace ng
