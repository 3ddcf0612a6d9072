// Winograd's F(2x2, 3x3) for channels-last images: lanes are channels, so that tiles need no gathering. Products have
// tiles as rows; neither side of the weight's gradient is packed. Forward, backward to the data and to the weight.
#include <vector>

#include "convolution.h"
#include "gemm.h"
#include "vector_math.h"
#include "winograd_transform.h"

namespace ng {
namespace {

constexpr int64_t kLane = kLanes<float>;
constexpr int64_t kColumns = kGemmColumns<float>;
constexpr int64_t kPad = 16;                     // keeps the rows of a product out of each other's cache sets
constexpr int64_t kChannelBlock = 4 * kColumns;  // output channels whose products stay in the second-level cache

struct PixelGrid {
  int64_t batch, rows, columns;  // tiles
  int64_t padding[2];
  int64_t tiles() const { return batch * rows * columns; }
};

struct PixelPlane {
  float* data;
  int64_t height, width, row;  // row: elements from pixel to pixel

  // Pixel (y, x) of an image; nullptr outside.
  float* pixel(int64_t image, int64_t y, int64_t x) const {
    if (y < 0 || y >= height || x < 0 || x >= width) return nullptr;
    return data + ((image * height + y) * width + x) * row;
  }
};

struct Tile {
  int64_t image, y, x;
};
Tile tile_at(const PixelGrid& g, int64_t index) {
  const int64_t per_image = g.rows * g.columns;
  return {index / per_image, index % per_image / g.columns, index % g.columns};
}

// B^T d B of one tile's channels: out[place * place_size + channel]. zeros: as many as channels.
void transform_input(const PixelGrid& g, const PixelPlane& in, int64_t index, int64_t channels, const float* zeros,
                     float* out, int64_t place_size) {
  const Tile tile = tile_at(g, index);
  const float* pixels[16];
  for (int i = 0; i < 16; ++i) {
    const float* p = in.pixel(tile.image, 2 * tile.y - g.padding[0] + i / 4, 2 * tile.x - g.padding[1] + i % 4);
    pixels[i] = p ? p : zeros;
  }
  for (int64_t c = 0; c < channels; c += kLane) {
    TileVectors d, t;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) d[i / 4][i % 4] = load_some(pixels[i] + c, channels - c);
    transform_input_tile(d, t);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) store(out + i * place_size + c, t[i / 4][i % 4]);
  }
}

// A y A^T of one tile of the output's gradient.
void transform_gradient(const PixelGrid& g, const PixelPlane& grad, int64_t index, int64_t channels, const float* zeros,
                        float* out, int64_t place_size) {
  const Tile tile = tile_at(g, index);
  const float* pixels[4];
  for (int i = 0; i < 4; ++i) {
    const float* p = grad.pixel(tile.image, 2 * tile.y + i / 2, 2 * tile.x + i % 2);
    pixels[i] = p ? p : zeros;
  }
  for (int64_t c = 0; c < channels; c += kLane) {
    Vector<float> y[2][2];
    TileVectors t;
    for (int i = 0; i < 4; ++i) y[i / 2][i % 2] = load_some(pixels[i] + c, channels - c);
    transform_gradient_tile(y, t);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) store(out + i * place_size + c, t[i / 4][i % 4]);
  }
}

// Sums for output channels [first, first + count) of one tile to its pixels.
void transform_output(const PixelGrid& g, const PixelPlane& out, int64_t index, int64_t first, int64_t count,
                      const float* sums, int64_t place_size, const float* bias) {
  const Tile tile = tile_at(g, index);
  float* pixels[4];
  for (int i = 0; i < 4; ++i) pixels[i] = out.pixel(tile.image, 2 * tile.y + i / 2, 2 * tile.x + i % 2);
  for (int64_t c = 0; c < count; c += kLane) {
    TileVectors m;
    Vector<float> y[2][2];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) m[i / 4][i % 4] = load(sums + i * place_size + c);
    transform_output_tile(m, y);
    const Vector<float> add = bias ? load_some(bias + first + c, count - c) : Vector<float>{};
    for (int i = 0; i < 4; ++i) {
      if (pixels[i]) store_some(pixels[i] + first + c, y[i / 2][i % 2] + add, count - c);
    }
  }
}

