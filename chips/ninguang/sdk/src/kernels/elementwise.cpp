// Runs a dense loop over operands of any layout, type and thread count. See elementwise.h.
#include "elementwise.h"

#include <algorithm>
#include <cstring>

#include "../parallel.h"
#include "copy.h"
#include "scratch.h"

namespace ng {
namespace {

constexpr int64_t kBlockBytes = 4096;  // of one operand's buffer, in the computing type
constexpr int64_t kLongRow = 128;      // rows of at least this many elements are never split over two blocks

enum class Mode : uint8_t {
  direct,  // dense over all dims and stored as computed: used in place
  repeat,  // the same values in each row, one value in the simplest case: put into the buffer once
  walked   // the rest: gathered or converted block by block
};

struct Operand {
  char* data;
  const int64_t* strides;
  Mode mode;
  bool immediate;
  ngDataType type;
  int size;         // bytes of a stored element
  int buffer_size;  // bytes of an element as computed
};

struct Plan {
  Operand operands[kMaxOperands];
  int count;
  int ndim;
  const int64_t* sizes;
  int64_t block;  // elements, at most; a multiple of the row length if that is short
  bool streamed;  // the output is dense and too large for any cache: written past them
  Loop loop;
  const Params* params;
};

// ---- a place in an operand, moving in row-major order ----

struct Walker {
  int64_t index[kMaxDims];
  int64_t offset;  // elements
  int64_t filled;  // elements at the start of the buffer that hold this row's one value (stride 0)
};

void start(Walker& walker, const Plan& plan, const Operand& operand, int64_t position) {
  walker.offset = 0;
  walker.filled = 0;
  for (int d = plan.ndim - 1; d >= 0; --d) {
    walker.index[d] = position % plan.sizes[d];
    position /= plan.sizes[d];
    walker.offset += walker.index[d] * operand.strides[d];
  }
}

// Moves n steps along dim d, at most to its end.
void advance(Walker& walker, const Plan& plan, const Operand& operand, int d, int64_t n) {
  walker.index[d] += n;
  walker.offset += n * operand.strides[d];
  for (; d > 0 && walker.index[d] == plan.sizes[d]; --d) {
    walker.offset += operand.strides[d - 1] - plan.sizes[d] * operand.strides[d];
    walker.index[d] = 0;
    walker.filled = 0;
    ++walker.index[d - 1];
  }
}

// True if the next n elements lie in one row.
bool in_row(const Walker& walker, const Plan& plan, int64_t n) {
  return plan.sizes[plan.ndim - 1] - walker.index[plan.ndim - 1] >= n;
}

// Calls body(address, rows, first) for each run of whole rows, or part of one row, in the next n elements; `rows` has
// the strides.
template <class Body>
void each_rows(Walker& walker, const Plan& plan, const Operand& operand, int64_t n, const Body& body) {
  const int last = plan.ndim - 1;
  const int64_t inner = plan.sizes[last];
  Rows rows{1, 0, 0, operand.strides[last]};
  for (int64_t done = 0; done < n; done += rows.count * rows.columns) {
    char* const address = operand.data + walker.offset * operand.size;
    if (last > 0 && walker.index[last] == 0 && n - done >= inner) {
      rows = {std::min((n - done) / inner, plan.sizes[last - 1] - walker.index[last - 1]), inner,
              operand.strides[last - 1], operand.strides[last]};
      body(address, rows, done);
      advance(walker, plan, operand, last - 1, rows.count);
    } else {
      rows.count = 1;
      rows.columns = std::min(n - done, inner - walker.index[last]);
      body(address, rows, done);
      advance(walker, plan, operand, last, rows.columns);
    }
  }
}

struct alignas(64) Buffer {
  char bytes[kBlockBytes];
};

bool is_widened(const Operand& operand) { return operand.buffer_size != operand.size; }

// Puts one value n times into the buffer.
void fill(const Operand& operand, const char* value, int64_t n, Buffer& buffer) {
  if (!is_widened(operand)) return gather_rows(operand.size, value, {1, n, 0, 0}, buffer.bytes);
  float wide;
  widen(operand.type, value, &wide, 1);
  std::fill_n(reinterpret_cast<float*>(buffer.bytes), n, wide);
}

// The next n elements of an input, as the loop wants them: in place if they lie dense, else in `buffer`.
const void* load(Walker& walker, const Plan& plan, const Operand& operand, int64_t n, Buffer& buffer) {
  const int last = plan.ndim - 1;
  const char* const here = operand.data + walker.offset * operand.size;
  if (in_row(walker, plan, n) && operand.strides[last] <= 1) {
    const bool repeated = operand.strides[last] == 0;
    if (repeated && walker.filled < n) fill(operand, here, walker.filled = n, buffer);
    advance(walker, plan, operand, last, n);
    if (repeated) return buffer.bytes;
    if (!is_widened(operand)) return here;
    widen(operand.type, here, reinterpret_cast<float*>(buffer.bytes), n);
    return buffer.bytes;
  }
  alignas(64) uint16_t halves[kBlockBytes / 4];
  char* const to = is_widened(operand) ? reinterpret_cast<char*>(halves) : buffer.bytes;
  each_rows(walker, plan, operand, n, [&](const char* src, const Rows& rows, int64_t first) {
    gather_rows(operand.size, src, rows, to + first * operand.size);
  });
  if (is_widened(operand)) widen(operand.type, halves, reinterpret_cast<float*>(buffer.bytes), n);
  return buffer.bytes;
}

// Where the loop may put the next n elements of the output: in place, or in `buffer`, from where store() moves them.
void* store_place(const Walker& walker, const Plan& plan, const Operand& operand, int64_t n, Buffer& buffer) {
  const bool dense = operand.strides[plan.ndim - 1] == 1 && in_row(walker, plan, n);
  return dense && !is_widened(operand) ? operand.data + walker.offset * operand.size : buffer.bytes;
}

void store(Walker& walker, const Plan& plan, const Operand& operand, int64_t n, const void* place, Buffer& buffer) {
  const int last = plan.ndim - 1;
  if (place != buffer.bytes) return advance(walker, plan, operand, last, n);
  alignas(64) uint16_t halves[kBlockBytes / 4];
  const char* raw = buffer.bytes;
  if (is_widened(operand)) {
    const bool dense = operand.strides[last] == 1 && in_row(walker, plan, n);
    void* const to = dense ? operand.data + walker.offset * operand.size : reinterpret_cast<char*>(halves);
    narrow(operand.type, reinterpret_cast<float*>(buffer.bytes), to, n);
    if (dense) return advance(walker, plan, operand, last, n);
    raw = reinterpret_cast<const char*>(halves);
  }
  each_rows(walker, plan, operand, n, [&](char* dst, const Rows& rows, int64_t first) {
    scatter_rows(operand.size, raw + first * operand.size, dst, rows);
  });
}

// ---- the driver ----

void run_direct(const Plan& plan, int64_t begin, int64_t end) {
  void* places[kMaxOperands];
  for (int k = 0; k < plan.count; ++k) places[k] = plan.operands[k].data + begin * plan.operands[k].size;
  plan.loop(places, begin, end - begin, *plan.params);
}

// Puts into the buffer what a repeated operand shows in every block: blocks start at the same place of a row.
void fill_repeated(const Plan& plan, const Operand& operand, int64_t begin, int64_t end, Buffer& buffer) {
  const int64_t n = std::min(plan.block, end - begin);
  if (operand.immediate || operand.strides[plan.ndim - 1] == 0) return fill(operand, operand.data, n, buffer);
  Walker walker;
  start(walker, plan, operand, begin);
  const void* const values = load(walker, plan, operand, n, buffer);
  if (values != buffer.bytes) std::memcpy(buffer.bytes, values, n * operand.size);
}

// From `address` to the start of a cache line; a whole line's worth if it is one.
int64_t elements_to_line(const char* address, int size) {
  return 64 / size - static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) / size % (64 / size));
}

