// Convolutions with one or very few channels per group, where a matrix product has nothing to reuse: each output plane
// is summed tap by tap. Row-major: lanes are neighbouring positions; channels-last: lanes are channels.
#include <vector>

#include "conv_pixels.h"
#include "convolution.h"
#include "vector_math.h"

namespace ng {
namespace {

// Positions along a row in vectors: for each vector and each offset of a tap along the row, the lanes inside the image.
class RowMasks {
 public:
  RowMasks(const ConvGrid& g, int64_t lanes) : vectors_((g.grid[2] + lanes - 1) / lanes), taps_(g.taps.size()) {
    for (int64_t v = 0; v < vectors_; ++v) {
      const int64_t count = std::min(lanes, g.grid[2] - v * lanes), step = g.step[2];
      for (const ConvTap& tap : g.taps) {
        const int64_t x = v * lanes * step + tap.offset[2];
        const int64_t first = x < 0 ? (-x + step - 1) / step : 0;
        const int64_t last = x >= g.extent[2] ? 0 : std::min(count, (g.extent[2] - x + step - 1) / step);
        masks_.push_back(first < last ? ((1u << (last - first)) - 1u) << first : 0u);
      }
    }
  }
  int64_t vectors() const { return vectors_; }
  uint32_t mask(int64_t v, size_t tap) const { return masks_[v * taps_ + tap]; }

 private:
  const int64_t vectors_;
  const size_t taps_;
  std::vector<uint32_t> masks_;
};

// The taps that fall inside the image at one output row, and where their source row starts.
struct RowTaps {
  struct Use {
    size_t tap;
    int64_t offset;  // of source position 0 of the row, plus the tap's own offset along it
  };
  std::vector<Use> uses;

  RowTaps(const ConvGrid& g, int64_t z, int64_t y) {
    for (size_t t = 0; t < g.taps.size(); ++t) {
      const int64_t at[2] = {z * g.step[0] + g.taps[t].offset[0], y * g.step[1] + g.taps[t].offset[1]};
      if (at[0] < 0 || at[0] >= g.extent[0] || at[1] < 0 || at[1] >= g.extent[1]) continue;
      uses.push_back({t, (at[0] * g.extent[1] + at[1]) * g.extent[2] + g.taps[t].offset[2]});
    }
  }
};

std::vector<RowTaps> all_row_taps(const ConvGrid& g) {
  std::vector<RowTaps> rows;
  for (int64_t i = 0; i < g.grid[0] * g.grid[1]; ++i) rows.emplace_back(g, i / g.grid[1], i % g.grid[1]);
  return rows;
}

// Sums of one output row of one output channel: channels c of src with weights[c * weight_step + tap].
template <class S, int kStep>
void sum_row(const ConvGrid& g, const RowMasks& masks, const RowTaps& taps, const S* src, int64_t channel_stride,
             int64_t channels, const Compute<S>* weights, int64_t weight_step, Compute<S> bias, Compute<S>* out) {
  using T = Compute<S>;
  for (int64_t v = 0; v < masks.vectors(); ++v) {
    const int64_t start = v * kLanes<T> * g.step[2];
    Vector<T> sum[2] = {broadcast(bias), Vector<T>{}};
    for (int64_t c = 0; c < channels; ++c) {
      const S* row = src + c * channel_stride + start;
      const T* w = weights + c * weight_step;
      const auto term = [&](const RowTaps::Use& use) {
        const auto raw = detail::masked_load<kStep, S>(Vector<detail::Raw<S>>{}, masks.mask(v, use.tap),
                                                       row + use.offset, g.step[2]);
        return detail::raw_to_float(raw, src) * w[use.tap];
      };
      size_t i = 0;
      for (; i + 2 <= taps.uses.size(); i += 2) sum[0] += term(taps.uses[i]), sum[1] += term(taps.uses[i + 1]);
      if (i < taps.uses.size()) sum[0] += term(taps.uses[i]);
    }
    store(out + v * kLanes<T>, sum[0] + sum[1]);
  }
}

template <class T>
void put_row(const T* sums, int64_t count, T* out, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) out[i * stride] = sums[i];
}
template <class T, class S>
void put_row(const T* sums, int64_t count, S* out, int64_t stride) {
  from_float(sums, out, stride, count);
}

// All planes of a pass: output channel o of group o / outs sums the `ins` channels of that group.
template <class S>
struct PlanePass {
  using T = Compute<S>;
  ConvGrid grid;
  const S* src;
  int64_t src_channel, ins;  // channels per group
  S* dst;
  int64_t dst_batch, dst_channel, dst_stride[3], outs, groups;
  std::vector<T> weights;  // [groups * outs][ins][taps]
  const T* bias;

