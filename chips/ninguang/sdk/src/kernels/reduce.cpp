// Runs a Fold over operands of any layout: which dims are kept and which reduced, rows or columns, threads, results.
#include "reduce.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "../parallel.h"
#include "copy.h"

namespace ng {
namespace {

struct Dim {
  int64_t size, in, out[2];  // strides in elements
};

struct Dims {
  Dim dim[kMaxDims];
  int count = 0;
  int64_t total = 1;

  // Fastest in the input last; joins what is one dim in all operands.
  void arrange() {
    std::stable_sort(dim, dim + count, [](const Dim& a, const Dim& b) { return a.in > b.in; });
    int kept = 0;
    for (int d = 0; d < count; ++d) {
      Dim& last = dim[kept > 0 ? kept - 1 : 0];
      const Dim& next = dim[d];
      const auto follows = [&next](int64_t outer, int64_t inner) { return outer == inner * next.size; };
      if (kept > 0 && follows(last.in, next.in) && follows(last.out[0], next.out[0]) &&
          follows(last.out[1], next.out[1])) {
        const int64_t size = last.size * next.size;
        last = next;
        last.size = size;
      } else {
        dim[kept++] = next;
      }
    }
    count = kept;
    if (count == 0) dim[count++] = {1, 1, {0, 0}};
  }
};

struct Plan {
  const Fold* fold;
  const Params* params;
  const char* in;
  ngDataType type;
  int size;   // bytes of a stored input element
  bool half;  // stored in 16 bits, folded as float
  char* out[2];
  ngDataType out_type[2];
  int outputs;
  Dims kept, reduced;  // the last kept dim is the one along which runs of outputs go
  bool columns;
  bool joined;            // columns, and a whole run is a short dense row right after the one before
  int64_t run;            // outputs in a full run
  int64_t runs_per_line;  // runs along the last kept dim
  int64_t runs;

