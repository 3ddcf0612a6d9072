// attention and its gradient as batched matrix products over scores in scratch memory, a few batch entries at a time.
// Half operands are copied as floats first, so that scores and weights are never rounded to halves.
#include <algorithm>

#include "gemm.h"

namespace ocl {
namespace {

constexpr int64_t kScoreBytes = 64 << 20;  // bounds the scores of one pass, unless a single batch entry needs more

enum Kernels { kWiden, kNarrow, kSoftmax, kSlope };

struct HeadsArgs {
  int64_t heads, rows, columns, strides[4], tasks;
};
struct SoftmaxArgs {
  int64_t heads, queries, keys, mask[4], logsumexp[3], tasks;
  int64_t has_mask, causal, has_logsumexp;
};

// One pass of attention over batch entries [first, first + count). Runs twice: a dry run on no memory adds up the
// scratch memory, then the real one queues the work.
class Pass {
 public:
  Pass(Op& op, const fl_tensor& query, const fl_tensor& key, const fl_tensor* mask)
      : op_(op), query_(query), mask_(mask), heads_(query.sizes[1]), queries_(query.sizes[2]),
        keys_(key.sizes[2]), sum_(op.in == Type::Float64 ? Type::Float64 : Type::Float32) {
    const int64_t bytes = std::max<int64_t>(1, heads_ * queries_ * keys_ * size_of(sum_));
    entries_ = std::clamp<int64_t>(kScoreBytes / bytes, 1, query.sizes[0]);
  }

  template <class Body>
  void run(const Body& body) {
    const int64_t batch = query_.sizes[0];
    // The last pass, of fewer entries, may cut its products differently.
    for (count_ = batch % entries_; ; count_ = entries_) {
      bytes_ = 0;
      if (count_ != 0) body();
      if (count_ == entries_) break;
    }
    const Place scratch = op_.stream.scratch(bytes_ + gemm_bytes_);
    dry_ = false;
    base_ = scratch;
    gemm_place_ = scratch.plus(bytes_);
    for (; first_ < batch; first_ += entries_) {
      count_ = std::min(entries_, batch - first_);
      bytes_ = 0;
      body();
    }
  }

  // A [batch, heads, L, E] operand of this pass, as the products read it.
  GemmMatrix read(const fl_tensor& t) {
    const GemmMatrix plain = in_place(t);
    if (op_.in == sum_) return plain;
    const GemmMatrix wide = dense(t.sizes[2], t.sizes[3]);
    copy(kWiden, t, wide.place);
    return wide;
  }
  // Where a product writes a result that belongs into t; written() must follow.
  GemmMatrix target(const fl_tensor& t) { return op_.in == sum_ ? in_place(t) : dense(t.sizes[2], t.sizes[3]); }
  void written(const fl_tensor& t, const GemmMatrix& m) {
    if (op_.in != sum_) copy(kNarrow, t, m.place);
  }
  // A dense [count, heads, rows, columns] in scratch.
  GemmMatrix dense(int64_t rows, int64_t columns) {
    const Place place = dry_ ? Place{} : base_.plus(bytes_);
    const int64_t bytes = entries_ * heads_ * rows * columns * size_of(sum_);
    bytes_ += static_cast<uint64_t>((bytes + 255) / 256 * 256);
    return {place, columns, 1, rows * columns, heads_ * rows * columns};
  }

  void multiply(const GemmMatrix& a, const GemmMatrix& b, const GemmMatrix& out, int64_t rows, int64_t columns,
                int64_t depth, double alpha) {
    GemmProblem p;
    p.type = sum_;
    p.batch = count_ * heads_, p.inner = heads_;
    p.rows = rows, p.columns = columns, p.depth = depth;
    p.a = a, p.b = b, p.out = out;
    p.alpha.tag = FL_SCALAR_FLOAT, p.alpha.v.f = alpha;
    p.scratch = gemm_place_;
    if (dry_) {
      gemm_bytes_ = std::max(gemm_bytes_, gemm_scratch_bytes(op_.device, p));
    } else {
      gemm(op_, p);
    }
  }

  // Scores to weights; logsumexp: null if not wanted.
  void softmax(const GemmMatrix& scores, bool causal, const fl_tensor* logsumexp) {
    if (dry_) return;
    SoftmaxArgs args{heads_, queries_, keys_, {}, {}, count_ * heads_ * queries_, mask_ != nullptr, causal,
                     logsumexp != nullptr};
    Place mask = scores.place, out = scores.place;
    if (mask_ != nullptr) {
      const int lead = 4 - mask_->ndim;  // missing leading dims broadcast
      for (int d = lead; d < 4; ++d) args.mask[d] = mask_->sizes[d - lead] == 1 ? 0 : mask_->strides[d - lead];
      mask = Place::of(mask_->memory).plus(static_cast<uint64_t>(first_ * args.mask[0] * size_of(op_.in)));
    }
    if (logsumexp != nullptr) {
      std::copy_n(logsumexp->strides, 3, args.logsumexp);
      out = Place::of(logsumexp->memory).plus(static_cast<uint64_t>(first_ * args.logsumexp[0] * 4));
    }
    op_.launch(program(), kSoftmax, {args.tasks}, {group()}, Op::at(scores.place, size_of(sum_)),
               Op::at(mask, size_of(op_.in)), Op::at(out, 4), Bytes{&args, sizeof(args)});
  }

