// The weight's gradient of a 3 x 3 convolution in Winograd's domain: per place of the 4 x 4 tile a product of the
// transformed output gradient with the transformed input, summed over tiles, then turned back to 3 x 3.
#include "convolution.h"

#if defined(__AVX512F__)

#include "gemm.h"
#include "winograd_tiles.h"
#include "winograd_transform.h"

namespace ng {
namespace {

constexpr int64_t kColumns = kGemmColumns<float>;

// The places of the tiles of one vector for one channel, at out[place * place_size].
void store_places(const TileVectors& t, float* out, int64_t place_size) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) store(out + (4 * i + j) * place_size, t[i][j]);
  }
}

// B^T d B
void transform_input(const TileWindows& left, const TileWindows& right, const float* channel, int64_t v,
                     TileVectors& out) {
  TileVectors d;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512 low, high;
    left.load_row(channel, v, i, 0, &low, &high);
    d[i][0] = (Vector<float>)even_elements(low, high), d[i][1] = (Vector<float>)odd_elements(low, high);
    right.load_row(channel, v, i, 0, &low, &high);
    d[i][2] = (Vector<float>)even_elements(low, high), d[i][3] = (Vector<float>)odd_elements(low, high);
  }
  transform_input_tile(d, out);
}

// A y A^T
void transform_gradient(const TileWindows& windows, const float* channel, int64_t v, TileVectors& out) {
  Vector<float> y[2][2];
  for (int i = 0; i < 2; ++i) {
    __m512 low, high;
    windows.load_row(channel, v, i, 0, &low, &high);
    y[i][0] = (Vector<float>)even_elements(low, high), y[i][1] = (Vector<float>)odd_elements(low, high);
  }
  transform_gradient_tile(y, out);
}

// Transforms `rows` channels of one vector of tiles and puts them, for each place, as lines of one tile each:
// out[place * place_size + tile * ld + channel].
template <class Transform>
void transform_lines(int64_t rows, const Transform& transform, float* out, int64_t place_size, int64_t ld) {
  alignas(64) float block[kTilePlaces * 16 * kTileLanes];
  for (int64_t r = 0; r < rows; ++r) {
    TileVectors tiles;
    transform(r, tiles);
    store_places(tiles, block + r * kTileLanes, 16 * kTileLanes);
  }
  for (int64_t place = 0; place < kTilePlaces; ++place) {
    detail::transpose_tile(block + place * 16 * kTileLanes, kTileLanes, out + place * place_size, ld, rows, kTileLanes);
  }
}

// G^T u G of one output channel and up to sixteen input channels, written to weight[channel][9].
void write_weight(const float* sums, int64_t place_size, int64_t count, float* weight) {
  const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
  TileVectors u;
  Vector<float> w[9];
  for (int64_t place = 0; place < kTilePlaces; ++place) {
    u[place / 4][place % 4] = (Vector<float>)_mm512_maskz_loadu_ps(mask, sums + place * place_size);
  }
  transform_weight_gradient_tile(u, w);
  alignas(64) float lines[9 * 16];
  for (int t = 0; t < 9; ++t) store(lines + t * 16, w[t]);
  detail::transpose_tile(lines, 16, weight, 9, 9, count);
}

struct WeightPass {
  TileGrid grid;
  TilePlane in, out;
  const float *src, *grad;
  int64_t ins, outs, in_channel_stride, out_channel_stride;
  float* sums;  // [place][outs][ins rounded up]

  int64_t line() const { return round_up(ins, kColumns); }

