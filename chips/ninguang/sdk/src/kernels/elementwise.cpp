// Runs a dense loop over operands of any layout, type and thread count. See elementwise.h.
#include "elementwise.h"

#include <algorithm>
#include <cstring>

#include "../parallel.h"
#include "copy.h"

namespace ng {
namespace {

constexpr int64_t kBlockBytes = 4096;  // of one operand's buffer, in the computing type
constexpr int64_t kLongRow = 128;      // rows of at least this many elements are never split over two blocks

enum class Mode : uint8_t {
  direct,  // dense over all dims and stored as computed: used in place
  scalar,  // one value
  walked   // the rest: gathered or converted block by block
};

struct Operand {
  char* data;
  const int64_t* strides;
  Mode mode;
  ngDataType type;
  int size;         // bytes of a stored element
  int buffer_size;  // bytes of an element as computed
};

struct Plan {
  Operand operands[kMaxOperands];
  int count;
  int ndim;
  const int64_t* sizes;
  int64_t block;  // elements
  Loop loop;
  const Params* params;
};

// ---- a place in an operand, moving in row-major order ----

struct Walker {
  int64_t index[kMaxDims];
  int64_t offset;  // elements
};

void start(Walker& walker, const Plan& plan, const Operand& operand, int64_t position) {
  walker.offset = 0;
  for (int d = plan.ndim - 1; d >= 0; --d) {
    walker.index[d] = position % plan.sizes[d];
    position /= plan.sizes[d];
    walker.offset += walker.index[d] * operand.strides[d];
  }
}

void advance(Walker& walker, const Plan& plan, const Operand& operand, int64_t n) {
  int d = plan.ndim - 1;
  walker.index[d] += n;
  walker.offset += n * operand.strides[d];
  for (; d > 0 && walker.index[d] == plan.sizes[d]; --d) {
    walker.offset += operand.strides[d - 1] - plan.sizes[d] * operand.strides[d];
    walker.index[d] = 0;
    ++walker.index[d - 1];
  }
}

// Calls body(address, stride, first, count) for each piece of a row in the next n elements.
template <class Body> void each_row(Walker& walker, const Plan& plan, const Operand& operand, int64_t n, const Body& body) {
  const int last = plan.ndim - 1;
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(n - done, plan.sizes[last] - walker.index[last]);
    body(operand.data + walker.offset * operand.size, operand.strides[last], done, count);
    advance(walker, plan, operand, count);
    done += count;
  }
}

struct alignas(64) Buffer {
  char bytes[kBlockBytes];
};

// The next n elements of an input, as the loop wants them: in place if they lie dense, else in `buffer`.
const void* load(Walker& walker, const Plan& plan, const Operand& operand, int64_t n, Buffer& buffer) {
  const int last = plan.ndim - 1;
  const bool half = is_16_bit_float(operand.type) && operand.buffer_size == 4;
  const void* raw;
  alignas(64) uint16_t halves[kBlockBytes / 4];
  if (operand.strides[last] == 1 && plan.sizes[last] - walker.index[last] >= n) {
    raw = operand.data + walker.offset * operand.size;
    advance(walker, plan, operand, n);
  } else {
    char* const to = half ? reinterpret_cast<char*>(halves) : buffer.bytes;
    each_row(walker, plan, operand, n, [&](const char* src, int64_t stride, int64_t first, int64_t count) {
      gather_row(operand.size, src, stride, count, to + first * operand.size);
    });
    raw = to;
  }
  if (!half) return raw;
  widen(operand.type, raw, reinterpret_cast<float*>(buffer.bytes), n);
  return buffer.bytes;
}

// Where the loop may put the next n elements of the output: in place, or in `buffer`, from where store() moves them.
void* store_place(const Walker& walker, const Plan& plan, const Operand& operand, int64_t n, Buffer& buffer) {
  const int last = plan.ndim - 1;
  const bool dense = operand.strides[last] == 1 && plan.sizes[last] - walker.index[last] >= n;
  return dense && operand.buffer_size == operand.size ? operand.data + walker.offset * operand.size : buffer.bytes;
}

void store(Walker& walker, const Plan& plan, const Operand& operand, int64_t n, const void* place, Buffer& buffer) {
  if (place != buffer.bytes) return advance(walker, plan, operand, n);
  const bool half = operand.buffer_size != operand.size;
  alignas(64) uint16_t halves[kBlockBytes / 4];
  const char* raw = buffer.bytes;
  if (half) {
    const int last = plan.ndim - 1;
    if (operand.strides[last] == 1 && plan.sizes[last] - walker.index[last] >= n) {
      narrow(operand.type, reinterpret_cast<float*>(buffer.bytes), operand.data + walker.offset * operand.size, n);
      return advance(walker, plan, operand, n);
    }
    narrow(operand.type, reinterpret_cast<float*>(buffer.bytes), halves, n);
    raw = reinterpret_cast<const char*>(halves);
  }
  each_row(walker, plan, operand, n, [&](char* dst, int64_t stride, int64_t first, int64_t count) {
    scatter_row(operand.size, raw + first * operand.size, dst, stride, count);
  });
}

// ---- the driver ----

void run_direct(const Plan& plan, int64_t begin, int64_t end) {
  void* places[kMaxOperands];
  for (int k = 0; k < plan.count; ++k) places[k] = plan.operands[k].data + begin * plan.operands[k].size;
  plan.loop(places, begin, end - begin, *plan.params);
}

void run_blocks(const Plan& plan, int64_t begin, int64_t end) {
  Buffer buffers[kMaxOperands];
  Walker walkers[kMaxOperands];
  void* places[kMaxOperands];
  bool rows = false;
  for (int k = 0; k < plan.count; ++k) {
    const Operand& operand = plan.operands[k];
    places[k] = operand.mode == Mode::direct ? operand.data + begin * operand.size : buffers[k].bytes;
    if (operand.mode == Mode::walked) {
      start(walkers[k], plan, operand, begin);
      rows = true;
    } else if (operand.mode == Mode::scalar) {
      const int64_t n = std::min(plan.block, end - begin);
      if (operand.size == operand.buffer_size) {
        gather_row(operand.size, operand.data, 0, n, buffers[k].bytes);
      } else {
        float value;
        widen(operand.type, operand.data, &value, 1);
        std::fill_n(reinterpret_cast<float*>(buffers[k].bytes), n, value);
      }
    }
  }
  const int64_t inner = plan.sizes[plan.ndim - 1];
  const bool by_row = rows && inner >= kLongRow;
  for (int64_t position = begin; position < end;) {
    int64_t n = std::min(plan.block, end - position);
    if (by_row) n = std::min(n, inner - position % inner);
    for (int k = 1; k < plan.count; ++k) {
      if (plan.operands[k].mode != Mode::walked) continue;
      places[k] = const_cast<void*>(load(walkers[k], plan, plan.operands[k], n, buffers[k]));
    }
    const bool walked_out = plan.operands[0].mode == Mode::walked;
    if (walked_out) places[0] = store_place(walkers[0], plan, plan.operands[0], n, buffers[0]);
    plan.loop(places, position, n, *plan.params);
    if (walked_out) store(walkers[0], plan, plan.operands[0], n, places[0], buffers[0]);
    for (int k = 0; k < plan.count; ++k) {
      if (plan.operands[k].mode != Mode::direct) continue;
      places[k] = static_cast<char*>(places[k]) + n * plan.operands[k].size;
    }
    position += n;
  }
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

bool is_scalar(const Tensor& tensor) {
  if (tensor.immediate) return true;
  for (int d = 0; d < tensor.ndim; ++d) {
    if (tensor.strides[d] != 0 && tensor.sizes[d] != 1) return false;
  }
  return true;
}

Operand describe(const Tensor& tensor, bool output, bool one_element) {
  const int size = static_cast<int>(size_of(tensor.type));
  const bool half = is_16_bit_float(tensor.type);
  Mode mode = Mode::walked;
  if (!half && (one_element || (!tensor.immediate && is_dense(tensor)))) mode = Mode::direct;
  else if (!output && is_scalar(tensor)) mode = Mode::scalar;
  return {tensor.as<char>(), tensor.strides, mode, tensor.type, size, half ? 4 : size};
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
  bool direct = true;
  int widest = 1;
  for (int k = 0; k < plan.count; ++k) {
    plan.operands[k] = describe(k == 0 ? out : args.in[k - 1], k == 0, numel == 1);
    direct = direct && plan.operands[k].mode == Mode::direct;
    widest = std::max(widest, plan.operands[k].buffer_size);
  }
  if (plan.ndim == 0) {  // a row of one
    plan.ndim = 1;
    plan.sizes = &kOne;
    for (int k = 0; k < plan.count; ++k) plan.operands[k].strides = &kNoStride;
  }
  plan.block = kBlockBytes / widest;
  parallel_for(numel, cost, [&plan, direct](int64_t begin, int64_t end) {
    if (direct) run_direct(plan, begin, end);
    else run_blocks(plan, begin, end);
  });
  return NG_SUCCESS;
}

}  // namespace ng
