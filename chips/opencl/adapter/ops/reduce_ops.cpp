// The UniOps of the category reduction, each a fold of kernels/reduce_*.cl.
#include "reduce.h"

namespace ocl {
namespace {

enum Key : uint64_t { kSum = 1, kProd, kMax, kMin, kAny, kAll, kNorm0, kNorm1, kNorm2, kNormMax, kNormMin, kNormPower,
                      kArg, kVariance, kLogSumExp, kProducts };

bool is_float(Type type) { return (bit(type) & kFloatTypes) != 0; }

const char* lowest(Type type) {
  switch (type) {
    case Type::UInt8: return "0";
    case Type::Int8: return "CHAR_MIN";
    case Type::Int16: return "SHRT_MIN";
    case Type::Int32: return "INT_MIN";
    case Type::Int64: return "LONG_MIN";
    default: return "-INFINITY";
  }
}
const char* highest(Type type) {
  switch (type) {
    case Type::UInt8: return "UCHAR_MAX";
    case Type::Int8: return "CHAR_MAX";
    case Type::Int16: return "SHRT_MAX";
    case Type::Int32: return "INT_MAX";
    case Type::Int64: return "LONG_MAX";
    default: return "INFINITY";
  }
}

void fold(Source& source, const char* map, const char* join, const char* identity, const char* finish = "(x)") {
  source.define("MAP(W, x)", std::string(map)).define("FOLD(a, x)", std::string(join));
  source.define("IDENTITY", std::string(identity)).define("FINISH(W, x)", std::string(finish));
}
constexpr const char* kPlus = "((a) + (x))";
constexpr const char* kLarger = "((x) > (a) ? (x) : (a))";
constexpr const char* kSmaller = "((x) < (a) ? (x) : (a))";
constexpr const char* kMaximum = "(((x) > (a)) | ((x) != (x)) ? (x) : (a))";  // NaN wins
constexpr const char* kMinimum = "(((x) < (a)) | ((x) != (x)) ? (x) : (a))";
constexpr const char* kTruth = "((x) != (W)0 ? (W)1 : (W)0)";

template <Key key>
void define_fold(Source& source, Type acc) {
  const bool adds = key == kSum || key == kNorm0 || key == kNorm1 || key == kNorm2 || key == kNormPower;
  if (adds && is_float(acc)) source.define("COMPENSATED", int64_t{1});
  switch (key) {
    case kSum: return fold(source, "(x)", kPlus, "0");
    case kProd: return fold(source, "(x)", "((a) * (x))", "1");
    case kMax: return fold(source, "(x)", kMaximum, lowest(acc));
    case kMin: return fold(source, "(x)", kMinimum, highest(acc));
    case kAny: return fold(source, kTruth, kLarger, "0");
    case kAll: return fold(source, kTruth, kSmaller, "1");
    case kNorm0: return fold(source, kTruth, kPlus, "0");
    case kNorm1: return fold(source, "fabs(x)", kPlus, "0");
    case kNorm2: return fold(source, "((x) * (x))", kPlus, "0", "sqrt(x)");
    case kNormMax: return fold(source, "fabs(x)", kMaximum, "0");
    case kNormMin: return fold(source, "fabs(x)", kMinimum, "INFINITY");
    default: return fold(source, "pow(fabs(x), (W)p0)", kPlus, "0", "pow(x, (W)1 / (W)p0)");
  }
}

// Reduces input 0 to output 0 (and 1) along the dims that have size 1 in the output.
fl_status reduce(Op& op, const Reduction& what) {
  const fl_tensor &in = op.input(0), &out = op.output(0), &out2 = op.output(op.has_output(1) ? 1 : 0);
  Axes kept(3), reduced(3);
  for (int d = 0; d < in.ndim; ++d) {
    if (out.sizes[d] == 1) {
      reduced.add(in.sizes[d], {in.strides[d]});
    } else {
      kept.add(in.sizes[d], {in.strides[d], out.strides[d], out2.strides[d]});
    }
  }
  Reducer reducer(op, what, 1, kept, reduced);
  const int64_t bytes = reducer.scratch_bytes();
  const Place scratch = bytes == 0 ? Place::of(out.memory) : op.stream.scratch(static_cast<uint64_t>(bytes));
  const Operand operand(in);
  reducer.run(&operand, out, out2, Place::of(in.memory), scratch);
  return FL_STATUS_OK;
}

template <Key key>
Reduction simple(Type acc) {
  return {"reduce_fold.cl", key, define_fold<key>, acc, acc, acc};
}

// Floats add up in float32, or float64 if there is one among the types; integers in int64.
Type sum_type(const Op& op) {
  if (!is_float(op.in)) return Type::Int64;
  return op.in == Type::Float64 || op.out == Type::Float64 ? Type::Float64 : Type::Float32;
}

// In bool a sum is an or, a product an and.
fl_status sum(Op& op) {
  return reduce(op, op.out == Type::Bool ? simple<kAny>(computing_type(op.in)) : simple<kSum>(sum_type(op)));
}
fl_status prod(Op& op) {
  return reduce(op, op.out == Type::Bool ? simple<kAll>(computing_type(op.in)) : simple<kProd>(sum_type(op)));
}
fl_status amax(Op& op) { return reduce(op, simple<kMax>(computing_type(op.in))); }
fl_status amin(Op& op) { return reduce(op, simple<kMin>(computing_type(op.in))); }
fl_status any(Op& op) { return reduce(op, simple<kAny>(computing_type(op.in))); }
fl_status all(Op& op) { return reduce(op, simple<kAll>(computing_type(op.in))); }

constexpr uint32_t kTruthTypes = bit(Type::Bool) | bit(Type::UInt8);
OCL_KERNEL("sum", kFloatTypes, sum, kFloatTypes);
OCL_KERNEL("sum", kIntTypes | bit(Type::Bool), sum, kAllTypes);
OCL_KERNEL("prod", kFloatTypes, prod, kFloatTypes);
OCL_KERNEL("prod", kIntTypes | bit(Type::Bool), prod, kAllTypes);
OCL_KERNEL("amax", kAllTypes, amax);
OCL_KERNEL("amin", kAllTypes, amin);
OCL_KERNEL("any", kAllTypes, any, kTruthTypes);
OCL_KERNEL("all", kAllTypes, all, kTruthTypes);

fl_status vector_norm(Op& op) {
  const double order = op.attr_given(0) ? op.attr_float(0) : 2;
  const Type acc = sum_type(op);
  constexpr double infinity = __builtin_inf();
  if (order == 2) return reduce(op, simple<kNorm2>(acc));
  if (order == 1) return reduce(op, simple<kNorm1>(acc));
  if (order == 0) return reduce(op, simple<kNorm0>(acc));
  if (order == infinity) return reduce(op, simple<kNormMax>(acc));
  if (order == -infinity) return reduce(op, simple<kNormMin>(acc));
  Reduction powers = simple<kNormPower>(acc);
  powers.p0 = order;
  return reduce(op, powers);
}
OCL_KERNEL("vector_norm", kFloatTypes, vector_norm, kFloatTypes);

// ---- places

// Small integers are compared as int32, so that an index of int32 is as wide as a value.
Type compared_type(Type type) {
  if (type == Type::Int64 || type == Type::Float64) return type;
  return is_float(type) ? Type::Float32 : Type::Int32;
}
template <bool largest, bool index_only>
void define_arg(Source& source, Type) {
  source.define("BEATS(x, y)", std::string(largest ? "((x) > (y))" : "((x) < (y))"));
  // Of vectors the index is as wide as the value, of scalars int64.
  source.text("#if MODE == 2 && (A_BYTES == 4)\n#define INDEX i32\n#else\n#define INDEX i64\n#endif");
  if (index_only) source.define("INDEX_ONLY", int64_t{1});
}
template <bool largest, bool index_only>
fl_status arg(Op& op) {
  const Type acc = compared_type(op.in);
  Reduction what{"reduce_arg.cl", kArg, define_arg<largest, index_only>, acc, acc, Type::Int64};
  what.ordered = true;
  return reduce(op, what);
}
OCL_KERNEL("argmax", kAllTypes, (arg<true, true>), bit(Type::Int64));
OCL_KERNEL("argmin", kAllTypes, (arg<false, true>), bit(Type::Int64));
OCL_KERNEL("max_dim", kAllTypes, (arg<true, false>));
OCL_KERNEL("min_dim", kAllTypes, (arg<false, false>));

// ---- moments and logsumexp

void define_wide(Source& source, Type) {
  source.text("#ifdef HAS_FP64\n#define B f64\n#else\n#define B A\n#endif");
}
void define_wide_with_mean(Source& source, Type acc) {
  define_wide(source, acc);
  source.define("WITH_MEAN", int64_t{1});
}

fl_status var(Op& op) {
  Reduction what = variance_reduction(sum_type(op), op.device.fp64);
  what.p0 = op.attr_float(0);
  what.p1 = static_cast<double>(op.attr_int(1));
  if (!op.has_output(1)) what.define = define_wide;
  return reduce(op, what);
}
OCL_KERNEL("var", kFloatTypes, var, kFloatTypes);
OCL_KERNEL("var_mean", kFloatTypes, var, kFloatTypes);

fl_status logsumexp(Op& op) {
  const Type acc = sum_type(op);
  return reduce(op, {"reduce_logsumexp.cl", kLogSumExp, nullptr, acc, acc, acc});
}
OCL_KERNEL("logsumexp", kFloatTypes, logsumexp, kFloatTypes);

}  // namespace

Reduction sum_reduction(Type acc) { return simple<kSum>(acc); }

Reduction variance_reduction(Type acc, bool fp64) {
  const Type wide = fp64 ? Type::Float64 : acc;
  return {"reduce_var.cl", kVariance, define_wide_with_mean, acc, wide, wide};
}

Reduction products_reduction(Type acc) {
  const auto define = [](Source& source, Type) { source.define("CENTRE", int64_t{1}); };
  return {"reduce_products.cl", kProducts, define, acc, acc, acc};
}

}  // namespace ocl