// The transformed weights as b for each place: panels of kColumns columns, rows k.
// Forward: k = input channel, columns = output channels; backward: the other way round, kernel turned.
// weight[output channel][tap][input channel].
void transform_weights(const float* weight, int64_t outs, int64_t ins, bool backward, float* packed) {
  const int64_t depth = backward ? outs : ins, columns = round_up(backward ? ins : outs, kColumns);
  const int64_t place_size = depth * columns;
  parallel_for(divide_up(outs, kLane), 1.0 * ins * kLane, [&](int64_t begin, int64_t end) {
    alignas(64) float block[kTilePlaces * kLane * kLane];
    for (int64_t o0 = begin * kLane; o0 < std::min(outs, end * kLane); o0 += kLane) {
      const int64_t rows = std::min<int64_t>(kLane, outs - o0);
      for (int64_t c = 0; c < ins; c += kLane) {
        const int64_t lanes = std::min<int64_t>(kLane, ins - c);
        for (int64_t r = 0; r < rows; ++r) {
          Vector<float> taps[9];
          TileVectors t;
          for (int k = 0; k < 9; ++k)
            taps[k] = load_some(weight + ((o0 + r) * 9 + (backward ? 8 - k : k)) * ins + c, lanes);
          transform_weight_tile(taps, t);
          for (int64_t place = 0; place < kTilePlaces; ++place) {
            const Vector<float> value = t[place / 4][place % 4];
            if (backward) {
              store_some(
                  packed + place * place_size + c / kColumns * kColumns * depth + (o0 + r) * kColumns + c % kColumns,
                  value, lanes);
            } else {
              store(block + (place * kLane + r) * kLane, value);
            }
          }
        }
        if (backward) continue;
        for (int64_t place = 0; place < kTilePlaces; ++place) {
          float* to = packed + place * place_size + o0 / kColumns * kColumns * depth + c * kColumns + o0 % kColumns;
          transpose_block(block + place * kLane * kLane, kLane, to, kColumns, rows, lanes);
        }
      }
    }
  });
}

struct PixelPass {
  PixelGrid grid;
  PixelPlane in, out;
  int64_t ins, outs;
  const float* weights;  // transformed
  const float* bias;
  const float* zeros;

  void run(int64_t tile, int64_t count) const {
    const int64_t ld = round_up(ins, kLane) + kPad, place_size = count * ld, columns = round_up(outs, kColumns);
    float* tiles = scratch<float>(kScratchPackB, kTilePlaces * place_size);
    for (int64_t i = 0; i < count; ++i) transform_input(grid, in, tile + i, ins, zeros, tiles + i * ld, place_size);
    const int64_t sums_size = count * kChannelBlock;
    float* sums = scratch<float>(kScratchSum, kTilePlaces * sums_size);
    for (int64_t first = 0; first < outs; first += kChannelBlock) {
      const int64_t block = std::min(kChannelBlock, outs - first);
      for (int64_t place = 0; place < kTilePlaces; ++place) {
        for (int64_t c = 0; c < block; c += kColumns) {
          const float* b = weights + place * ins * columns + (first + c) * ins;
          for (int64_t r = 0; r < count; r += kGemmRows) {
            const int rows = static_cast<int>(std::min<int64_t>(kGemmRows, count - r));
            gemm_kernel<float>(rows, 2, false)(ins, tiles + place * place_size + r * ld, ld, 1, b, kColumns,
                                               sums + place * sums_size + r * kChannelBlock + c, kChannelBlock);
          }
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        transform_output(grid, out, tile + i, first, block, sums + i * kChannelBlock, sums_size, bias);
      }
    }
  }
};

void run_pass(PixelPass pass, const float* weight, bool backward) {
  const int64_t depth = pass.ins, columns = round_up(pass.outs, kColumns), tiles = pass.grid.tiles();
  float* packed = scratch<float>(kScratchPackA, kTilePlaces * depth * columns);
  if (columns != pass.outs) std::fill_n(packed, kTilePlaces * depth * columns, 0.0f);
  transform_weights(weight, backward ? pass.ins : pass.outs, backward ? pass.outs : pass.ins, backward, packed);
  pass.weights = packed;
  const std::vector<float> zeros(static_cast<size_t>(pass.ins), 0.0f);
  pass.zeros = zeros.data();
  const int64_t most = (pass.ins <= 128 ? 8 : 4) * kGemmRows;
  const int64_t chunks = round_up(divide_up(tiles, most), cores()),
                chunk = round_up(divide_up(tiles, chunks), kGemmRows);
  parallel_for(divide_up(tiles, chunk), 0.15 * chunk * pass.ins * pass.outs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pass.run(i * chunk, std::min(chunk, tiles - i * chunk));
  });
}