  void run() const {
    const RowMasks masks(grid, kLanes<T>);
    const std::vector<RowTaps> row_taps = all_row_taps(grid);
    const int64_t channels = outs * groups, taps = static_cast<int64_t>(grid.taps.size());
    parallel_for(grid.batch * channels, 0.2 * grid.plane() * ins * taps, [&](int64_t begin, int64_t end) {
      T* sums = scratch<T>(kScratchRow2, round_up(grid.grid[2], kLanes<T>));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / channels, o = i % channels;
        const S* from = src + n * grid.batch_stride + o / outs * ins * src_channel;
        S* to = dst + n * dst_batch + o * dst_channel;
        for (int64_t row = 0; row < grid.grid[0] * grid.grid[1]; ++row) {
          detail::with_step(grid.step[2], [&](auto step) {
            sum_row<S, step.value>(grid, masks, row_taps[row], from, src_channel, ins, weights.data() + o * ins * taps,
                                   taps, bias ? bias[o] : T(0), sums);
          });
          const int64_t z = row / grid.grid[1], y = row % grid.grid[1];
          put_row(sums, grid.grid[2], to + z * dst_stride[0] + y * dst_stride[1], dst_stride[2]);
        }
      }
    });
  }
};

ConvGrid forward_grid(const ConvProblem& p, int64_t batch_stride) {
  ConvGrid g{};
  g.batch = p.batch, g.batch_stride = batch_stride;
  for (int d = 0; d < 3; ++d) g.grid[d] = p.out[d], g.extent[d] = p.in[d], g.step[d] = p.stride[d];
  for (int64_t i = 0; i < p.kernel_volume(); ++i) {
    const int64_t at[3] = {i / (p.kernel[1] * p.kernel[2]), i / p.kernel[2] % p.kernel[1], i % p.kernel[2]};
    ConvTap tap;
    for (int d = 0; d < 3; ++d) tap.offset[d] = at[d] * p.dilation[d] - p.padding[d];
    g.taps.push_back(tap);
  }
  return g;
}

// Sums of one output pixel for all channels of a one-to-one depthwise convolution; weights[tap][channel].
template <class S>
void run_pixels(const ConvProblem& p, const ConvGrid& g, const Image& src, const Compute<S>* weights,
                const Compute<S>* bias, S* dst, int64_t dst_batch, const int64_t* dst_stride) {
  using T = Compute<S>;
  const int64_t channels = p.groups;
  parallel_for(g.positions(), 0.2 * channels * g.taps.size(), [&](int64_t begin, int64_t end) {
    const PixelRun pixels(g, src.row_stride(), begin, end - begin);
    std::vector<std::pair<int64_t, size_t>> uses;
    for (int64_t i = 0; i < end - begin; ++i) {
      uses.clear();
      for (size_t t = 0; t < g.taps.size(); ++t) {
        const int64_t offset = pixels.offset(i, g.taps[t]);
        if (offset >= 0) uses.emplace_back(offset, t);
      }
      S* to = dst + pixels.target(i, dst_batch, dst_stride);
      for (int64_t c = 0; c < channels; c += kLanes<T>) {
        const int64_t lanes = std::min<int64_t>(kLanes<T>, channels - c);
        Vector<T> sum = bias ? load_some(bias + c, lanes) : Vector<T>{};
        for (const auto& [offset, tap] : uses) {
          sum += load_some(src.as<S>() + offset + c, lanes) * load_some(weights + tap * channels + c, lanes);
        }
        store_some(to + c, sum, lanes);
      }
    }
  });
}

