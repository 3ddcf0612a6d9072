// sort and topk along one dimension (kernels/sort*.cl). Many rows: one work-item sorts a row. Few long rows: radix
// passes by slices of a row. topk keeps the best of each slice in a heap; for a large k it is a sort of which k
// are written.
#include "index_walk.h"

namespace ocl {
namespace {

// struct Rows of sort.cl.
struct Rows {
  int64_t size, self_stride, value_stride, index_stride;
  int64_t first_row = 0, rows = 0;
  int64_t keep, descending;
};

struct Plan {
  Walk walk{3};  // self, values, indices over all dims but the sorted one
  Rows rows;

  Plan(const Op& op, int64_t attr_dim, bool descending, int64_t keep) {
    const Shape self(op.input(0)), values(op.output(0)), indices(op.output(1));
    const int dim = self.dim(attr_dim);
    for (int d = 0; d < self.ndim; ++d) {
      if (d == dim) continue;
      const int64_t strides[3] = {self.strides[d], values.strides[d], indices.strides[d]};
      walk.add(self.sizes[d], strides);
    }
    rows.size = self.sizes[dim];
    rows.self_stride = self.strides[dim];
    rows.value_stride = values.strides[dim];
    rows.index_stride = indices.strides[dim];
    rows.keep = keep < 0 ? rows.size : keep;
    rows.descending = descending;
  }
};

constexpr int64_t kScratch = int64_t{256} << 20;  // bytes; more rows than fit take several launches

int item_bytes(Type type) { return size_of(type) == 8 ? 16 : 8; }
int digits(Type type) { return size_of(type); }

enum Way : uint64_t { kByRow, kLong, kTopk };

const Program& sort_program(Op& op, Way way) {
  return op.program(way, [&](Source& source) {
    static constexpr const char* kUnsigned[] = {"", "uchar", "ushort", "", "uint", "", "", "", "ulong"};
    source.define("U", std::string(kUnsigned[size_of(op.in)]));
    source.define("KEY_BITS", int64_t{8} * size_of(op.in));
    switch (op.in) {
      case Type::Float16: source.define("INFINITY_BITS", std::string("0x7c00")); break;
      case Type::BFloat16: source.define("INFINITY_BITS", std::string("0x7f80")); break;
      case Type::Float32: source.define("INFINITY_BITS", std::string("0x7f800000u")); break;
      case Type::Float64: source.define("INFINITY_BITS", std::string("0x7ff0000000000000ul")); break;
      case Type::Bool:
      case Type::UInt8: break;
      default: source.define("SIGNED", int64_t{1}); break;
    }
    source.define("OPERANDS", int64_t{3});
    source.file("index_walk.cl");
    source.file("sort.cl");
    if (way == kByRow) {
      source.file("sort_rows.cl");
      source.kernel("sort_rows");
    } else if (way == kLong) {
      source.file("sort_long.cl");
      for (const char* name : {"long_items", "long_count", "long_starts", "long_move", "long_pick", "long_write"})
        source.kernel(name);
    } else {
      source.file("sort_topk.cl");
      source.kernel("topk_slices");
      source.kernel("topk_finish");
    }
  });
}

void sort_by_row(Op& op, Plan& plan) {
  const Program& program = sort_program(op, kByRow);
  const int item = item_bytes(op.in);
  const int64_t total = plan.walk.numel(), row_bytes = 2 * plan.rows.size * item;
  const int64_t batch = std::max<int64_t>(1, std::min(total, kScratch / row_bytes));
  const auto items = op.at(op.stream.scratch(static_cast<uint64_t>(batch * row_bytes)), item);
  const auto words = plan.walk.words();
  for (int64_t first = 0; first < total; first += batch) {
    plan.rows.first_row = first;
    plan.rows.rows = std::min(batch, total - first);
    op.launch(program, 0, {plan.rows.rows}, {op.device.cpu ? 1 : 64}, op.input(0), op.output(0), op.output(1), items,
              bytes_of(words), Bytes{&plan.rows, sizeof(plan.rows)});
  }
}

void sort_long(Op& op, Plan& plan) {
  const Program& program = sort_program(op, kLong);
  struct {
    int64_t slices, slice;
  } cut;
  const int64_t n = plan.rows.size, total = plan.walk.numel();
  const int64_t wanted = op.device.compute_units * 2;
  cut.slice = op.device.cpu ? std::max<int64_t>(16384, (n + wanted - 1) / wanted) : 2048;
  cut.slices = (n + cut.slice - 1) / cut.slice;
  const int item = item_bytes(op.in);
  const int64_t row_items = 2 * n * item, row_states = 64, row_counts = 256 * cut.slices * 4;
  const int64_t batch = std::max<int64_t>(1, std::min(total, kScratch / (row_items + row_counts)));
  const Place place = op.stream.scratch(static_cast<uint64_t>(batch * (row_items + row_counts + row_states)));
  const auto items = op.at(place, item);
  const auto counts = op.at(place.plus(static_cast<uint64_t>(batch * row_items)), 4);
  const auto states = op.at(place.plus(static_cast<uint64_t>(batch * (row_items + row_counts))), 4);
  const auto words = plan.walk.words();
  const int64_t local = op.device.cpu ? 1 : 64;
  for (int64_t first = 0; first < total; first += batch) {
    plan.rows.first_row = first;
    plan.rows.rows = std::min(batch, total - first);
    const Extent grid{cut.slices, plan.rows.rows}, group{local, 1};
    const Bytes walk = bytes_of(words), rows{&plan.rows, sizeof(plan.rows)}, slices{&cut, sizeof(cut)};
    op.launch(program, 0, grid, group, op.input(0), items, states, walk, rows, slices);
    for (int32_t digit = 0; digit < digits(op.in); ++digit) {
      op.launch(program, 1, grid, group, items, states, counts, rows, slices, digit);
      op.launch(program, 2, {plan.rows.rows}, {1}, states, counts, rows, slices, digit);
      op.launch(program, 3, grid, group, items, states, counts, rows, slices, digit);
    }
    op.launch(program, 4, grid, group, op.input(0), items, states, walk, rows, slices);
    op.launch(program, 5, grid, group, op.output(0), op.output(1), items, states, walk, rows, slices);
  }
}

fl_status sort_rows(Op& op, Plan& plan) {
  if (plan.rows.size >= int64_t{1} << 31) return FL_STATUS_UNIMPLEMENTED;
  const int64_t rows = plan.walk.numel(), n = plan.rows.size;
  const bool few = op.device.cpu ? rows < op.device.compute_units && n >= 65536 : n > 4096;
  if (few) sort_long(op, plan);
  else sort_by_row(op, plan);
  return FL_STATUS_OK;
}

fl_status sort(Op& op) {
  Plan plan(op, op.attr_int(0), op.attr_int(1) != 0, -1);
  return sort_rows(op, plan);
}

fl_status topk(Op& op) {
  const int64_t k = op.attr_int(0);
  Plan plan(op, op.attr_int(1), op.attr_int(2) != 0, k);
  const int64_t n = plan.rows.size, total = plan.walk.numel();
  if (k <= 0) return FL_STATUS_OK;
  if (k > n || n >= int64_t{1} << 31) return FL_STATUS_UNIMPLEMENTED;
  if (k * 8 > n && n > 64) return sort_rows(op, plan);
  const Program& program = sort_program(op, kTopk);
  // Slices of at least 16 k elements, so that the last step has little to do.
  const int64_t least = std::max<int64_t>(op.device.cpu ? 16384 : 1024, 16 * k);
  const int64_t wanted = op.device.cpu ? (total >= op.device.compute_units ? 1 : op.device.compute_units)
                                       : std::max<int64_t>(1, 16384 / total);
  int64_t slices = std::max<int64_t>(1, std::min(wanted, n / least));
  const int64_t slice = (n + slices - 1) / slices;
  slices = (n + slice - 1) / slice;
  const int item = item_bytes(op.in);
  const int64_t row_bytes = slices * k * item, batch = std::max<int64_t>(1, std::min(total, kScratch / row_bytes));
  const auto items = op.at(op.stream.scratch(static_cast<uint64_t>(batch * row_bytes)), item);
  const auto words = plan.walk.words();
  const int64_t local = op.device.cpu ? 1 : 64;
  for (int64_t first = 0; first < total; first += batch) {
    plan.rows.first_row = first;
    plan.rows.rows = std::min(batch, total - first);
    const Bytes walk = bytes_of(words), rows{&plan.rows, sizeof(plan.rows)};
    op.launch(program, 0, {slices, plan.rows.rows}, {local, 1}, op.input(0), items, walk, rows, slices, slice);
    op.launch(program, 1, {plan.rows.rows}, {local}, op.input(0), op.output(0), op.output(1), items, walk, rows, slices,
              slice);
  }
  return FL_STATUS_OK;
}

OCL_KERNEL("sort", kAllTypes, sort);
OCL_KERNEL("topk", kAllTypes, topk);

}  // namespace
}  // namespace ocl
