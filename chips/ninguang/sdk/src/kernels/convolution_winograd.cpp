// 3 x 3 convolutions with steps of one by Winograd's F(2x2, 3x3): 16 products for 4 outputs in place of 36, and as
// exact in float32 as the direct sum. Serves forward and backward to the data. Needs AVX-512.
#include "convolution.h"

#if defined(__AVX512F__)

#include "gemm.h"
#include "winograd_tiles.h"

namespace ng {
namespace {

constexpr int64_t kPlaces = 16;                     // of a 4 x 4 transformed tile
constexpr int64_t kChannelBlock = 8 * kGemmRows;    // output channels whose products stay in the second-level cache
constexpr int64_t kColumns = kGemmColumns<float>;

// out = G w G^T over lanes, w[3][3].
inline void transform_weight(const Vector<float> (&w)[9], Vector<float> (&out)[16]) {
  Vector<float> half[4][3];
  for (int j = 0; j < 3; ++j) {
    const Vector<float> sum = w[j] + w[6 + j];
    half[0][j] = w[j];
    half[1][j] = (sum + w[3 + j]) * 0.5f;
    half[2][j] = (sum - w[3 + j]) * 0.5f;
    half[3][j] = w[6 + j];
  }
  for (int i = 0; i < 4; ++i) {
    const Vector<float> sum = half[i][0] + half[i][2];
    out[4 * i] = half[i][0];
    out[4 * i + 1] = (sum + half[i][1]) * 0.5f;
    out[4 * i + 2] = (sum - half[i][1]) * 0.5f;
    out[4 * i + 3] = half[i][2];
  }
}

// For each place the packed a of gemm.h: panels of kGemmRows output channels. weight[o][c][3][3] at o * out_stride +
// c * in_stride; `flip` turns the kernel around, as backward to the data needs.
void transform_weights(const float* weight, int64_t out_stride, int64_t in_stride, bool flip, int64_t outs, int64_t ins, float* packed) {
  parallel_for(divide_up(outs, kGemmRows), 2.0 * ins * kPlaces, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * kGemmRows, rows = std::min<int64_t>(kGemmRows, outs - row);
      alignas(64) float lanes[9 * 16];
      for (int64_t c = 0; c < ins; ++c) {
        detail::transpose_tile(weight + row * out_stride + c * in_stride, out_stride, lanes, 16, rows, 9);
        Vector<float> w[9], out[16];
        for (int t = 0; t < 9; ++t) w[t] = load(lanes + (flip ? 8 - t : t) * 16);
        transform_weight(w, out);
        const __mmask16 mask = static_cast<__mmask16>((1u << rows) - 1);
        for (int64_t place = 0; place < kPlaces; ++place) {
          _mm512_mask_storeu_ps(packed + place * outs * ins + row * ins + c * rows, mask, (__m512)out[place]);
        }
      }
    }
  });
}

// Tiles of one chunk: B^T d B of every channel, as the panels of gemm.h, one set per place.
void transform_input(const TileWindows& left, const TileWindows& right, const float* src, int64_t channel_stride,
                     int64_t channels, int64_t vectors, int64_t width, float* out) {
  const int64_t place_size = width * channels;
  for (int64_t c = 0; c < channels; ++c) {
    const float* channel = src + c * channel_stride;
    for (int64_t v = 0; v < vectors; ++v) {
      Vector<float> d[4][4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        __m512 low, high;
        left.load_row(channel, v, i, &low, &high);
        d[i][0] = (Vector<float>)even_elements(low, high), d[i][1] = (Vector<float>)odd_elements(low, high);
        right.load_row(channel, v, i, &low, &high);
        d[i][2] = (Vector<float>)even_elements(low, high), d[i][3] = (Vector<float>)odd_elements(low, high);
      }
      Vector<float> half[4][4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        half[0][j] = d[0][j] - d[2][j];
        half[1][j] = d[1][j] + d[2][j];
        half[2][j] = d[2][j] - d[1][j];
        half[3][j] = d[1][j] - d[3][j];
      }
      float* to = out + v / 2 * channels * kColumns + c * kColumns + v % 2 * kTileLanes;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        store(to + (4 * i) * place_size, half[i][0] - half[i][2]);
        store(to + (4 * i + 1) * place_size, half[i][1] + half[i][2]);
        store(to + (4 * i + 2) * place_size, half[i][2] - half[i][1]);
        store(to + (4 * i + 3) * place_size, half[i][1] - half[i][3]);
      }
    }
  }
}

