// 3 x 3 convolutions with steps of one by Winograd's F(2x2, 3x3): 16 products for 4 outputs in place of 36, and as
// exact in float32 as the direct sum. Serves forward and backward to the data. Needs AVX-512.
#include "convolution.h"

#if defined(__AVX512F__)

#include "gemm.h"
#include "winograd_tiles.h"
#include "winograd_transform.h"

namespace ng {
namespace {

constexpr int64_t kChannelBlock = 8 * kGemmRows;  // output channels whose products stay in the second-level cache
constexpr int64_t kFreshBlock = 2 * kGemmRows;    // the same, if their weights are transformed there too
constexpr int64_t kColumns = kGemmColumns<float>;

// weight[o][c][3][3] at o * out_stride + c * in_stride; `flip` turns the kernel around, as backward to the data needs.
struct Weights {
  const float* data;
  int64_t out_stride, in_stride;
  bool flip;
};

// Output channels [first, first + count), of `ins` inputs, for each place as the packed a of gemm.h: panels of
// kGemmRows output channels, from packed + place * place_size on.
void transform_weights(const Weights& w, int64_t first, int64_t count, int64_t ins, float* packed, int64_t place_size) {
  for (int64_t row = 0; row < count; row += kGemmRows) {
    const int64_t rows = std::min<int64_t>(kGemmRows, count - row);
    const __mmask16 mask = static_cast<__mmask16>((1u << rows) - 1);
    alignas(64) float lanes[9 * 16];
    for (int64_t c = 0; c < ins; ++c) {
      detail::transpose_tile(w.data + (first + row) * w.out_stride + c * w.in_stride, w.out_stride, lanes, 16, rows, 9);
      Vector<float> taps[9];
      TileVectors out;
      for (int t = 0; t < 9; ++t) taps[t] = load(lanes + (w.flip ? 8 - t : t) * 16);
      transform_weight_tile(taps, out);
      float* to = packed + row * ins + c * rows;
      for (int64_t place = 0; place < kTilePlaces; ++place) {
        _mm512_mask_storeu_ps(to + place * place_size, mask, (__m512)out[place / 4][place % 4]);
      }
    }
  }
}

// Tiles of one chunk: B^T d B of every channel, as the panels of gemm.h, one set per place.
void transform_input(const TileWindows& left, const TileWindows& right, const float* src, int64_t channel_stride,
                     int64_t channels, int64_t vectors, int64_t width, float* out) {
  const int64_t place_size = width * channels;
  for (int64_t c = 0; c < channels; ++c) {
    const float* channel = src + c * channel_stride;
    const int64_t ahead = c + 2 < channels ? 2 * channel_stride : 0;
    for (int64_t v = 0; v < vectors; ++v) {
      TileVectors d, t;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        __m512 low, high;
        // Two of the four rows are new to each row of tiles.
        left.load_row(channel, v, i, i == 1 || i == 2 ? ahead : 0, &low, &high);
        d[i][0] = (Vector<float>)even_elements(low, high), d[i][1] = (Vector<float>)odd_elements(low, high);
        right.load_row(channel, v, i, 0, &low, &high);
        d[i][2] = (Vector<float>)even_elements(low, high), d[i][3] = (Vector<float>)odd_elements(low, high);
      }
      transform_input_tile(d, t);
      float* to = out + v / 2 * channels * kColumns + c * kColumns + v % 2 * kTileLanes;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) store(to + (4 * i + j) * place_size, t[i][j]);
      }
    }
  }
}

// A^T m A of one channel's tiles, written to its output plane.
void transform_output(const TileWindows& windows, const float* products, int64_t place_size, int64_t vectors, float add,
                      float* plane) {
  for (int64_t v = 0; v < vectors; ++v) {
    const float* from = products + v * kTileLanes;
    TileVectors m;
    Vector<float> y[2][2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) m[i][j] = load(from + (4 * i + j) * place_size);
    }
    transform_output_tile(m, y);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512 even = (__m512)(y[i][0] + add), odd = (__m512)(y[i][1] + add);
      windows.store_row(plane, v, i, interleave_low(even, odd), interleave_high(even, odd));
    }
  }
}

struct WinogradPass {
  TileGrid grid;
  TilePlane in, out;
  const float* src;
  float* dst;
  const float* bias;
  int64_t ins, outs, in_channel_stride, out_channel_stride;
  Weights weights;
  const float* transformed;  // all of the weights; nullptr: each chunk transforms them as it goes
};