  const Dim& line() const { return kept.dim[kept.count - 1]; }
};

struct Run {
  int64_t in, out[2];  // offsets of the first output
  int64_t count;
};

Run locate(const Plan& plan, int64_t number) {
  int64_t outer = number / plan.runs_per_line;
  const int64_t first = number % plan.runs_per_line * plan.run;
  const Dim& line = plan.line();
  Run run{first * line.in, {first * line.out[0], first * line.out[1]}, std::min(plan.run, line.size - first)};
  for (int d = plan.kept.count - 2; d >= 0; --d) {
    const Dim& dim = plan.kept.dim[d];
    const int64_t index = outer % dim.size;
    outer /= dim.size;
    run.in += index * dim.in;
    run.out[0] += index * dim.out[0];
    run.out[1] += index * dim.out[1];
  }
  return run;
}

// Calls body(offset, position, n) for each piece of the last reduced dim in positions [begin, end).
template <class Body> void each_piece(const Plan& plan, int64_t begin, int64_t end, const Body& body) {
  const Dim& last = plan.reduced.dim[plan.reduced.count - 1];
  while (begin < end) {
    int64_t outer = begin / last.size;
    const int64_t index = begin % last.size, n = std::min(end - begin, last.size - index);
    int64_t offset = index * last.in;
    for (int d = plan.reduced.count - 2; d >= 0; --d) {
      const Dim& dim = plan.reduced.dim[d];
      offset += outer % dim.size * dim.in;
      outer /= dim.size;
    }
    body(offset, begin, n);
    begin += n;
  }
}

constexpr int64_t kBlock = 1024;

// n elements from `src`, `stride` apart, as a dense block of the computing type.
const void* dense_block(const Plan& plan, const char* src, int64_t stride, int64_t n, void* buffer) {
  if (!plan.half) {
    if (stride == 1) return src;
    gather_rows(plan.size, src, {1, n, 0, stride}, buffer);
    return buffer;
  }
  uint16_t halves[kBlock];
  if (stride != 1) {
    gather_rows(2, src, {1, n, 0, stride}, halves);
    src = reinterpret_cast<const char*>(halves);
  }
  widen(plan.type, src, static_cast<float*>(buffer), n);
  return buffer;
}

void fold_rows(const Plan& plan, const Run& run, int64_t begin, int64_t end, void* accs) {
  alignas(64) char buffer[kBlock * 16];
  const int64_t stride = plan.reduced.dim[plan.reduced.count - 1].in;
  const bool direct = stride == 1 && !plan.half;
  for (int64_t slot = 0; slot < run.count; ++slot) {
    const int64_t base = run.in + slot * plan.line().in;
    each_piece(plan, begin, end, [&](int64_t offset, int64_t position, int64_t n) {
      const char* src = plan.in + (base + offset) * plan.size;
      if (direct) return plan.fold->row(src, n, position, accs, slot, *plan.params);
      for (int64_t i = 0; i < n; i += kBlock) {
        const int64_t count = std::min(kBlock, n - i);
        const void* block = dense_block(plan, src + i * stride * plan.size, stride, count, buffer);
        plan.fold->row(block, count, position + i, accs, slot, *plan.params);
      }
    });
  }
}

// Folds rows x width elements, rows `row_stride` apart, elements `stride` apart.
void fold_group(const Plan& plan, const char* src, int64_t row_stride, int64_t stride, int64_t rows, int64_t width,
                int64_t position, void* accs) {
  alignas(64) char buffer[kRun * kGroup * 8];
  const bool direct = stride == 1 && !plan.half;
  const int buffer_size = plan.half ? 4 : plan.size;
  const int64_t group = buffer_size > 8 ? kGroup / 2 : kGroup;
  for (int64_t i = 0; i < rows; i += group, src += group * row_stride * plan.size) {
    const int64_t count = std::min(group, rows - i);
    if (direct) {
      plan.fold->columns(src, row_stride, count, width, position + i, accs, *plan.params);
      continue;
    }
    for (int64_t r = 0; r < count; ++r) {
      char* const to = buffer + r * width * buffer_size;
      const void* block = dense_block(plan, src + r * row_stride * plan.size, stride, width, to);
      if (block != to) std::memcpy(to, block, width * buffer_size);
    }
    plan.fold->columns(buffer, width, count, width, position + i, accs, *plan.params);
  }
}

void fold_columns(const Plan& plan, const Run& run, int64_t begin, int64_t end, void* accs) {
  const int64_t row_stride = plan.reduced.dim[plan.reduced.count - 1].in, stride = plan.line().in;
  // Short rows that follow each other without a gap are folded as few long ones.
  const int64_t together = plan.joined ? kRun / run.count : 1, width = together * run.count;
  if (plan.joined) plan.fold->start(accs, width);
  each_piece(plan, begin, end, [&](int64_t offset, int64_t position, int64_t n) {
    const char* const src = plan.in + (run.in + offset) * plan.size;
    const int64_t joined = plan.joined ? n / together : 0, done = joined * together;
    if (joined > 0) fold_group(plan, src, width, 1, joined, width, position, accs);
    const char* const rest = src + done * row_stride * plan.size;
    fold_group(plan, rest, row_stride, stride, n - done, run.count, position + done, accs);
  });
  if (plan.joined) plan.fold->wrap(accs, run.count, width);
}

void fold(const Plan& plan, const Run& run, int64_t begin, int64_t end, void* accs) {
  plan.fold->start(accs, run.count);
  if (plan.columns) fold_columns(plan, run, begin, end, accs);
  else fold_rows(plan, run, begin, end, accs);
}

// Converts and stores the results of a run.
void finish(const Plan& plan, const Run& run, const void* accs) {
  alignas(64) char results[2][kRun * 16];
  alignas(64) char converted[kRun * 16];
  void* const places[2] = {results[0], results[1]};
  plan.fold->finish(accs, run.count, plan.reduced.total, places, *plan.params);
  for (int k = 0; k < plan.outputs; ++k) {
    const ngDataType from = plan.fold->results[k], to = plan.out_type[k];
    const void* value = results[k];
    if (from != to) {
      void* const operands[2] = {converted, results[k]};
      conversion(to, from)(operands, 0, run.count, *plan.params);
      value = converted;
    }
    alignas(64) uint16_t halves[kRun];
    if (to == NG_FLOAT16 || to == NG_BFLOAT16) {
      narrow(to, static_cast<const float*>(value), halves, run.count);
      value = halves;
    }
    const int64_t size = size_of(to);
    scatter_rows(static_cast<int>(size), value, plan.out[k] + run.out[k] * size, {1, run.count, 0, plan.line().out[k]});
  }
}

// Few outputs, many inputs: cuts the reduced positions into parts, each with accumulators of its own.
void reduce_in_parts(const Plan& plan, double cost, int64_t parts) {
  const int64_t bytes = (plan.fold->acc_bytes + 63) / 64 * 64, total = plan.reduced.total;
  const std::unique_ptr<char[]> memory(new char[parts * plan.runs * bytes + 64]);
  char* const accs = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64);
  const double part_cost = cost * static_cast<double>(total / parts * plan.run);
  parallel_for(parts * plan.runs, part_cost, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t part = k / plan.runs;
      fold(plan, locate(plan, k % plan.runs), total * part / parts, total * (part + 1) / parts, accs + k * bytes);
    }
  });
  for (int64_t number = 0; number < plan.runs; ++number) {
    const Run run = locate(plan, number);
    char* const first = accs + number * bytes;
    for (int64_t part = 1; part < parts; ++part) {
      plan.fold->combine(first, first + part * plan.runs * bytes, run.count);
    }
    finish(plan, run, first);
  }
}