// weights[tap][channel] from weight[channel][tap] of a one-to-one convolution, taps in the order given.
template <class S>
std::vector<Compute<S>> tap_major(const ConvProblem& p, const Image& weight, const std::vector<int64_t>& taps) {
  std::vector<Compute<S>> result;
  for (int64_t tap : taps) {
    for (int64_t c = 0; c < p.groups; ++c) {
      result.push_back(static_cast<Compute<S>>(weight.as<S>()[c * p.kernel_volume() + tap]));
    }
  }
  return result;
}

}  // namespace

bool depthwise_applies(const ConvProblem& p) { return p.groups > 1 && p.group_in() * p.group_out() <= 4; }

template <class S>
void conv_forward_depthwise(const ConvProblem& p, const Image& src, const Image& weight, const Compute<S>* bias,
                            const Image& dst) {
  if (p.group_in() == 1 && p.group_out() == 1 && !src.has_dense_planes()) {
    ConvGrid g = forward_grid(p, p.in_plane() * src.row_stride());
    std::vector<int64_t> taps(p.kernel_volume());
    for (int64_t t = 0; t < p.kernel_volume(); ++t) taps[t] = t;
    const int64_t row = dst.row_stride(), stride[3] = {p.out[1] * p.out[2] * row, p.out[2] * row, row};
    return run_pixels<S>(p, g, src, tap_major<S>(p, weight, taps).data(), bias, dst.as<S>(), p.out_plane() * row,
                         stride);
  }
  PlanePass<S> pass{forward_grid(p, src.batch_stride),
                    src.as<S>(),
                    src.channel_stride,
                    p.group_in(),
                    dst.as<S>(),
                    dst.batch_stride,
                    dst.channel_stride,
                    {p.out[1] * p.out[2], p.out[2], 1},
                    p.group_out(),
                    p.groups,
                    {},
                    bias};
  const int64_t count = p.out_channels * p.group_in() * p.kernel_volume();
  for (int64_t i = 0; i < count; ++i) pass.weights.push_back(static_cast<Compute<S>>(weight.as<S>()[i]));
  pass.run();
}

template <class S>
void conv_backward_data_depthwise(const ConvProblem& p, const Image& dst_grad, const Image& weight,
                                  const Compute<S>* bias, const Image& src_grad) {
  using T = Compute<S>;
  const bool pixels = p.group_in() == 1 && p.group_out() == 1 && !dst_grad.has_dense_planes();
  const int64_t unit = pixels ? src_grad.row_stride() : 1, batch = pixels ? p.in_plane() * unit : src_grad.batch_stride;
  const int64_t steps[3] = {p.in[1] * p.in[2] * unit, p.in[2] * unit, unit};
  if (for_phases(p, [](const ConvPhase&) {})) {
    parallel_for(p.batch * p.in_channels, 1.0 * p.in_plane(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / p.in_channels, c = i % p.in_channels;
        S* to = src_grad.as<S>() + n * batch + c * src_grad.channel_stride;
        for (int64_t k = 0; k < p.in_plane(); ++k) to[k * unit] = bias ? S(bias[c]) : S(0);
      }
    });
  }
  for_phases(p, [&](const ConvPhase& phase) {
    int64_t start = 0, stride[3];
    for (int d = 0; d < 3; ++d) start += phase.first[d] * steps[d], stride[d] = steps[d] * p.stride[d];
    ConvGrid g = phase.grid;
    if (pixels) {
      g.batch_stride = p.out_plane() * dst_grad.row_stride();
      return run_pixels<S>(p, g, dst_grad, tap_major<S>(p, weight, phase.taps).data(), bias, src_grad.as<S>() + start,
                           batch, stride);
    }
    g.batch_stride = dst_grad.batch_stride;
    PlanePass<S> pass{g,
                      dst_grad.as<S>(),
                      dst_grad.channel_stride,
                      p.group_out(),
                      src_grad.as<S>() + start,
                      batch,
                      src_grad.channel_stride,
                      {stride[0], stride[1], stride[2]},
                      p.group_in(),
                      p.groups,
                      {},
                      bias};
    for (int64_t c = 0; c < p.in_channels; ++c) {
      for (int64_t o = 0; o < p.group_out(); ++o) {
        const int64_t line = (c / p.group_in() * p.group_out() + o) * p.group_in() + c % p.group_in();
        for (int64_t tap : phase.taps)
          pass.weights.push_back(static_cast<T>(weight.as<S>()[line * p.kernel_volume() + tap]));
      }
    }
    pass.run();
  });
}

