// Convolution and its input's gradient on CPU devices: kernels/conv_tile.cl with the weights packed by conv_pack.cl.
// The gradient is one pass per residue of the strides: source positions of one residue meet the same taps, and are a
// convolution with steps of one over the destination.
#include <algorithm>
#include <numeric>

#include "convolution.h"

namespace ocl {
namespace {

constexpr int64_t kRunBytes = 30 << 10;            // of the slab, for a run of positions: fits the first-level cache
constexpr int64_t kWeightBytes = int64_t{1} << 20;  // of the weights, for one slab: fits the second-level cache

// conv_t of kernels/conv_tile.cl
struct TileArgs {
  int64_t src_n, src_g, src_c, src[3], dst_n, dst_g, dst_c, dst[3];
  int64_t slot, slab_at, sums_at, weight_row;
  int32_t extent[3], grid[3], step[3], first[3], tap_step[3], taps[3], planes[3], lowest[3];
  int32_t rows, columns, height, width, length, tiles_y, tiles_x, m_tiles;
  int32_t batch, groups, in_channels, out_channels, chunk, m_rows;
  int32_t sums_pitch, items, slots, has_bias;
};
static_assert(sizeof(TileArgs) % 8 == 0, "the kernel's struct has no other padding");

// pack_t of kernels/conv_pack.cl
struct PackArgs {
  int64_t g, m, c, tap[3];
  int32_t taps[3], groups, in_channels, out_channels;
};

// A pass: from `src` over `dim` to `dst`. In and out channels are per group, as this pass sees them.
struct Pass {
  ConvDim dim[3];
  ConvImage src, dst;
  int64_t dst_start = 0;
  int64_t batch, groups, in_channels, out_channels;
  int64_t weight_g, weight_m, weight_c, weight_tap[3], weight_start = 0;
  bool straight = false;  // output channels' weights lie [in channel][tap] without gaps, and groups behind each other
  int64_t block() const { return out_channels < 4 ? 1 : 8; }  // channels of the register tile
  int64_t taps() const { return dim[0].taps * dim[1].taps * dim[2].taps; }
};

// A kernel of one tap without steps sees no neighbours: dims that lie behind each other in memory become one, and the
// batch takes the place of a dim that is free.
void flatten(Pass& pass) {
  bool pointwise = true;
  for (const ConvDim& d : pass.dim) pointwise &= d.taps == 1 && d.step == 1 && d.first == 0 && d.extent == d.grid;
  if (pointwise) {
    for (int d = 0; d < 2; ++d) {
      const int64_t size = pass.dim[d + 1].grid;
      const auto joins = [&](const ConvImage& i) {
        return pass.dim[d].grid == 1 || i.stride[d] == i.stride[d + 1] * size;
      };
      if (!joins(pass.src) || !joins(pass.dst)) continue;
      pass.dim[d + 1].grid = pass.dim[d + 1].extent = size * pass.dim[d].grid;
      pass.dim[d].grid = pass.dim[d].extent = 1;
    }
  }
  ConvDim& y = pass.dim[1];
  if (y.grid == 1 && y.extent == 1 && y.taps == 1 && y.first == 0 && pass.batch > 1) {
    y.grid = y.extent = pass.batch;
    y.step = 1;
    pass.src.stride[1] = pass.src.batch_stride, pass.dst.stride[1] = pass.dst.batch_stride;
    pass.src.batch_stride = pass.dst.batch_stride = 0;
    pass.batch = 1;
  }
}

// Tap positions, measured in steps: residues that taps meet, the lowest shift and the range of shifts.
struct Shifts {
  int64_t planes, lowest, range;
};
Shifts shifts_of(const ConvDim& d) {
  if (d.taps == 0) return {0, 0, 0};
  const int64_t one = floor_div(d.first, d.step), other = floor_div(d.first + (d.taps - 1) * d.tap_step, d.step);
  const int64_t residues = d.step / std::gcd(std::abs(d.tap_step), d.step);
  return {std::min(d.taps, residues), std::min(one, other), std::abs(other - one)};
}

struct Tiling {
  int64_t rows, columns, m_tiles;
};

// What an item costs, in cycles, by a model that knows the register tile, the copy into the slab and the weights'
// way through the caches.
double item_cost(const Pass& pass, const Shifts (&s)[3], int64_t lanes, const Tiling& t) {
  const double width = static_cast<double>(t.columns + s[2].range), height = static_cast<double>(t.rows + s[1].range);
  const int64_t count = (t.rows - 1) * (t.columns + s[2].range) + t.columns;
  const int64_t vectors = divide_up(count, lanes), blocks = divide_up(divide_up(pass.out_channels, pass.block()), t.m_tiles);
  const double depth = static_cast<double>(pass.in_channels * pass.taps());
  const double fetch = pass.src.stride[2] * pass.dim[2].step == 1 ? 0.7 : pass.src.stride[2] == 1 ? 1.0 : 2.5;
  const double slab = static_cast<double>(pass.in_channels * s[0].planes * s[1].planes * s[2].planes) * height *
                      (25 + width * fetch);
  const double product = static_cast<double>(vectors / 2 * 8 + vectors % 2 * 5) * depth * (pass.block() == 1 ? 0.2 : 1.0);
  const double rows = static_cast<double>(pass.block()), weights = depth * rows * 4 * 0.12;
  const double sums = static_cast<double>(count * pass.block() * blocks * lanes) * 4 > 8e6 ? 1.1 : 1.0;  // beyond 512 KiB
  return slab + static_cast<double>(blocks) * (product * sums + weights + static_cast<double>(count) * rows * 0.5 + 50);
}

Tiling choose_tiling(const Pass& pass, const Shifts (&s)[3], int64_t lanes, int64_t cores) {
  const ConvDim &y = pass.dim[1], &x = pass.dim[2];
  const int64_t fixed = pass.batch * pass.groups * pass.dim[0].grid, blocks = divide_up(pass.out_channels, pass.block());
  Tiling best{1, 1, 1};
  double best_cost = 1e300;
  int64_t last_columns = 0;
  for (int64_t cuts = divide_up(x.grid, 512); cuts <= 64; ++cuts) {
    int64_t columns = divide_up(x.grid, cuts);
    if (cuts > 1 && s[2].range == 0) columns = std::min(x.grid, round_up(columns, 2 * lanes));
    if (columns == last_columns) continue;
    if (columns < 96 && cuts > 1) break;
    last_columns = columns;
    int64_t last_rows = 0;
    for (int64_t row_cuts = 1; row_cuts <= y.grid; ++row_cuts) {
      const int64_t rows = divide_up(y.grid, row_cuts);
      if (rows == last_rows || (rows > 1 && rows * (columns + s[2].range) > 512)) continue;
      last_rows = rows;
      const int64_t tiles = divide_up(x.grid, columns) * divide_up(y.grid, rows) * fixed;
      for (int64_t m_tiles = 1; m_tiles <= blocks; m_tiles *= 2) {
        const Tiling t{rows, columns, m_tiles};
        const double items = static_cast<double>(tiles * m_tiles), waves = static_cast<double>(
            divide_up(tiles * m_tiles, cores));
        // A little more than whole waves, since cores are not equally free.
        const double cost = item_cost(pass, s, lanes, t) * (waves + 0.25 * std::min(1.0, items / waves - 1));
        if (cost < best_cost) best_cost = cost, best = t;
        if (tiles * m_tiles >= 16 * cores) break;
      }
      if (rows * columns < 96 && row_cuts > 8) break;
    }
  }
  return best;
}

void fill_dims(TileArgs& a, const Pass& pass, const Shifts (&s)[3]) {
  for (int d = 0; d < 3; ++d) {
    const ConvDim& dim = pass.dim[d];
    a.src[d] = pass.src.stride[d], a.dst[d] = pass.dst.stride[d];
    a.extent[d] = static_cast<int32_t>(dim.extent), a.grid[d] = static_cast<int32_t>(dim.grid);
    a.step[d] = static_cast<int32_t>(dim.step), a.first[d] = static_cast<int32_t>(dim.first);
    a.tap_step[d] = static_cast<int32_t>(dim.tap_step), a.taps[d] = static_cast<int32_t>(dim.taps);
    a.planes[d] = static_cast<int32_t>(s[d].planes), a.lowest[d] = static_cast<int32_t>(s[d].lowest);
  }
  a.src_n = pass.src.batch_stride, a.src_c = pass.src.channel_stride, a.src_g = a.src_c * pass.in_channels;
  a.dst_n = pass.dst.batch_stride, a.dst_c = pass.dst.channel_stride, a.dst_g = a.dst_c * pass.out_channels;
  a.batch = static_cast<int32_t>(pass.batch), a.groups = static_cast<int32_t>(pass.groups);
  a.in_channels = static_cast<int32_t>(pass.in_channels), a.out_channels = static_cast<int32_t>(pass.out_channels);
}

TileArgs tile_args(const Pass& pass, int64_t lanes, int64_t item_bytes, int64_t cores) {
  Shifts s[3];
  for (int d = 0; d < 3; ++d) s[d] = shifts_of(pass.dim[d]);
  s[0].planes = pass.dim[0].taps;  // each tap along z has its own plane
  const Tiling t = choose_tiling(pass, s, lanes, cores);
  TileArgs a{};
  fill_dims(a, pass, s);
  const int64_t height = t.rows + s[1].range, width = t.columns + s[2].range;
  // Channels do not lie a multiple of a page apart, which would put them all into the same cache sets.
  int64_t length = round_up(s[0].planes * s[1].planes * s[2].planes * height * width, 16) + 16;
  if (length * item_bytes % 4096 < 64) length += 16;
  int64_t pitch = round_up((t.rows - 1) * width + t.columns, 4 * lanes);
  if (pitch * item_bytes % 4096 == 0) pitch += 16;
  const int64_t m_rows = round_up(divide_up(pass.out_channels, t.m_tiles), pass.block());
  // Channels at a time: what a run of positions meets of them stays in the first-level cache.
  const int64_t lines = std::max<int64_t>(1, pass.dim[0].taps * pass.dim[1].taps * s[2].planes);
  const int64_t run = lines * (2 * lanes + round_up(s[2].range, 16)) * item_bytes;
  const int64_t weights = std::max<int64_t>(1, m_rows * pass.taps() * item_bytes);
  int64_t chunk = std::max<int64_t>(8, std::min(kRunBytes / run, kWeightBytes / weights));
  if (chunk < pass.in_channels) chunk = divide_up(pass.in_channels, divide_up(pass.in_channels, chunk));
  chunk = std::min(chunk, pass.in_channels);
  a.rows = static_cast<int32_t>(t.rows), a.columns = static_cast<int32_t>(t.columns);
  a.height = static_cast<int32_t>(height), a.width = static_cast<int32_t>(width);
  a.length = static_cast<int32_t>(length);
  a.tiles_y = static_cast<int32_t>(divide_up(pass.dim[1].grid, t.rows));
  a.tiles_x = static_cast<int32_t>(divide_up(pass.dim[2].grid, t.columns));
  a.m_tiles = static_cast<int32_t>(divide_up(pass.out_channels, m_rows));
  a.chunk = static_cast<int32_t>(chunk), a.m_rows = static_cast<int32_t>(m_rows);
  a.sums_pitch = static_cast<int32_t>(pitch);
  a.items = static_cast<int32_t>(a.m_tiles * a.tiles_x * a.tiles_y * pass.dim[0].grid * pass.batch * pass.groups);
  a.slots = static_cast<int32_t>(std::min<int64_t>(a.items, 4 * cores));
  a.slab_at = round_up(pass.taps(), 16);
  a.sums_at = a.slab_at + chunk * length + 64;
  a.slot = a.sums_at + m_rows * pitch + 64;
  return a;
}

const Program& tile_program(Op& op, bool packed, int64_t block) {
  return op.program((packed ? 1 : 2) + (block == 1 ? 2 : 0), [&](Source& source) {
    add_conv_lines(source, op.in);
    source.define("BLOCK", block);
    if (packed) source.define("PACKED", int64_t{1}).file("conv_pack.cl");
    source.file("conv_slab.cl").file("conv_tile.cl");
    source.kernel("conv_tile");
    if (packed) source.kernel("conv_pack");
  });
}

void pack_weights(Op& op, const Program& program, const Pass& pass, const fl_tensor& weight, const Place& packed,
                  int item) {
  PackArgs a{pass.weight_g, pass.weight_m, pass.weight_c, {}, {}, static_cast<int32_t>(pass.groups),
             static_cast<int32_t>(pass.in_channels), static_cast<int32_t>(pass.out_channels)};
  for (int d = 0; d < 3; ++d) {
    a.tap[d] = pass.weight_tap[d] * pass.dim[d].tap_stride;
    a.taps[d] = static_cast<int32_t>(pass.dim[d].taps);
  }
  const Place from = Place::of(weight.memory).plus(static_cast<uint64_t>(pass.weight_start) *
                                                   static_cast<uint64_t>(size_of(op.in)));
  const int64_t blocks = divide_up(pass.out_channels, pass.block()) * pass.groups;
  const int64_t chunk = std::max<int64_t>(1, 4096 / (pass.block() * pass.taps()));
  op.launch(program, 1, {blocks, divide_up(pass.in_channels, chunk)}, {1, 1}, Op::at(packed, item),
            Op::at(from, size_of(op.in)), Bytes{&a, sizeof(a)}, static_cast<int32_t>(chunk));
}

void run_pass(Op& op, Pass& pass, const fl_tensor& src, const fl_tensor& weight, const fl_tensor* bias,
              const fl_tensor& dst) {
  for (const ConvDim& d : pass.dim) {
    if (d.grid == 0) return;
  }
  flatten(pass);
  const int item = op.in == Type::Float64 ? 8 : 4;
  TileArgs a = tile_args(pass, conv_lanes(op.in), item, op.device.compute_units);
  a.has_bias = bias != nullptr;
  const bool packed = !pass.straight || (op.in != Type::Float32 && op.in != Type::Float64);
  a.weight_row = pass.weight_m;
  const int64_t numel = round_up(pass.out_channels, pass.block()) * pass.groups * pass.in_channels * pass.taps();
  const int64_t packed_bytes = packed ? round_up(numel * item, 4096) : 0;
  const Place scratch = op.stream.scratch(static_cast<uint64_t>(packed_bytes + a.slot * a.slots * item));
  const Program& program = tile_program(op, packed, pass.block());
  if (packed && pass.taps() > 0) pack_weights(op, program, pass, weight, scratch, item);
  const int size = size_of(op.in);
  const Place to = Place::of(dst.memory).plus(static_cast<uint64_t>(pass.dst_start * size));
  op.launch(program, 0, {a.slots}, {1}, Op::at(to, size), src, bias != nullptr ? *bias : weight,
            Op::at(packed ? scratch : Place::of(weight.memory), item),
            Op::at(scratch.plus(static_cast<uint64_t>(packed_bytes)), item), Bytes{&a, sizeof(a)});
}

// The taps that source positions residue, residue + stride … meet, as a walk over the destination.
ConvDim backward_dim(const ConvProblem& p, int d, int64_t residue) {
  const int64_t stride = p.stride[d], dilation = p.dilation[d];
  const int64_t every = stride / std::gcd(stride, dilation);  // of these taps
  ConvDim dim{p.dst.size[d], residue < p.src.size[d] ? divide_up(p.src.size[d] - residue, stride) : 0, 1, 0,
              -(dilation * every / stride), 0, 0, every};
  for (int64_t k = 0; k < std::min(every, p.kernel[d]); ++k) {
    const int64_t position = residue + p.padding[d] - k * dilation;
    if (floor_div(position, stride) * stride != position) continue;
    dim.tap0 = k, dim.first = floor_div(position, stride), dim.taps = divide_up(p.kernel[d] - k, every);
    break;
  }
  return dim;
}

Pass forward_pass(const ConvProblem& p) {
  Pass pass{};
  pass.src = p.src, pass.dst = p.dst;
  pass.batch = p.batch, pass.groups = p.groups, pass.in_channels = p.group_in(), pass.out_channels = p.group_out();
  pass.weight_m = p.weight.batch_stride, pass.weight_c = p.weight.channel_stride;
  pass.weight_g = p.weight.batch_stride * p.group_out();
  for (int d = 0; d < 3; ++d) {
    pass.dim[d] = {p.src.size[d], p.dst.size[d], p.stride[d], -p.padding[d], p.dilation[d], p.kernel[d]};
    pass.weight_tap[d] = p.weight.stride[d];
  }
  int64_t expected = 1;
  pass.straight = true;
  for (int d = 2; d >= 0; --d) {
    pass.straight &= p.kernel[d] == 1 || p.weight.stride[d] == expected;
    expected *= p.kernel[d];
  }
  pass.straight &= p.group_in() == 1 || p.weight.channel_stride == expected;
  return pass;
}

}  // namespace

void conv_tile_forward(Op& op, const ConvProblem& p, const fl_tensor& src, const fl_tensor& weight,
                       const fl_tensor* bias, const fl_tensor& dst) {
  Pass pass = forward_pass(p);
  run_pass(op, pass, src, weight, bias, dst);
}

void conv_depthwise_weight(Op& op, const ConvProblem& p, const fl_tensor& dst_grad, const fl_tensor& src,
                           const fl_tensor& weight_grad) {
  Pass pass = forward_pass(p);
  const int item = op.in == Type::Float64 ? 8 : 4;
  const int64_t lanes = conv_lanes(op.in), cores = op.device.compute_units;
  TileArgs a = tile_args(pass, lanes, item, cores);
  a.slots = static_cast<int32_t>(std::min<int64_t>(pass.groups, 4 * cores));
  a.sums_pitch = static_cast<int32_t>(round_up(int64_t{a.rows} * a.width, lanes));
  a.slot = a.sums_at + a.sums_pitch + pass.out_channels * round_up(pass.taps(), 8) * lanes + 64;
  const Place scratch = op.stream.scratch(static_cast<uint64_t>(a.slot * a.slots * item));
  const Program& program = op.program(2, [&](Source& source) {
    add_conv_lines(source, op.in);
    source.file("conv_slab.cl").file("conv_depthwise.cl");
    source.kernel("conv_depthwise_weight");
  });
  op.launch(program, 0, {a.slots}, {1}, weight_grad, src, dst_grad, Op::at(scratch, item), Bytes{&a, sizeof(a)},
            p.weight.batch_stride, p.weight.stride[0], p.weight.stride[1], p.weight.stride[2]);
}

void conv_tile_backward(Op& op, const ConvProblem& p, const fl_tensor& dst_grad, const fl_tensor& weight,
                        const fl_tensor* bias, const fl_tensor& src_grad) {
  const int64_t residues = p.stride[0] * p.stride[1] * p.stride[2];
  for (int64_t i = 0; i < residues; ++i) {
    const int64_t residue[3] = {i / (p.stride[1] * p.stride[2]), i / p.stride[2] % p.stride[1], i % p.stride[2]};
    Pass pass{};
    pass.src = p.dst, pass.dst = p.src;
    pass.batch = p.batch, pass.groups = p.groups, pass.in_channels = p.group_out(), pass.out_channels = p.group_in();
    pass.weight_m = p.weight.channel_stride, pass.weight_c = p.weight.batch_stride;
    pass.weight_g = p.weight.batch_stride * p.group_out();
    for (int d = 0; d < 3; ++d) {
      pass.dim[d] = backward_dim(p, d, residue[d]);
      pass.weight_tap[d] = p.weight.stride[d];
      pass.weight_start += pass.dim[d].tap0 * p.weight.stride[d];
      pass.dst.stride[d] *= p.stride[d];
      pass.dst_start += residue[d] * p.src.stride[d];
    }
    run_pass(op, pass, dst_grad, weight, bias, src_grad);
  }
}

}  // namespace ocl