void reduce_runs(const Plan& plan, double cost) {
  const double run_cost = cost * static_cast<double>(plan.reduced.total * plan.run) + 20;
  parallel_for(plan.runs, run_cost, [&plan](int64_t begin, int64_t end) {
    alignas(64) char accs[kRun * 24];
    for (int64_t number = begin; number < end; ++number) {
      const Run run = locate(plan, number);
      fold(plan, run, 0, plan.reduced.total, accs);
      finish(plan, run, accs);
    }
  });
}

// Splits the dims into kept and reduced ones.
void sort_dims(const Args& args, Plan& plan) {
  const Tensor& in = args.in[0];
  for (int d = 0; d < in.ndim; ++d) {
    if (in.sizes[d] == 1) continue;
    const bool is_kept = args.out[0].sizes[d] != 1;
    Dims& dims = is_kept ? plan.kept : plan.reduced;
    Dim dim{in.sizes[d], in.strides[d], {0, 0}};
    for (int k = 0; is_kept && k < plan.outputs; ++k) dim.out[k] = args.out[k].strides[d];
    dims.dim[dims.count++] = dim;
    dims.total *= dim.size;
  }
  plan.kept.arrange();
  plan.reduced.arrange();
}

}  // namespace

ngResult reduce(const Args& args, const Folds& folds, double cost, Params& params) {
  const Tensor& in = args.in[0];
  Plan plan;
  plan.fold = folds[in.type];
  if (!plan.fold) return NG_ERROR_NOT_SUPPORTED;
  plan.params = &params;
  plan.in = in.as<const char>();
  plan.type = in.type;
  plan.size = static_cast<int>(size_of(in.type));
  plan.half = in.type == NG_FLOAT16 || in.type == NG_BFLOAT16;
  plan.outputs = std::min(args.num_out, 2);
  for (int k = 0; k < plan.outputs; ++k) {
    plan.out[k] = args.out[k].as<char>();
    plan.out_type[k] = args.out[k].type;
  }
  sort_dims(args, plan);

  const int64_t total = plan.reduced.total, outputs = plan.kept.total;
  const Dim& last_reduced = plan.reduced.dim[plan.reduced.count - 1];
  // Short dense rows are cheaper by columns too, though these must be gathered.
  plan.columns = outputs > 1 && (plan.line().in < last_reduced.in || (total < 32 && plan.line().size >= 32));
  plan.run = std::min(kRun, plan.line().size);
  plan.joined = plan.columns && plan.fold->wrap && plan.line().in == 1 && plan.line().size <= kRun / 4 &&
                last_reduced.in == plan.line().size && last_reduced.size >= kRun;
  const auto count_runs = [&plan] {
    plan.runs_per_line = (plan.line().size + plan.run - 1) / plan.run;
    plan.runs = plan.kept.total / plan.line().size * plan.runs_per_line;
  };
  count_runs();
  const double work = cost * static_cast<double>(total) * static_cast<double>(outputs);
  const int64_t wanted = work < 40000 ? 1 : 4 * cores();
  if (plan.runs < wanted && !plan.columns && outputs >= wanted) {
    plan.run = std::max<int64_t>(1, plan.line().size / wanted);
    count_runs();
  }
  if (plan.runs >= wanted) {
    reduce_runs(plan, cost);
  } else {
    const int64_t parts = std::min<int64_t>({64, total, static_cast<int64_t>(work / 10000)});
    if (parts > 1) reduce_in_parts(plan, cost, parts);
    else reduce_runs(plan, cost);
  }
  return NG_SUCCESS;
}

}  // namespace ng
