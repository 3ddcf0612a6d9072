// Plans a matrix product and queues its kernels: which kernel, how the work is cut into tasks, where scratch lies.
#include "gemm.h"

#include <algorithm>

namespace ocl {
namespace {

constexpr int64_t kSkinnyRows = 4;       // ROWS of gemm_skinny.cl
constexpr int64_t kSkinnyBlock = 512;    // and its BLOCK
constexpr int64_t kPanelBytes = 131072;  // most of b's panel in local memory: the second-level cache holds it beside a
constexpr int64_t kRowBlock = 1032;      // most rows of a task: its share of b is fetched once for all of them
// Where both operands are packed, a task's share of a (a row block by a block of k) stays in the second-level cache.
constexpr int64_t kPackedRowBlock = 264;
constexpr int64_t kPackedDepthBytes = 4096;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }
bool floating(Type type) { return (bit(type) & kFloatTypes) != 0; }

// What products of a type are summed in.
Type sum_type(Type type) {
  switch (type) {
    case Type::Float64:
    case Type::Int64: return type;
    default: return floating(type) ? Type::Float32 : Type::Int32;
  }
}
int lanes(Type type) { return 64 / size_of(sum_type(type)); }

enum class Variant : uint64_t { Pack, Packed, APacked, InPlace, Skinny, Local };

// The program of a variant. Keys of one registration: bit 40 marks the matrix product's.
const Program& program(Op& op, Variant variant, Type type, const GemmFetch& fetch) {
  const uint64_t key = uint64_t{1} << 40 | fetch.key << 16 | static_cast<uint64_t>(type) << 8 |
                       static_cast<uint64_t>(variant);
  return op.program(key, [&](Source& source) {
    const Type sum = sum_type(type);
    const char* name = sum == Type::Float32 ? "float" : sum == Type::Float64 ? "double"
                       : sum == Type::Int32 ? "uint" : "ulong";
    source.define("T", type).define("GEMM_T", std::string(name)).define("GEMM_LANES", lanes(type));
    source.define("GEMM_ROWS", kGemmRows).define("GEMM_FLOAT", floating(type));
    if (fetch.define) fetch.define(source);
    source.file("gemm_panel.cl");
    if (variant == Variant::Skinny) {
      source.file("gemm_skinny.cl").kernel("skinny_add").kernel("skinny_dot");
      return;
    }
    if (variant == Variant::Pack) source.define("PANEL_SPACE", std::string("__global"));
    source.file(fetch.file != nullptr ? fetch.file : "gemm_fetch.cl");
    if (variant == Variant::Pack) {
      source.file("gemm_pack.cl").kernel("gemm_pack").kernel("gemm_pack_b");
      return;
    }
    if (variant == Variant::Local) {
      source.define("SIDE", op.device.max_group >= 256 ? 16 : 8).file("gemm_local.cl").kernel("gemm_local");
      return;
    }
    if (variant != Variant::InPlace) source.define("A_PACKED", 1);
    if (variant == Variant::Packed) source.define("B_PACKED", 1);
    source.file("gemm.cl").kernel("gemm");
  });
}

GemmProblem transposed(GemmProblem p) {
  std::swap(p.a, p.b);
  std::swap(p.rows, p.columns);
  for (GemmMatrix* m : {&p.a, &p.b, &p.self, &p.out}) std::swap(m->row, m->column);
  return p;
}

// The form of a problem that the kernels like best.
GemmProblem normal_form(GemmProblem p) {
  if (p.inner == 0) p.inner = p.batch;
  if (!p.has_self) p.self = {p.out.place, 0, 0, 0, 0};
  if (p.fetch.file != nullptr || p.a_packed) return p;
  const bool few_columns = p.columns <= kSkinnyRows && p.rows > p.columns;
  const bool out_is_transposed = p.out.column != 1 && p.out.row == 1 && p.rows > kSkinnyRows;
  return few_columns || out_is_transposed ? transposed(p) : p;
}

// gemm_args of gemm.cl and, but for the members between out and has_self, of gemm_local.cl.
struct TileArgs {
  int64_t inner, rows, columns, depth;
  int64_t a[4], self[4], out[4];
  int64_t row_block, row_tasks, column_block, column_tasks, depth_block, tasks;
  int64_t has_self;
};
struct LocalArgs {
  int64_t inner, rows, columns, depth;
  int64_t a[4], self[4], out[4];
  int64_t has_self;
};
struct SkinnyArgs {
  int64_t inner, rows, columns, depth;
  int64_t a[4], b[3], self[4], out[4];
  int64_t block, blocks, tasks, has_self;
};
struct PackArgs {
  int64_t inner, rows, depth, row, column, batch, outer, panels, depth_block, tasks;
};
struct PackBArgs {
  int64_t columns, depth, panels, panel_block, depth_block, tasks;
};
struct FetchArgs {
  int64_t row, column, batch, outer, inner;
};

void set(int64_t (&to)[4], const GemmMatrix& m) {
  to[0] = m.row, to[1] = m.column, to[2] = m.batch, to[3] = m.outer;
}
template <class Args>
void set_common(Args& args, const GemmProblem& p) {
  args.inner = p.inner, args.rows = p.rows, args.columns = p.columns, args.depth = p.depth;
  set(args.a, p.a), set(args.self, p.self), set(args.out, p.out);
  args.has_self = p.has_self;
}

struct Factors {
  explicit Factors(const GemmProblem& p) : alpha(sum_type(p.type), p.alpha), beta(sum_type(p.type), p.beta) {}
  Value alpha, beta;
};

struct FetchOf {
  explicit FetchOf(const GemmProblem& p)
      : plain{p.b.row, p.b.column, p.b.batch, p.b.outer, p.inner},
        bytes(p.fetch.file != nullptr ? p.fetch.args : Bytes{&plain, sizeof(plain)}) {}
  FetchOf(const FetchOf&) = delete;
  FetchArgs plain;
  Bytes bytes;
};

// How the tile kernel's work is cut.
struct TilePlan {
  bool pack_a = false, pack_b = false;  // packed first, into scratch: a, then b, then the sums between blocks of k
  int64_t row_block, row_tasks, column_block, column_tasks, depth_block, tasks;
  uint64_t a_bytes = 0, b_bytes = 0, sum_bytes = 0;
};

double multiplications(const GemmProblem& p) {
  return static_cast<double>(p.batch) * static_cast<double>(p.rows) * static_cast<double>(p.columns) *
         static_cast<double>(p.depth);
}

void choose_packing(const GemmProblem& p, TilePlan& plan) {
  const bool large = multiplications(p) / static_cast<double>(p.batch) >= 300.0 * 300.0 * 300.0 && p.depth >= 64;
  plan.pack_b = large && p.rows >= 16 * kGemmRows && p.columns >= gemm_columns(p.type);
  if (p.a_packed) return;
  // In place, a half is converted anew for each panel, and every row is a stream of its own.
  const bool converted = size_of(p.type) < 4 && p.columns > gemm_columns(p.type);
  plan.pack_a = plan.pack_b || converted || (large && p.columns >= 256 && p.rows > kGemmRows);
}

// Cuts rows and columns so that there are enough tasks for the compute units, each worth its start.
void choose_tasks(const Device& device, const GemmProblem& p, TilePlan& plan) {
  const int64_t width = gemm_columns(p.type), panels = divide_up(p.columns, width);
  const int64_t most = 4 * std::max<int64_t>(1, device.compute_units);
  const int64_t wanted = static_cast<int64_t>(std::clamp(multiplications(p) / 65536, 1.0, static_cast<double>(most)));
  plan.row_tasks = divide_up(p.rows, plan.pack_b ? kPackedRowBlock : kRowBlock);
  const int64_t tasks = p.batch * panels * plan.row_tasks;
  const int64_t most_rows = divide_up(p.rows, kGemmRows);
  if (tasks < wanted) plan.row_tasks = std::min(most_rows, plan.row_tasks * divide_up(wanted, tasks));
  plan.row_block = round_up(divide_up(p.rows, plan.row_tasks), kGemmRows);
  plan.row_tasks = divide_up(p.rows, plan.row_block);
  // Several panels per task: packed, they share the block of a in the cache; else it is for fewer, larger tasks.
  const int64_t spare = p.batch * panels * plan.row_tasks / ((plan.pack_b ? 2 : 8) * wanted);
  const int64_t per_task = std::clamp<int64_t>(spare, 1, panels);
  plan.column_block = divide_up(panels, divide_up(panels, per_task)) * width;
  plan.column_tasks = divide_up(p.columns, plan.column_block);
  plan.tasks = p.batch * plan.row_tasks * plan.column_tasks;
}

TilePlan plan_tiles(const Device& device, const GemmProblem& p) {
  TilePlan plan;
  choose_packing(p, plan);
  choose_tasks(device, p, plan);
  const int64_t width = gemm_columns(p.type), item = size_of(sum_type(p.type));
  const int64_t budget = std::min<int64_t>(kPanelBytes, static_cast<int64_t>(device.local_memory) / 2) / width;
  const int64_t most_depth = std::max<int64_t>(16, (plan.pack_b ? kPackedDepthBytes : budget) / item / 16 * 16);
  plan.depth_block = round_up(divide_up(p.depth, divide_up(p.depth, most_depth)), 16);
  const auto aligned = [](int64_t bytes) { return static_cast<uint64_t>(round_up(bytes, 256)); };
  if (plan.pack_a) plan.a_bytes = aligned(p.batch * packed_a_bytes(p.type, p.rows, p.depth));
  if (plan.pack_b) plan.b_bytes = aligned(p.batch * round_up(p.columns, width) * p.depth * item);
  if (plan.depth_block < p.depth) plan.sum_bytes = aligned(plan.tasks * plan.row_block * plan.column_block * item);
  return plan;
}

bool skinny(const GemmProblem& p) {
  if (!floating(p.type) || p.rows > kSkinnyRows || p.fetch.file != nullptr || p.a_packed) return false;
  return p.b.column == 1 || (p.b.row == 1 && p.a.column == 1);
}

void run_skinny(Op& op, const GemmProblem& p) {
  const bool dot = p.b.column != 1 || (p.columns == 1 && p.b.row == 1 && p.a.column == 1);
  SkinnyArgs args;
  set_common(args, p);
  args.b[0] = dot ? p.b.column : p.b.row, args.b[1] = p.b.batch, args.b[2] = p.b.outer;
  const int64_t units = std::max<int64_t>(1, op.device.compute_units);
  args.block = std::clamp<int64_t>(round_up(divide_up(p.columns, 4 * units), 64), 64, kSkinnyBlock);
  args.blocks = divide_up(p.columns, args.block);
  args.tasks = p.batch * args.blocks;
  const Factors f(p);
  const int item = size_of(p.type);
  op.launch(program(op, Variant::Skinny, p.type, p.fetch), dot ? 1 : 0, {args.tasks}, {1}, Op::at(p.a.place, item),
            Op::at(p.b.place, item), Op::at(p.self.place, item), Op::at(p.out.place, item), Bytes{&args, sizeof(args)},
            f.alpha, f.beta);
}

void pack_b(Op& op, const GemmProblem& p, const Bytes& fetch, const Place& packed) {
  constexpr int64_t kDepthBlock = 16, kPanelBlock = 32;
  const int64_t panels = divide_up(p.columns, gemm_columns(p.type));
  PackBArgs args{p.columns, p.depth, panels, kPanelBlock, kDepthBlock, 0};
  args.tasks = p.batch * divide_up(p.depth, kDepthBlock) * divide_up(panels, kPanelBlock);
  op.launch(program(op, Variant::Pack, p.type, p.fetch), 1, {args.tasks}, {1}, Op::at(p.b.place, size_of(p.type)),
            Op::at(packed, size_of(sum_type(p.type))), Bytes{&args, sizeof(args)}, fetch);
}

void run_tiles(Op& op, GemmProblem p) {
  const TilePlan plan = plan_tiles(op.device, p);
  const int item = size_of(p.type), sum_item = size_of(sum_type(p.type));
  const FetchOf fetch(p);
  if (plan.pack_a) {
    pack_a(op, p.type, p.a, p.batch, p.inner, p.rows, p.depth, p.scratch);
    const int64_t numel = packed_a_numel(p.rows, p.depth);
    p.a = {p.scratch, 0, 0, numel, numel * p.inner};
    p.a_packed = true;
  }
  if (plan.pack_b) {
    const Place packed = p.scratch.plus(plan.a_bytes);
    pack_b(op, p, fetch.bytes, packed);
    p.b.place = packed;
  }
  TileArgs args;
  set_common(args, p);
  args.row_block = plan.row_block, args.row_tasks = plan.row_tasks;
  args.column_block = plan.column_block, args.column_tasks = plan.column_tasks;
  args.depth_block = plan.depth_block, args.tasks = plan.tasks;
  const Factors f(p);
  const Place sums = plan.sum_bytes != 0 ? p.scratch.plus(plan.a_bytes + plan.b_bytes) : p.out.place;
  const int64_t panel = plan.pack_b ? 16 : std::min(p.depth, plan.depth_block) * gemm_columns(p.type);
  const Variant variant = plan.pack_b ? Variant::Packed : p.a_packed ? Variant::APacked : Variant::InPlace;
  op.launch(program(op, variant, p.type, p.fetch), 0, {plan.tasks}, {1},
            Op::at(p.a.place, p.a_packed ? sum_item : item), Op::at(p.b.place, plan.pack_b ? sum_item : item),
            Op::at(p.self.place, item), Op::at(p.out.place, item), Op::at(sums, sum_item),
            Local{static_cast<size_t>(panel * sum_item)}, Bytes{&args, sizeof(args)}, fetch.bytes, f.alpha, f.beta);
}

void run_local(Op& op, const GemmProblem& p) {
  LocalArgs args;
  set_common(args, p);
  const FetchOf fetch(p);
  const Factors f(p);
  const int item = size_of(p.type);
  const int64_t side = op.device.max_group >= 256 ? 16 : 8, tile = 4 * side;
  op.launch(program(op, Variant::Local, p.type, p.fetch), 0,
            {divide_up(p.columns, tile) * side, divide_up(p.rows, tile) * side, p.batch}, {side, side, 1},
            Op::at(p.a.place, item), Op::at(p.b.place, item), Op::at(p.self.place, item), Op::at(p.out.place, item),
            Bytes{&args, sizeof(args)}, fetch.bytes, f.alpha, f.beta);
}

}  // namespace