void run_blocks(const Plan& plan, int64_t begin, int64_t end) {
  Buffer buffers[kMaxOperands];
  Walker walkers[kMaxOperands];
  void* places[kMaxOperands];
  bool rows = false;
  for (int k = 0; k < plan.count; ++k) {
    const Operand& operand = plan.operands[k];
    places[k] = operand.mode == Mode::direct ? operand.data + begin * operand.size : buffers[k].bytes;
    if (operand.mode == Mode::repeat) fill_repeated(plan, operand, begin, end, buffers[k]);
    if (operand.mode != Mode::walked) continue;
    start(walkers[k], plan, operand, begin);
    rows = true;
  }
  const int64_t inner = plan.sizes[plan.ndim - 1];
  const bool by_row = rows && inner >= kLongRow;
  const bool walked_out = plan.operands[0].mode == Mode::walked;
  int64_t left = by_row ? inner - begin % inner : end - begin;  // in the row
  char* const out = plan.operands[0].data;
  const int out_size = plan.operands[0].size;
  for (int64_t position = begin; position < end;) {
    int64_t n = std::min({plan.block, left, end - position});
    if (plan.streamed && position == begin && inner >= kLongRow) {  // blocks of short rows must not change their phase
      n = std::min(n, elements_to_line(out + begin * out_size, out_size));
    }
    left -= n;
    if (left == 0) left = inner;
    for (int k = 1; k < plan.count; ++k) {
      if (plan.operands[k].mode != Mode::walked) continue;
      places[k] = const_cast<void*>(load(walkers[k], plan, plan.operands[k], n, buffers[k]));
    }
    if (walked_out) places[0] = store_place(walkers[0], plan, plan.operands[0], n, buffers[0]);
    if (plan.streamed) places[0] = buffers[0].bytes;
    plan.loop(places, position, n, *plan.params);
    if (plan.streamed) stream_row(buffers[0].bytes, out + position * out_size, n * out_size);
    if (walked_out) store(walkers[0], plan, plan.operands[0], n, places[0], buffers[0]);
    for (int k = 0; k < plan.count; ++k) {
      if (plan.operands[k].mode != Mode::direct) continue;
      places[k] = static_cast<char*>(places[k]) + n * plan.operands[k].size;
    }
    position += n;
  }
  if (plan.streamed) stream_end();
}