// A^T m A of one channel's tiles, written to its output plane.
void transform_output(const TileWindows& windows, const float* products, int64_t place_size, int64_t vectors, float add, float* plane) {
  for (int64_t v = 0; v < vectors; ++v) {
    const float* from = products + v * kTileLanes;
    Vector<float> half[2][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Vector<float> m0 = load(from + j * place_size), m1 = load(from + (4 + j) * place_size);
      const Vector<float> m2 = load(from + (8 + j) * place_size), m3 = load(from + (12 + j) * place_size);
      half[0][j] = m0 + m1 + m2;
      half[1][j] = m1 - m2 - m3;
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512 even = (__m512)(half[i][0] + half[i][1] + half[i][2] + add);
      const __m512 odd = (__m512)(half[i][1] - half[i][2] - half[i][3] + add);
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
};

void run_chunk(const WinogradPass& p, const float* weights, int64_t tile, int64_t count) {
  const int64_t width = round_up(count, kColumns);
  const int64_t row = -p.grid.padding[0], column = -p.grid.padding[1];
  const TileWindows left(p.grid, p.in, tile, count, 4, row, column), right(p.grid, p.in, tile, count, 4, row, column + 2);
  const TileWindows windows(p.grid, p.out, tile, count, 2, 0, 0);
  float* tiles = scratch<float>(kScratchPackB, kPlaces * p.ins * width);
  const int64_t vectors = divide_up(count, kTileLanes);
  if (vectors * kTileLanes != width) {
    // The second half of the last panel is not transformed.
    std::fill_n(tiles, kPlaces * p.ins * width, 0.0f);
  }
  transform_input(left, right, p.src, p.in_channel_stride, p.ins, vectors, width, tiles);
  float* products = scratch<float>(kScratchSum, kPlaces * kChannelBlock * width);
  for (int64_t first = 0; first < p.outs; first += kChannelBlock) {
    const int64_t block = std::min(kChannelBlock, p.outs - first);
    for (int64_t place = 0; place < kPlaces; ++place) {
      for (int64_t r = 0; r < block; r += kGemmRows) {
        const int rows = static_cast<int>(std::min<int64_t>(kGemmRows, block - r));
        const float* a = weights + place * p.outs * p.ins + (first + r) * p.ins;
        for (int64_t c = 0; c < width; c += kColumns) {
          gemm_kernel<float>(rows, 2, true)(p.ins, a, 1, rows, tiles + place * p.ins * width + c * p.ins, kColumns,
                                            products + (place * kChannelBlock + r) * width + c, width);
        }
      }
    }
    for (int64_t r = 0; r < block; ++r) {
      transform_output(windows, products + r * width, kChannelBlock * width, vectors,
                       p.bias ? p.bias[first + r] : 0.0f, p.dst + (first + r) * p.out_channel_stride);
    }
  }
}

void run_pass(const WinogradPass& p, const float* weights) {
  const int64_t tiles = p.grid.tiles();
  int64_t chunk = std::min<int64_t>(128, std::max<int64_t>(64, round_up(8192 / p.ins, kColumns)));
  int64_t chunks = round_up(divide_up(tiles, chunk), cores());
  chunk = round_up(divide_up(tiles, chunks), kTileLanes);
  chunks = divide_up(tiles, chunk);
  parallel_for(chunks, 0.15 * chunk * p.ins * p.outs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_chunk(p, weights, i * chunk, std::min(chunk, tiles - i * chunk));
  });
}

TilePlane plane_of(const Image& image) { return {image.size[1], image.size[2], image.batch_stride}; }

}  // namespace

bool winograd_applies(const ConvProblem& p) {
  for (int d = 1; d < 3; ++d) {
    if (p.kernel[d] != 3 || p.stride[d] != 1 || p.dilation[d] != 1 || p.padding[d] > 2) return false;
  }
  const int64_t tiles = p.batch * divide_up(p.out[1], 2) * divide_up(p.out[2], 2);
  return p.in[0] == 1 && p.kernel[0] == 1 && p.padding[0] == 0 && p.groups == 1 && p.in_channels >= 32 &&
         p.in_channels <= 1024 && p.out_channels >= 32 && p.out_channels <= 1024 && p.out[1] >= 4 && p.out[2] >= 4 && tiles >= 96;
}

void conv_forward_winograd(const ConvProblem& p, const Image& src, const Image& weight, const float* bias, const Image& dst) {
  const WinogradPass pass{{p.batch, divide_up(p.out[1], 2), divide_up(p.out[2], 2), {p.padding[1], p.padding[2]}},
                          plane_of(src), plane_of(dst), src.as<float>(), dst.as<float>(), bias,
                          p.in_channels, p.out_channels, src.channel_stride, dst.channel_stride};
  float* packed = scratch<float>(kScratchPackA, kPlaces * p.in_channels * p.out_channels);
  transform_weights(weight.as<float>(), 9 * p.in_channels, 9, false, p.out_channels, p.in_channels, packed);
  run_pass(pass, packed);
}

void conv_backward_data_winograd(const ConvProblem& p, const Image& dst_grad, const Image& weight, const float* bias,
                                 const Image& src_grad) {
  const WinogradPass pass{{p.batch, divide_up(p.in[1], 2), divide_up(p.in[2], 2), {2 - p.padding[1], 2 - p.padding[2]}},
                          plane_of(dst_grad), plane_of(src_grad), dst_grad.as<float>(), src_grad.as<float>(), bias,
                          p.out_channels, p.in_channels, dst_grad.channel_stride, src_grad.channel_stride};
  float* packed = scratch<float>(kScratchPackA, kPlaces * p.in_channels * p.out_channels);
  transform_weights(weight.as<float>(), 9, 9 * p.in_channels, true, p.in_channels, p.out_channels, packed);
  run_pass(pass, packed);
}

}  // namespace ng

#else

namespace ng {
bool winograd_applies(const ConvProblem&) { return false; }
void conv_forward_winograd(const ConvProblem&, const Image&, const Image&, const float*, const Image&) {}
void conv_backward_data_winograd(const ConvProblem&, const Image&, const Image&, const float*, const Image&) {}
}  // namespace ng

#endif
