// The weight's gradient on CPU devices: kernels/conv_weight.cl.
#include <algorithm>
#include <numeric>

#include "convolution.h"

namespace ocl {
namespace {

constexpr int64_t kPositions = 256;  // of a tile, about
constexpr uint64_t kPartialBytes = uint64_t{64} << 20;

// weight_t and finish_t of kernels/conv_weight.cl
struct WeightArgs {
  int64_t src_n, src_g, src_c, src[3], grad_n, grad_g, grad_c, grad[3];
  int64_t slot, slab_at, grad_at;
  int32_t extent[3], grid[3], step[3], first[3], tap_step[3], taps[3];
  int32_t rows, columns, height, width, length, tiles_y, tiles_x;
  int32_t batch, groups, in_channels, out_channels, channels, panels, pairs, all_panels;
  int32_t channel_tiles, panel_tiles, shares, items, slots, in_place;
  int32_t reserved;
};
struct FinishArgs {
  int64_t g, o, c, tap[3];
  int32_t taps[3], groups, in_channels, out_channels, pairs, all_panels, shares, straight;
};

struct Shape {
  ConvDim dim[3];
  ConvImage src, grad;
  int64_t batch;
};

Shape shape_of(const ConvProblem& p) {
  Shape s{};
  s.src = p.src, s.grad = p.dst, s.batch = p.batch;
  bool pointwise = true;
  for (int d = 0; d < 3; ++d) {
    s.dim[d] = {p.src.size[d], p.dst.size[d], p.stride[d], -p.padding[d], p.dilation[d], p.kernel[d]};
    pointwise &= p.kernel[d] == 1 && p.stride[d] == 1 && p.padding[d] == 0;
  }
  if (!pointwise) return s;
  for (int d = 0; d < 2; ++d) {  // dims that lie behind each other become one
    const int64_t size = s.dim[d + 1].grid;
    const auto joins = [&](const ConvImage& i) { return s.dim[d].grid == 1 || i.stride[d] == i.stride[d + 1] * size; };
    if (!joins(s.src) || !joins(s.grad)) continue;
    s.dim[d + 1].grid = s.dim[d + 1].extent = size * s.dim[d].grid;
    s.dim[d].grid = s.dim[d].extent = 1;
  }
  if (s.dim[1].grid == 1) {  // the batch takes the place of a free dim
    s.dim[1].grid = s.dim[1].extent = s.batch;
    s.src.stride[1] = s.src.batch_stride, s.grad.stride[1] = s.grad.batch_stride;
    s.batch = 1;
  }
  return s;
}

void fill_tiles(WeightArgs& a, const Shape& s, int64_t item) {
  const int64_t columns = s.dim[2].grid <= 2 * kPositions
                              ? s.dim[2].grid
                              : divide_up(s.dim[2].grid, divide_up(s.dim[2].grid, kPositions));
  int64_t rows = std::min(s.dim[1].grid, std::max<int64_t>(1, kPositions / columns));
  rows = divide_up(s.dim[1].grid, divide_up(s.dim[1].grid, rows));
  const auto span = [&](int d, int64_t count) {
    return (count - 1) * s.dim[d].step + (s.dim[d].taps - 1) * s.dim[d].tap_step + 1;
  };
  const int64_t height = span(1, rows), width = span(2, columns);
  int64_t length = round_up(s.dim[0].taps * height * width, 16);
  if (length * item % 4096 < 64) length += 16;
  a.rows = static_cast<int32_t>(rows), a.columns = static_cast<int32_t>(columns);
  a.height = static_cast<int32_t>(height), a.width = static_cast<int32_t>(width);
  a.length = static_cast<int32_t>(length);
  a.tiles_y = static_cast<int32_t>(divide_up(s.dim[1].grid, rows));
  a.tiles_x = static_cast<int32_t>(divide_up(s.dim[2].grid, columns));
}

// How many channels of either side an item takes, and in how many shares the positions go.
void fill_split(WeightArgs& a, const ConvProblem& p, int64_t lanes, int64_t item, int64_t cores, int64_t tiles) {
  const int64_t taps = p.kernel_volume(), panels = divide_up(p.group_out(), 2 * lanes);
  int64_t channels = std::max<int64_t>(8, (int64_t{192} << 10) / item / a.length / 8 * 8);
  channels = std::min(channels, std::max<int64_t>(16, round_up(1024 / taps, 8)));
  if (channels < p.group_in()) {
    channels = round_up(divide_up(p.group_in(), divide_up(p.group_in(), channels)), 8);
  } else {
    channels = p.group_in();
  }
  const int64_t panels_each = std::min<int64_t>(panels, 8);
  a.channels = static_cast<int32_t>(channels);
  a.panels = static_cast<int32_t>(divide_up(panels, divide_up(panels, panels_each)));
  a.all_panels = static_cast<int32_t>(panels);
  a.pairs = static_cast<int32_t>(round_up(p.group_in() * taps, 16));
  a.channel_tiles = static_cast<int32_t>(divide_up(p.group_in(), channels));
  a.panel_tiles = static_cast<int32_t>(divide_up(panels, a.panels));
  const int64_t items = p.groups * a.channel_tiles * a.panel_tiles;
  const int64_t bytes = p.groups * panels * 2 * lanes * a.pairs * item;
  int64_t shares = items >= 4 * cores ? 1 : divide_up(4 * cores, items);
  shares = std::min({shares, tiles, std::max<int64_t>(1, static_cast<int64_t>(kPartialBytes) / bytes)});
  a.shares = static_cast<int32_t>(shares);
  a.items = static_cast<int32_t>(items * shares);
  a.slots = static_cast<int32_t>(std::min<int64_t>(a.items, 4 * cores));
}

WeightArgs weight_args(const ConvProblem& p, const Shape& s, Type type, int64_t cores) {
  const int64_t lanes = conv_lanes(type), item = type == Type::Float64 ? 8 : 4;
  WeightArgs a{};
  bool outside = false;
  for (int d = 0; d < 3; ++d) {
    const ConvDim& dim = s.dim[d];
    a.src[d] = s.src.stride[d], a.grad[d] = s.grad.stride[d];
    a.extent[d] = static_cast<int32_t>(dim.extent), a.grid[d] = static_cast<int32_t>(dim.grid);
    a.step[d] = static_cast<int32_t>(dim.step), a.first[d] = static_cast<int32_t>(dim.first);
    a.tap_step[d] = static_cast<int32_t>(dim.tap_step), a.taps[d] = static_cast<int32_t>(dim.taps);
    outside |= dim.first != 0;
  }
  a.src_n = s.src.batch_stride, a.src_c = s.src.channel_stride, a.src_g = a.src_c * p.group_in();
  a.grad_n = s.grad.batch_stride, a.grad_c = s.grad.channel_stride, a.grad_g = a.grad_c * p.group_out();
  a.batch = static_cast<int32_t>(s.batch), a.groups = static_cast<int32_t>(p.groups);
  a.in_channels = static_cast<int32_t>(p.group_in()), a.out_channels = static_cast<int32_t>(p.group_out());
  a.in_place = !outside && (type == Type::Float32 || type == Type::Float64);
  fill_tiles(a, s, item);
  fill_split(a, p, lanes, item, cores, s.batch * s.dim[0].grid * a.tiles_y * a.tiles_x);
  a.slab_at = 0;
  a.grad_at = a.in_place ? 0 : round_up(a.channels * static_cast<int64_t>(a.length), 16);
  a.slot = a.grad_at + static_cast<int64_t>(a.panels) * a.rows * a.columns * 2 * lanes + 64;
  return a;
}

FinishArgs finish_args(const ConvProblem& p, const WeightArgs& w) {
  FinishArgs f{};
  f.g = p.weight.batch_stride * p.group_out(), f.o = p.weight.batch_stride, f.c = p.weight.channel_stride;
  int64_t expected = 1;
  bool straight = true;
  for (int d = 2; d >= 0; --d) {
    f.tap[d] = p.weight.stride[d], f.taps[d] = static_cast<int32_t>(p.kernel[d]);
    straight &= p.kernel[d] == 1 || p.weight.stride[d] == expected;
    expected *= p.kernel[d];
  }
  f.straight = straight && (p.group_in() == 1 || p.weight.channel_stride == expected);
  f.groups = w.groups, f.in_channels = w.in_channels, f.out_channels = w.out_channels;
  f.pairs = w.pairs, f.all_panels = w.all_panels, f.shares = w.shares;
  return f;
}

}  // namespace

void conv_weight(Op& op, const ConvProblem& p, const fl_tensor& dst_grad, const fl_tensor& src,
                 const fl_tensor& weight_grad) {
  const Shape s = shape_of(p);
  const WeightArgs a = weight_args(p, s, op.in, op.device.compute_units);
  const FinishArgs f = finish_args(p, a);
  const int item = op.in == Type::Float64 ? 8 : 4;
  const int64_t lanes = conv_lanes(op.in);
  const int64_t partial =
      round_up(a.shares * p.groups * a.all_panels * a.pairs * static_cast<int64_t>(2 * lanes) * item, 4096);
  const Place scratch = op.stream.scratch(static_cast<uint64_t>(partial + a.slot * a.slots * item));
  const Program& program = op.program(1, [&](Source& source) {
    add_conv_lines(source, op.in);
    source.file("conv_weight.cl");
    source.kernel("conv_weight").kernel("conv_weight_finish");
  });
  op.launch(program, 0, {a.slots}, {1}, Op::at(scratch, item), src, dst_grad,
            Op::at(scratch.plus(static_cast<uint64_t>(partial)), item), Bytes{&a, sizeof(a)});
  op.launch(program, 1, {divide_up(p.group_in() * p.kernel_volume(), 16), p.groups * a.all_panels}, {1, 1},
            weight_grad, Op::at(scratch, item), Bytes{&f, sizeof(f)});
}

}  // namespace ocl