  void slope(const GemmMatrix& weights, const GemmMatrix& slopes) {
    if (dry_) return;
    const int64_t rows = count_ * heads_ * queries_;
    op_.launch(program(), kSlope, {rows}, {group()}, Op::at(weights.place, size_of(sum_)),
               Op::at(slopes.place, size_of(sum_)), keys_, rows);
  }

 private:
  GemmMatrix in_place(const fl_tensor& t) const {
    const Place place = Place::of(t.memory).plus(static_cast<uint64_t>(first_ * t.strides[0] * size_of(op_.in)));
    return {place, t.strides[2], t.strides[3], t.strides[1], t.strides[0]};
  }

  void copy(Kernels which, const fl_tensor& t, const Place& wide) {
    if (dry_) return;
    HeadsArgs args{heads_, t.sizes[2], t.sizes[3], {}, count_ * heads_ * t.sizes[2]};
    std::copy_n(t.strides, 4, args.strides);
    const auto narrow_place = Op::at(in_place(t).place, size_of(op_.in)), wide_place = Op::at(wide, size_of(sum_));
    op_.launch(program(), which, {args.tasks}, {group()}, which == kWiden ? narrow_place : wide_place,
               which == kWiden ? wide_place : narrow_place, Bytes{&args, sizeof(args)});
  }

  const Program& program() {
    return op_.program(0, [&](Source& source) {
      source.define("T", op_.in).define("SUM", sum_).file("attention.cl");
      source.kernel("attention_widen").kernel("attention_narrow").kernel("attention_softmax").kernel("attention_slope");
    });
  }
  int64_t group() const { return op_.device.cpu ? 1 : 64; }

  Op& op_;
  const fl_tensor& query_;
  const fl_tensor* mask_;
  const int64_t heads_, queries_, keys_;
  const Type sum_;
  int64_t entries_ = 1, first_ = 0, count_ = 0;
  bool dry_ = true;
  uint64_t bytes_ = 0, gemm_bytes_ = 0;
  Place base_, gemm_place_;
};

GemmMatrix transposed(GemmMatrix m) {
  std::swap(m.row, m.column);
  return m;
}

fl_status attention(Op& op) {
  const fl_tensor &query = op.input(0), &key = op.input(1), &value = op.input(2), &out = op.output(0);
  const int64_t queries = query.sizes[2], keys = key.sizes[2], depth = query.sizes[3], width = value.sizes[3];
  const double scale = op.attr_float(0);
  const bool causal = op.attr_int(1) != 0;
  Pass pass(op, query, key, op.has_input(3) ? &op.input(3) : nullptr);
  pass.run([&] {
    const GemmMatrix q = pass.read(query), k = pass.read(key), v = pass.read(value);
    const GemmMatrix scores = pass.dense(queries, keys), result = pass.target(out);
    pass.multiply(q, transposed(k), scores, queries, keys, depth, scale);
    pass.softmax(scores, causal, op.has_output(1) ? &op.output(1) : nullptr);
    pass.multiply(scores, v, result, queries, width, keys, 1);
    pass.written(out, result);
  });
  return FL_STATUS_OK;
}

// The weights are computed again; logsumexp and out, which the operation is also given, are not needed for that.
fl_status attention_backward(Op& op) {
  const fl_tensor &grad = op.input(0), &query = op.input(1), &key = op.input(2), &value = op.input(3);
  const int64_t queries = query.sizes[2], keys = key.sizes[2], depth = query.sizes[3], width = value.sizes[3];
  const double scale = op.attr_float(0);
  const bool causal = op.attr_int(1) != 0;
  Pass pass(op, query, key, op.has_input(4) ? &op.input(4) : nullptr);
  pass.run([&] {
    const GemmMatrix g = pass.read(grad), q = pass.read(query), k = pass.read(key), v = pass.read(value);
    const GemmMatrix weights = pass.dense(queries, keys), slopes = pass.dense(queries, keys);
    pass.multiply(q, transposed(k), weights, queries, keys, depth, scale);
    pass.softmax(weights, causal, nullptr);
    pass.multiply(g, transposed(v), slopes, queries, keys, width, 1);
    pass.slope(weights, slopes);
    const auto finish = [&](int output, const GemmMatrix& a, const GemmMatrix& b, int64_t rows, int64_t columns,
                            int64_t inner, double alpha) {
      if (!op.has_output(output)) return;
      const GemmMatrix result = pass.target(op.output(output));
      pass.multiply(a, b, result, rows, columns, inner, alpha);
      pass.written(op.output(output), result);
    };
    finish(0, slopes, k, queries, depth, keys, scale);
    finish(1, transposed(slopes), q, keys, depth, queries, scale);
    finish(2, transposed(weights), g, keys, width, queries, 1);
  });
  return FL_STATUS_OK;
}

OCL_KERNEL("attention", kFloatTypes, attention);
OCL_KERNEL("attention_backward", kFloatTypes, attention_backward);

}  // namespace
}  // namespace ocl