// Row-major operands.
template <class S>
void conv_backward_weight_depthwise(const ConvProblem& p, const Image& src, const Image& dst_grad,
                                    const Image& weight_grad) {
  using T = Compute<S>;
  const ConvGrid g = forward_grid(p, src.batch_stride);
  const RowMasks masks(g, kLanes<T>);
  const std::vector<RowTaps> row_taps = all_row_taps(g);
  const int64_t taps = p.kernel_volume(), lines = p.out_channels * p.group_in();
  parallel_for(lines, 0.3 * taps * g.positions(), [&](int64_t begin, int64_t end) {
    std::vector<double> totals(taps);
    std::vector<Vector<T>> sums(taps);
    for (int64_t line = begin; line < end; ++line) {
      const int64_t o = line / p.group_in(), c = o / p.group_out() * p.group_in() + line % p.group_in();
      std::fill(totals.begin(), totals.end(), 0.0);
      for (int64_t n = 0; n < p.batch; ++n) {
        const S* plane = src.as<S>() + n * src.batch_stride + c * src.channel_stride;
        const S* grad = dst_grad.as<S>() + n * dst_grad.batch_stride + o * dst_grad.channel_stride;
        std::fill(sums.begin(), sums.end(), Vector<T>{});
        for (int64_t row = 0; row < p.out[0] * p.out[1]; ++row, grad += p.out[2]) {
          detail::with_step(g.step[2], [&](auto step) {
            for (int64_t v = 0; v < masks.vectors(); ++v) {
              const Vector<T> y = load_some(grad + v * kLanes<T>, p.out[2] - v * kLanes<T>);
              for (const RowTaps::Use& use : row_taps[row].uses) {
                const auto raw =
                    detail::masked_load<step.value, S>(Vector<detail::Raw<S>>{}, masks.mask(v, use.tap),
                                                       plane + use.offset + v * kLanes<T> * g.step[2], g.step[2]);
                sums[use.tap] += detail::raw_to_float(raw, plane) * y;
              }
            }
          });
        }
        for (int64_t t = 0; t < taps; ++t) totals[t] += static_cast<double>(horizontal_sum<T>(sums[t]));
      }
      for (int64_t t = 0; t < taps; ++t) weight_grad.as<S>()[line * taps + t] = S(static_cast<T>(totals[t]));
    }
  });
}

#define NG_INSTANTIATE(S)                                                                                          \
  template void conv_forward_depthwise<S>(const ConvProblem&, const Image&, const Image&, const Compute<S>*,       \
                                          const Image&);                                                           \
  template void conv_backward_data_depthwise<S>(const ConvProblem&, const Image&, const Image&, const Compute<S>*, \
                                                const Image&);                                                     \
  template void conv_backward_weight_depthwise<S>(const ConvProblem&, const Image&, const Image&, const Image&);
NG_INSTANTIATE(float)
NG_INSTANTIATE(double)
NG_INSTANTIATE(Half)
NG_INSTANTIATE(BFloat16)
#undef NG_INSTANTIATE

}  // namespace ng