// True if the operand's elements lie dense in row-major order.
bool is_dense(const Tensor& tensor) {
  int64_t expected = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    if (tensor.sizes[d] == 1) continue;
    if (tensor.strides[d] != expected) return false;
    expected *= tensor.sizes[d];
  }
  return true;
}

// True if all rows are the same: strides are 0, but for the last dim's if rows are short.
bool is_repeated(const Tensor& tensor) {
  if (tensor.immediate) return true;
  int d = tensor.ndim - 1;
  if (d > 0 && tensor.sizes[d] < kLongRow) --d;
  for (; d >= 0; --d) {
    if (tensor.strides[d] != 0 && tensor.sizes[d] != 1) return false;
  }
  return true;
}

Operand describe(const Tensor& tensor, bool output, bool one_element) {
  const int size = static_cast<int>(size_of(tensor.type));
  const bool half = is_16_bit_float(tensor.type);
  Mode mode = Mode::walked;
  if (!half && (one_element || (!tensor.immediate && is_dense(tensor)))) mode = Mode::direct;
  else if (!output && is_repeated(tensor)) mode = Mode::repeat;
  return {tensor.as<char>(), tensor.strides, mode, tensor.immediate, tensor.type, size, half ? 4 : size};
}

// A large input that lies transposed is made dense first: one pass by tiles costs far less than a cache miss for each
// element.
struct Untangled {
  int64_t strides[kMaxDims];
  int count = 0;
};
void untangle(const Tensor& input, int64_t numel, Operand& operand, Untangled& untangled) {
  constexpr int64_t kLeast = 1 << 14, kMostBytes = int64_t{1} << 28;
  const int last = input.ndim - 1;
  if (numel < kLeast || numel * operand.size > kMostBytes || last < 1 || input.strides[last] < 8) return;
  int64_t stride = 1;
  for (int d = last; d >= 0; --d) {
    untangled.strides[d] = stride;
    stride *= input.sizes[d];
  }
  constexpr ScratchSlot slots[] = {kScratchOperand, kScratchOperand2, kScratchOperand3};
  Tensor dense = input;
  dense.data = scratch<char>(slots[untangled.count], numel * operand.size);
  dense.strides = untangled.strides;
  if (!try_transpose(input, dense)) return;
  ++untangled.count;
  operand = describe(dense, false, false);
}