// Tiles [tile, tile + count), output channels [out0, out1).
void run_chunk(const WinogradPass& p, int64_t tile, int64_t count, int64_t out0, int64_t out1) {
  const int64_t width = round_up(count, kColumns), vectors = divide_up(count, kTileLanes);
  const int64_t row = -p.grid.padding[0], column = -p.grid.padding[1];
  const TileWindows left(p.grid, p.in, tile, count, 4, row, column),
      right(p.grid, p.in, tile, count, 4, row, column + 2);
  const TileWindows windows(p.grid, p.out, tile, count, 2, 0, 0);
  float* tiles = scratch<float>(kScratchPackB, kTilePlaces * p.ins * width);
  // The second half of the last panel may not be transformed.
  if (vectors * kTileLanes != width) std::fill_n(tiles, kTilePlaces * p.ins * width, 0.0f);
  transform_input(left, right, p.src, p.in_channel_stride, p.ins, vectors, width, tiles);
  const int64_t channel_block = p.transformed ? kChannelBlock : kFreshBlock;
  float* products = scratch<float>(kScratchSum, kTilePlaces * channel_block * width);
  float* fresh = p.transformed ? nullptr : scratch<float>(kScratchOperand3, kTilePlaces * kFreshBlock * p.ins);
  for (int64_t first = out0; first < out1; first += channel_block) {
    const int64_t block = std::min(channel_block, out1 - first);
    if (fresh) transform_weights(p.weights, first, block, p.ins, fresh, kFreshBlock * p.ins);
    for (int64_t place = 0; place < kTilePlaces; ++place) {
      const float* weights =
          fresh ? fresh + place * kFreshBlock * p.ins : p.transformed + (place * p.outs + first) * p.ins;
      for (int64_t r = 0; r < block; r += kGemmRows) {
        const int rows = static_cast<int>(std::min<int64_t>(kGemmRows, block - r));
        for (int64_t c = 0; c < width; c += kColumns) {
          gemm_kernel<float>(rows, 2, true)(p.ins, weights + r * p.ins, 1, rows,
                                            tiles + place * p.ins * width + c * p.ins, kColumns,
                                            products + (place * channel_block + r) * width + c, width);
        }
      }
    }
    for (int64_t r = 0; r < block; ++r) {
      transform_output(windows, products + r * width, channel_block * width, vectors, p.bias ? p.bias[first + r] : 0.0f,
                       p.dst + (first + r) * p.out_channel_stride);
    }
  }
}

void run_pass(WinogradPass p) {
  const int64_t tiles = p.grid.tiles();
  int64_t chunk = std::min<int64_t>(128, std::max<int64_t>(64, round_up(8192 / p.ins, kColumns)));
  int64_t chunks = divide_up(tiles, chunk);
  if (chunks > cores()) chunks = round_up(chunks, cores());
  chunk = round_up(divide_up(tiles, chunks), kTileLanes);
  chunks = divide_up(tiles, chunk);
  // Few chunks share out the output channels too, and are better off without the large transformed weights.
  const int64_t splits = chunks >= cores() ? 1 : divide_up(cores(), chunks);
  const int64_t per_split = round_up(divide_up(p.outs, splits), kGemmRows);
  if (chunks > 2 * cores()) {
    float* packed = scratch<float>(kScratchPackA, kTilePlaces * p.ins * p.outs);
    parallel_for(divide_up(p.outs, kGemmRows), 1.0 * p.ins * kTilePlaces, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kGemmRows, count = std::min(p.outs, end * kGemmRows) - first;
      transform_weights(p.weights, first, count, p.ins, packed + first * p.ins, p.outs * p.ins);
    });
    p.transformed = packed;
  }
  parallel_for(chunks * splits, 0.15 * chunk * p.ins * per_split, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t tile = i / splits * chunk, out0 = i % splits * per_split, out1 = std::min(p.outs, out0 + per_split);
      if (out0 < out1) run_chunk(p, tile, std::min(chunk, tiles - tile), out0, out1);
    }
  });
}

TilePlane plane_of(const Image& image) { return {image.size[1], image.size[2], image.batch_stride}; }

}  // namespace

bool winograd_applies(const ConvProblem& p) { return winograd_suits(p); }

void conv_forward_winograd(const ConvProblem& p, const Image& src, const Image& weight, const float* bias,
                           const Image& dst) {
  run_pass({{p.batch, divide_up(p.out[1], 2), divide_up(p.out[2], 2), {p.padding[1], p.padding[2]}},
            plane_of(src),
            plane_of(dst),
            src.as<float>(),
            dst.as<float>(),
            bias,
            p.in_channels,
            p.out_channels,
            src.channel_stride,
            dst.channel_stride,
            {weight.as<float>(), 9 * p.in_channels, 9, false},
            nullptr});
}

void conv_backward_data_winograd(const ConvProblem& p, const Image& dst_grad, const Image& weight, const float* bias,
                                 const Image& src_grad) {
  run_pass({{p.batch, divide_up(p.in[1], 2), divide_up(p.in[2], 2), {2 - p.padding[1], 2 - p.padding[2]}},
            plane_of(dst_grad),
            plane_of(src_grad),
            dst_grad.as<float>(),
            src_grad.as<float>(),
            bias,
            p.out_channels,
            p.in_channels,
            dst_grad.channel_stride,
            src_grad.channel_stride,
            {weight.as<float>(), 9, 9 * p.in_channels, true},
            nullptr});
}

}  // namespace ng

#else

namespace ng {
bool winograd_applies(const ConvProblem&) { return false; }
void conv_forward_winograd(const ConvProblem&, const Image&, const Image&, const float*, const Image&) {}
void conv_backward_data_winograd(const ConvProblem&, const Image&, const Image&, const float*, const Image&) {}
}  // namespace ng

#endif