PixelPlane plane_of(const Image& image) {
  return {image.as<float>(), image.size[1], image.size[2], image.row_stride()};
}

}  // namespace

void conv_forward_winograd_pixels(const ConvProblem& p, const Image& src, const Image& weight, const float* bias,
                                  const Image& dst) {
  const PixelGrid grid{p.batch, divide_up(p.out[1], 2), divide_up(p.out[2], 2), {p.padding[1], p.padding[2]}};
  run_pass({grid, plane_of(src), plane_of(dst), p.in_channels, p.out_channels, nullptr, bias, nullptr},
           weight.as<float>(), false);
}

void conv_backward_data_winograd_pixels(const ConvProblem& p, const Image& dst_grad, const Image& weight,
                                        const float* bias, const Image& src_grad) {
  const PixelGrid grid{p.batch, divide_up(p.in[1], 2), divide_up(p.in[2], 2), {2 - p.padding[1], 2 - p.padding[2]}};
  run_pass({grid, plane_of(dst_grad), plane_of(src_grad), p.out_channels, p.in_channels, nullptr, bias, nullptr},
           weight.as<float>(), true);
}

void conv_backward_weight_winograd_pixels(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                          const Image& weight_grad) {
  const PixelGrid grid{p.batch, divide_up(p.out[1], 2), divide_up(p.out[2], 2), {p.padding[1], p.padding[2]}};
  const PixelPlane in = plane_of(src), grad = plane_of(dst_grad);
  const int64_t outs = p.out_channels, ins = p.in_channels, tiles = grid.tiles(), line = round_up(ins, kColumns);
  const int64_t ld_in = line + kPad, ld_out = round_up(outs, kLane) + kPad;
  const int64_t most = std::max<int64_t>(128, (1 << 20) / (kTilePlaces * (ld_in + ld_out)));
  const int64_t chunk = divide_up(tiles, divide_up(tiles, most));
  float* sums = scratch<float>(kScratchSum, kTilePlaces * outs * line);
  float* inputs = scratch<float>(kScratchPackB, kTilePlaces * chunk * ld_in);
  float* gradients = scratch<float>(kScratchPackA, kTilePlaces * chunk * ld_out);
  if (line != ins) std::fill_n(inputs, kTilePlaces * chunk * ld_in, 0.0f);
  const std::vector<float> zeros(static_cast<size_t>(std::max(ins, outs)), 0.0f);
  for (int64_t tile = 0; tile < tiles; tile += chunk) {
    const int64_t count = std::min(chunk, tiles - tile);
    parallel_for(count, 1.0 * (ins + outs), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        transform_input(grid, in, tile + i, ins, zeros.data(), inputs + i * ld_in, chunk * ld_in);
        transform_gradient(grid, grad, tile + i, outs, zeros.data(), gradients + i * ld_out, chunk * ld_out);
      }
    });
    const int64_t panels = divide_up(outs, kGemmRows);
    parallel_for(kTilePlaces * panels, 0.1 * count * kGemmRows * ins, [&](int64_t begin, int64_t end) {
      alignas(64) float part[kGemmRows * kColumns];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t place = i / panels, row = i % panels * kGemmRows;
        const int rows = static_cast<int>(std::min<int64_t>(kGemmRows, outs - row));
        for (int64_t c = 0; c < line; c += kColumns) {
          gemm_kernel<float>(rows, 2, false)(count, gradients + place * chunk * ld_out + row, 1, ld_out,
                                             inputs + place * chunk * ld_in + c, ld_in, part, kColumns);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t v = 0; v < kColumns; v += kLane) {
              float* sum = sums + (place * outs + row + r) * line + c + v;
              const Vector<float> value = load(part + r * kColumns + v);
              store(sum, tile == 0 ? value : load(sum) + value);
            }
          }
        }
      }
    });
  }
  parallel_for(outs, 1.0 * ins, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t c = 0; c < ins; c += kLane) {
        TileVectors u;
        Vector<float> w[9];
        for (int64_t place = 0; place < kTilePlaces; ++place)
          u[place / 4][place % 4] = load(sums + (place * outs + o) * line + c);
        transform_weight_gradient_tile(u, w);
        for (int64_t t = 0; t < 9; ++t) store_some(weight_grad.as<float>() + (o * 9 + t) * ins + c, w[t], ins - c);
      }
    }
  });
}

}  // namespace ng