// False if all pieces of a row can be used where they lie.
bool needs_buffer(const Operand& operand, int ndim, const int64_t* sizes) {
  if (operand.mode == Mode::direct) return false;
  const bool rows_lie_dense = operand.mode == Mode::walked && ndim > 0 && operand.strides[ndim - 1] == 1;
  return !rows_lie_dense || sizes[ndim - 1] < kLongRow || is_widened(operand);
}

// Worth it if nothing of the operands would still be in a cache after the call. An output that is also an input has
// been read anyway.
bool should_stream(const Plan& plan, int64_t numel) {
  constexpr int64_t kCacheBytes = 64 << 20;
  if (plan.operands[0].mode != Mode::direct) return false;
  int64_t bytes = 0;
  for (int k = 0; k < plan.count; ++k) {
    const Operand& operand = plan.operands[k];
    if (k > 0 && operand.data == plan.operands[0].data) return false;
    if (operand.mode != Mode::repeat) bytes += numel * operand.size;
  }
  return bytes > kCacheBytes;
}

}  // namespace

Params::Params(const Args& args) {
  for (int k = 0; k < std::min(args.num_attrs, 4); ++k) {
    const ngScalar& attr = args.attrs[k];
    has[k] = attr.kind != 0;
    if (attr.kind == 4) {
      f[k] = attr.v.c[0];
      imaginary[k] = attr.v.c[1];
      i[k] = static_cast<int64_t>(f[k]);
    } else if (has[k]) {
      f[k] = args.f(k);
      i[k] = args.i(k);
    }
  }
}

ngResult elementwise(const Args& args, const Loops& loops, ngDataType type, double cost, Params& params) {
  static constexpr int64_t kOne = 1, kNoStride = 0;
  const Tensor& out = args.out[0];
  Plan plan;
  plan.loop = loops[type];
  if (!plan.loop) return NG_ERROR_NOT_SUPPORTED;
  plan.params = &params;
  plan.ndim = out.ndim;
  plan.sizes = out.sizes;
  plan.count = 1 + args.num_in;
  const int64_t numel = out.numel();
  plan.operands[0] = describe(out, true, numel == 1);
  Untangled untangled;
  for (int k = 1; k < plan.count; ++k) {
    plan.operands[k] = describe(args.in[k - 1], false, numel == 1);
    if (plan.operands[k].mode == Mode::walked) untangle(args.in[k - 1], numel, plan.operands[k], untangled);
  }
  plan.streamed = should_stream(plan, numel);
  bool direct = !plan.streamed, buffered = plan.streamed;
  int widest = 1;
  for (int k = 0; k < plan.count; ++k) {
    direct = direct && plan.operands[k].mode == Mode::direct;
    widest = std::max(widest, plan.operands[k].buffer_size);
    buffered = buffered || needs_buffer(plan.operands[k], out.ndim, out.sizes);
  }
  if (plan.ndim == 0) {  // a row of one
    plan.ndim = 1;
    plan.sizes = &kOne;
    for (int k = 0; k < plan.count; ++k) plan.operands[k].strides = &kNoStride;
  }
  plan.block = buffered ? kBlockBytes / widest : numel;
  const int64_t inner = plan.sizes[plan.ndim - 1];
  if (buffered && inner < kLongRow) plan.block -= plan.block % inner;
  parallel_for(numel, cost, [&plan, direct](int64_t begin, int64_t end) {
    if (direct) run_direct(plan, begin, end);
    else run_blocks(plan, begin, end);
  });
  return NG_SUCCESS;
}

}  // namespace ng