  // Adds the part of tiles [tile, tile + count); count is a multiple of kTileLanes but at the end.
  void add_chunk(int64_t tile, int64_t count, float* gradients, float* inputs) const {
    const int64_t depth = round_up(count, kTileLanes), vectors = depth / kTileLanes;
    const int64_t row = -grid.padding[0], column = -grid.padding[1];
    const TileWindows left(grid, in, tile, count, 4, row, column), right(grid, in, tile, count, 4, row, column + 2);
    const TileWindows windows(grid, out, tile, count, 2, 0, 0);
    const int64_t out_panels = divide_up(outs, kGemmRows), in_halves = divide_up(ins, 16);
    // Gradients: panels [depth][kGemmRows]; inputs: panels [depth][kColumns], filled half by half.
    parallel_for((out_panels + in_halves) * vectors, 3000, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t v = i % vectors, part = i / vectors;
        if (part < out_panels) {
          const int64_t first = part * kGemmRows, rows = std::min<int64_t>(kGemmRows, outs - first);
          transform_lines(
              rows,
              [&](int64_t r, TileVectors& t) {
                transform_gradient(windows, grad + (first + r) * out_channel_stride, v, t);
              },
              gradients + first * depth + v * kTileLanes * rows, outs * depth, rows);
        } else {
          const int64_t first = (part - out_panels) * 16, rows = std::min<int64_t>(16, ins - first);
          transform_lines(
              rows,
              [&](int64_t r, TileVectors& t) {
                transform_input(left, right, src + (first + r) * in_channel_stride, v, t);
              },
              inputs + first / kColumns * kColumns * depth + v * kTileLanes * kColumns + first % kColumns,
              line() * depth, kColumns);
        }
      }
    });
    const bool add = tile > 0;
    parallel_for(kTilePlaces * out_panels, 0.1 * depth * kGemmRows * ins, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) multiply(i / out_panels, i % out_panels, depth, gradients, inputs, add);
    });
  }

  // Columns past `ins` of the last input panel hold anything; their sums are never read.
  void multiply(int64_t place, int64_t panel, int64_t depth, const float* gradients, const float* inputs,
                bool add) const {
    const int64_t first = panel * kGemmRows;
    const int rows = static_cast<int>(std::min<int64_t>(kGemmRows, outs - first));
    const float* a = gradients + (place * outs + first) * depth;
    float* to = sums + (place * outs + first) * line();
    alignas(64) float tile[kGemmRows * kColumns];
    for (int64_t c = 0; c < line(); c += kColumns) {
      const float* b = inputs + (place * line() + c) * depth;
      if (!add) {
        gemm_kernel<float>(rows, 2, true)(depth, a, 1, rows, b, kColumns, to + c, line());
        continue;
      }
      gemm_kernel<float>(rows, 2, true)(depth, a, 1, rows, b, kColumns, tile, kColumns);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t v = 0; v < kColumns; v += 16) {
          float* sum = to + r * line() + c + v;
          store(sum, load(sum) + load(tile + r * kColumns + v));
        }
      }
    }
  }
};

TilePlane plane_of(const Image& image) { return {image.size[1], image.size[2], image.batch_stride}; }

}  // namespace

void conv_backward_weight_winograd(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                   const Image& weight_grad) {
  WeightPass pass{{p.batch, divide_up(p.out[1], 2), divide_up(p.out[2], 2), {p.padding[1], p.padding[2]}},
                  plane_of(src),
                  plane_of(dst_grad),
                  src.as<float>(),
                  dst_grad.as<float>(),
                  p.in_channels,
                  p.out_channels,
                  src.channel_stride,
                  dst_grad.channel_stride,
                  nullptr};
  const int64_t line = pass.line(), tiles = pass.grid.tiles();
  // A few megabytes of transformed tiles at a time.
  const int64_t most =
      std::max<int64_t>(128, (1 << 20) / (kTilePlaces * (line + p.out_channels)) / kTileLanes * kTileLanes);
  const int64_t chunk = round_up(divide_up(tiles, divide_up(tiles, most)), kTileLanes);
  pass.sums = scratch<float>(kScratchSum, kTilePlaces * p.out_channels * line);
  float* gradients = scratch<float>(kScratchPackA, kTilePlaces * p.out_channels * chunk);
  float* inputs = scratch<float>(kScratchPackB, kTilePlaces * line * chunk);
  if (line != p.in_channels) std::fill_n(inputs, kTilePlaces * line * chunk, 0.0f);
  for (int64_t tile = 0; tile < tiles; tile += chunk)
    pass.add_chunk(tile, std::min(chunk, tiles - tile), gradients, inputs);
  parallel_for(p.out_channels, 2.0 * p.in_channels, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t c = 0; c < p.in_channels; c += 16) {
        write_weight(pass.sums + o * line + c, p.out_channels * line, std::min<int64_t>(16, p.in_channels - c),
                     weight_grad.as<float>() + (o * p.in_channels + c) * 9);
      }
    }
  });
}

}  // namespace ng

#else

namespace ng {
void conv_backward_weight_winograd(const ConvProblem&, const Image&, const Image&, const Image&) {}
}  // namespace ng

#endif