int64_t gemm_columns(Type type) { return 2 * lanes(type); }

int64_t packed_a_numel(int64_t rows, int64_t depth) { return round_up(rows, kGemmRows) * depth; }

int64_t packed_a_bytes(Type type, int64_t rows, int64_t depth) {
  return packed_a_numel(rows, depth) * size_of(sum_type(type));
}

uint64_t gemm_scratch_bytes(const Device& device, const GemmProblem& problem) {
  if (!device.cpu) return 0;
  const GemmProblem p = normal_form(problem);
  if (skinny(p)) return 0;
  const TilePlan plan = plan_tiles(device, p);
  return plan.a_bytes + plan.b_bytes + plan.sum_bytes;
}

void pack_a(Op& op, Type type, const GemmMatrix& a, int64_t batch, int64_t inner, int64_t rows, int64_t depth,
            const Place& packed) {
  constexpr int64_t kDepthBlock = 256;
  PackArgs args{inner == 0 ? batch : inner, rows, depth, a.row, a.column, a.batch, a.outer,
                divide_up(rows, kGemmRows), kDepthBlock, 0};
  args.tasks = batch * args.panels * divide_up(depth, kDepthBlock);
  op.launch(program(op, Variant::Pack, type, {}), 0, {args.tasks}, {1}, Op::at(a.place, size_of(type)),
            Op::at(packed, size_of(sum_type(type))), Bytes{&args, sizeof(args)});
}

void gemm(Op& op, const GemmProblem& problem) {
  const GemmProblem p = normal_form(problem);
  if (!op.device.cpu) return run_local(op, p);
  if (skinny(p)) return run_skinny(op, p);
  run_tiles(op, p);
}

}  // namespace ocl
