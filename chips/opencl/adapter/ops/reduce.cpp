// The machinery of reductions: axes, modes, launch sizes, and the driver around kernels/reduce.cl.
#include "reduce.h"

#include <algorithm>
#include <cstring>

namespace ocl {

// ---------------------------------------------------------------- axes

void Axes::add(int64_t length, std::initializer_list<int64_t> strides) {
  if (length == 1) return;
  size[dims] = length;
  int k = 0;
  for (int64_t s : strides) stride[k++][dims] = s;
  ++dims;
}

void Axes::order() {
  for (int d = 1; d < dims; ++d) {
    for (int e = d; e > 0 && stride[0][e - 1] < stride[0][e]; --e) {
      std::swap(size[e - 1], size[e]);
      for (int k = 0; k < operands; ++k) std::swap(stride[k][e - 1], stride[k][e]);
    }
  }
  merge();
}

void Axes::merge() {
  int last = -1;
  for (int d = 0; d < dims; ++d) {
    bool merges = last >= 0;
    for (int k = 0; k < operands && merges; ++k) merges = stride[k][last] == stride[k][d] * size[d];
    if (merges) {
      size[last] *= size[d];
    } else {
      ++last;
      size[last] = size[d];
    }
    for (int k = 0; k < operands; ++k) stride[k][last] = stride[k][d];
  }
  dims = last + 1;
}

int64_t Axes::count() const {
  int64_t n = 1;
  for (int d = 0; d < dims; ++d) n *= size[d];
  return n;
}

PackedAxes::PackedAxes(const Axes& axes, int max_dims) : used(1 + max_dims * (1 + axes.operands)) {
  words[0] = axes.dims;
  const auto bytes = static_cast<size_t>(max_dims) * 8;
  std::memcpy(words + 1, axes.size, bytes);
  for (int k = 0; k < axes.operands; ++k) std::memcpy(words + 1 + (k + 1) * max_dims, axes.stride[k], bytes);
}

// ---------------------------------------------------------------- modes

void define_mode(Source& source, RowMode mode) {
  source.define("MODE", int64_t{mode == RowMode::Dense ? 0 : mode == RowMode::Columns ? 2 : 1});
  if (mode == RowMode::Group) source.define("GROUP", int64_t{kGroupSize});
  if (mode == RowMode::Item) source.define("ITEM", int64_t{1});
}

Type computing_type(Type type) {
  if (type == Type::Bool) return Type::UInt8;
  return (bit(type) & kHalfTypes) != 0 ? Type::Float32 : type;
}

RowGrid row_grid(const Device& device, RowMode mode, int64_t rows, int64_t cost) {
  if (mode == RowMode::Group) {
    const int64_t groups = std::min<int64_t>(rows, 65535);
    return {{groups * kGroupSize}, {kGroupSize}};
  }
  if (mode == RowMode::Item) return {{std::min<int64_t>(rows, 1 << 20)}, {64}};
  // CPUs: one item per task of some microseconds, but enough of them to keep all cores busy to the end.
  const int64_t most = 16 * static_cast<int64_t>(device.compute_units);
  const int64_t tasks = std::min({rows, most, rows * cost / 8192 + 1});
  return {{tasks}, {1}};
}

// ---------------------------------------------------------------- the driver

namespace {
constexpr int64_t kColumnBlock = 256;  // outputs that a unit of RowMode::Columns takes side by side
}

Reducer::Reducer(Op& op, const Reduction& what, int inputs, Axes kept, Axes reduced)
    : op_(op), what_(what), inputs_(inputs), kept_(kept), reduced_(reduced) {
  kept_.order();
  reduced_.order();
  outputs_ = kept_.count();
  total_ = reduced_.count();
  if (reduced_.dims == 0) {
    reduced_.dims = 1;  // kernels look at the last one
    reduced_.size[0] = 1;
    for (int k = 0; k < reduced_.operands; ++k) reduced_.stride[k][0] = 1;
  }
  max_dims_ = dims_for(std::max(kept_.dims, reduced_.dims));
  choose();
}

void Reducer::choose() {
  const auto has_step_one = [&](const Axes& axes) {
    for (int k = 0; k < inputs_; ++k)
      if (axes.dims == 0 || axes.stride[k][axes.dims - 1] != 1) return false;
    return true;
  };
  const bool dense = has_step_one(reduced_) && reduced_.size[reduced_.dims - 1] > 1;
  const bool columns = !dense && has_step_one(kept_) && kept_.size[kept_.dims - 1] >= 8;
  rows_ = outputs_;
  const auto units = static_cast<int64_t>(op_.device.compute_units);
  int64_t wanted, least;  // rows to have in all; elements of a part
  if (op_.device.cpu) {
    mode_ = dense ? RowMode::Dense : columns ? RowMode::Columns : RowMode::Strided;
    if (columns) {
      const int64_t width = kept_.size[kept_.dims - 1];
      rows_ = outputs_ / width * ((width + kColumnBlock - 1) / kColumnBlock);
    }
    wanted = 8 * units;
    least = columns ? 512 : 8192;
  } else {
    mode_ = columns && outputs_ >= 32 ? RowMode::Item : RowMode::Group;
    wanted = mode_ == RowMode::Item ? 1024 * units : 8 * units;
    least = mode_ == RowMode::Item ? 64 : 4096;
  }
  if (what_.split && rows_ < wanted)
    parts_ = std::max<int64_t>(1, std::min((wanted + rows_ - 1) / rows_, total_ / least));
  if (what_.ordered) parts_ = std::max(parts_, total_ / (int64_t{1} << 30) + 1);
}

int64_t Reducer::scratch_bytes() const {
  return parts_ == 1 ? 0 : parts_ * outputs_ * (size_of(what_.part0) + size_of(what_.part1));
}

const Program& Reducer::program(Step step, RowMode mode, Type in, Type out, Type out2) {
  // Operand types beyond the look-up's are part of the key: norms reduce scratch memory of other types.
  uint64_t key = what_.key << 32 | static_cast<uint64_t>(mode) << 28 | uint64_t{max_dims_ == kMaxDims} << 24;
  key |= static_cast<uint64_t>(in) << 16 | static_cast<uint64_t>(out) << 8 | static_cast<uint64_t>(out2);
  key |= uint64_t{1} << 56 | static_cast<uint64_t>(step) << 48;
  return op_.program(key, [&](Source& source) {
    define_mode(source, mode);
    source.define("T", in).define("A", what_.acc).define("O", out).define("O2", out2);
    source.define("P0", what_.part0).define("P1", what_.part1);
    source.define("INPUTS", int64_t{inputs_}).define("OPERANDS", int64_t{inputs_ + 2});
    source.define("DIMS", int64_t{max_dims_}).define("A_BYTES", int64_t{size_of(what_.acc)});
    // Columns: few rows at a time, so that their pages stay known while a unit walks along them.
    const bool dense = mode == RowMode::Dense, columns = mode == RowMode::Columns;
    source.define("BLOCK", int64_t{dense ? (what_.ordered ? 1024 : 2048) : columns ? 32 : 64});
    if (columns) source.define("ROW_BLOCK", kColumnBlock);
    if (computing_type(out) == what_.acc) source.define("SAME_OUT", int64_t{1});
    if (what_.define != nullptr) what_.define(source, what_.acc);
    if (step == Step::All) source.define("REDUCE_ALL", int64_t{1});
    if (step == Step::Parts) source.define("REDUCE_PARTS", int64_t{1});
    source.file("reduce_row.cl").file(what_.file).file("reduce.cl");
    source.kernel(step == Step::All ? "reduce_all" : step == Step::Parts ? "reduce_parts" : "reduce_merge");
  });
}

void Reducer::run(const Operand* in, const Operand& out, const Operand& out2, const Place& centre,
                  const Place& scratch) {
  const Step step = parts_ == 1 ? Step::All : Step::Parts;
  const Program& folding = program(step, mode_, in[0].type, out.type, out2.type);
  const PackedAxes kept(kept_, max_dims_), reduced(reduced_, max_dims_);
  const Operand& y = in[inputs_ - 1];
  const int item = size_of(in[0].type), acc = size_of(what_.acc);
  const Value p0(what_.acc, what_.p0), p1(what_.acc, what_.p1);
  const auto out_at = Op::at(out.place, size_of(out.type)), out2_at = Op::at(out2.place, size_of(out2.type));
  const int64_t width = mode_ == RowMode::Columns ? kColumnBlock : 1;
  if (parts_ == 1) {
    const RowGrid grid = row_grid(op_.device, mode_, rows_, total_ * width);
    op_.launch(folding, 0, grid.global, grid.local, Op::at(in[0].place, item), Op::at(y.place, item),
               Op::at(centre, acc), out_at, out2_at, kept.bytes(), reduced.bytes(), rows_, p0, p1);
    return;
  }
  const Place part1 = scratch.plus(static_cast<uint64_t>(parts_ * outputs_ * size_of(what_.part0)));
  const auto part0_at = Op::at(scratch, size_of(what_.part0)), part1_at = Op::at(part1, size_of(what_.part1));
  const RowGrid grid = row_grid(op_.device, mode_, rows_ * parts_, total_ / parts_ * width);
  op_.launch(folding, 0, grid.global, grid.local, Op::at(in[0].place, item), Op::at(y.place, item),
             Op::at(centre, acc), part0_at, part1_at, kept.bytes(), reduced.bytes(), rows_, outputs_, parts_, p0);
  const RowMode merging = op_.device.cpu ? RowMode::Strided : RowMode::Item;
  const Program& merge = program(Step::Merge, merging, in[0].type, out.type, out2.type);
  const RowGrid outputs = row_grid(op_.device, merging, outputs_, 4 * parts_);
  op_.launch(merge, 0, outputs.global, outputs.local, part0_at, part1_at, out_at, out2_at, kept.bytes(), outputs_,
             parts_, total_, p0, p1);
}

}  // namespace ocl
