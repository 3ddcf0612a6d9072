// scatter, scatter_reduce, index_add, index_copy and index_put: out[place with coordinates taken from index operands]
// is set to, or combined with, src[place]. All are one engine: the dimensions along which places never meet ("free")
// are split over the cores; along the others ("serial") one core walks in row-major order, so that repeated indices
// all count and the last one wins. Where too little is free, each core walks everything and owns a part of out.
// The counterpart that reads through indices is index_gather.cpp.
#include <complex>
#include <memory>

#include "index_walk.h"

namespace ng {
namespace {

constexpr int kFirstIndex = 2;  // operands of the walks: out, src, then the index operands

struct Scatter {
  Walk free{kFirstIndex}, serial{kFirstIndex};
  IndexSet set;

  void add_index(const Tensor& t, int64_t extent, int64_t stride, int dim) {
    set.add(t, extent, stride, dim);
    free.operands = serial.operands = kFirstIndex + set.count;
  }
};

// ---- what is done with an element ----

template <class T> constexpr bool is_complex = false;
template <class R> constexpr bool is_complex<std::complex<R>> = true;

// Integer arithmetic wraps.
template <class C> C add(C a, C b) {
  if constexpr (std::is_same_v<C, bool>) return a || b;
  else if constexpr (std::is_integral_v<C>) return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else return a + b;
}
template <class C> C multiply(C a, C b) {
  if constexpr (std::is_same_v<C, bool>) return a && b;
  else if constexpr (std::is_integral_v<C>) return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}

struct Assign {
  template <class C> C operator()(C, C b) const { return b; }
};
struct Sum {
  template <class C> C operator()(C a, C b) const { return add(a, b); }
};
struct Product {
  template <class C> C operator()(C a, C b) const { return multiply(a, b); }
};
// NaN wins, whichever side it is on.
struct Largest {
  template <class C> C operator()(C a, C b) const { return a != a || a > b ? a : b; }
};
struct Smallest {
  template <class C> C operator()(C a, C b) const { return a != a || a < b ? a : b; }
};
template <class C> struct ScaledSum {
  C alpha;
  C operator()(C a, C b) const { return add(a, multiply(alpha, b)); }
};

// ---- the engine ----

// T is out's element, S src's. Only places whose index offset is in [low, high) are written.
template <class T, class S, class Op>
struct Target {
  T* out;
  const S* src;
  Op op;
  IndexCheck* check;
  int64_t low, high;

  bool owns_all() const { return high == INT64_MAX && low == 0; }
  void combine(T& to, const S& from) const {
    if constexpr (std::is_same_v<Op, Assign>) to = from;
    else to = static_cast<T>(op(static_cast<Compute<T>>(to), static_cast<Compute<T>>(from)));
  }
};

// n elements that share their indices.
template <class Target>
void scatter_run(const Target& target, const IndexSet& set, const int64_t* at, int64_t n, const int64_t* strides) {
  const int64_t offset = set.offset(at + kFirstIndex, *target.check);
  if (offset < target.low || offset >= target.high) return;  // low >= 0: also those out of range
  auto* out = target.out + at[0] + offset;
  const auto* src = target.src + at[1];
  if (strides[0] == 1 && strides[1] == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) target.combine(out[i], src[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) target.combine(out[i * strides[0]], src[i * strides[1]]);
  }
}

// n elements that each look up their place. Places of other owners are sorted out without branches, which no
// processor would predict.
template <class Target>
void scatter_each(const Target& target, const IndexSet& set, const int64_t* start, int64_t n, const int64_t* steps) {
  int64_t at[Walk::kMaxOperands], offsets[kIndexBatch], chosen[kIndexBatch];
  for (int o = 0; o < kFirstIndex + set.count; ++o) at[o] = start[o];
  for (int64_t done = 0; done < n; done += kIndexBatch) {
    const int64_t batch = std::min(kIndexBatch, n - done);
    const bool inside = set.offsets(at + kFirstIndex, steps + kFirstIndex, batch, offsets, *target.check);
    auto* const out = target.out + at[0];
    const auto* const src = target.src + at[1];
    if (inside && target.owns_all()) {
      for (int64_t i = 0; i < batch; ++i) target.combine(out[i * steps[0] + offsets[i]], src[i * steps[1]]);
    } else {
      int64_t count = 0;
      for (int64_t i = 0; i < batch; ++i) {
        chosen[count] = i;
        count += offsets[i] >= target.low && offsets[i] < target.high ? 1 : 0;
      }
      for (int64_t c = 0; c < count; ++c) {
        const int64_t i = chosen[c];
        target.combine(out[i * steps[0] + offsets[i]], src[i * steps[1]]);
      }
    }
    for (int o = 0; o < kFirstIndex + set.count; ++o) at[o] += batch * steps[o];
  }
}

// Free positions [begin, end), each with all serial positions.
template <class Target>
void scatter_range(const Scatter& s, const Target& target, int64_t begin, int64_t end) {
  static constexpr int64_t zeros[Walk::kMaxOperands] = {};
  const int operands = s.free.operands;
  const int64_t* free_strides = s.free.ndim ? s.free.strides[s.free.ndim - 1] : zeros;
  const int64_t* serial_strides = s.serial.ndim ? s.serial.strides[s.serial.ndim - 1] : zeros;
  bool shared = s.free.ndim > 0;  // the indices are the same all along a free run
  for (int k = 0; k < s.set.count; ++k) shared &= free_strides[kFirstIndex + k] == 0;
  const bool free_inside = s.free.ndim > 0 && (s.serial.ndim == 0 || free_strides[1] <= serial_strides[1]);
  s.free.run(begin, end, [&](const int64_t* free_at, int64_t n) {
    s.serial.run(0, s.serial.numel, [&](const int64_t* serial_at, int64_t m) {
      int64_t at[Walk::kMaxOperands];
      for (int o = 0; o < operands; ++o) at[o] = free_at[o] + serial_at[o];
      const int64_t outer = shared || free_inside ? m : n;
      const int64_t* outer_strides = shared || free_inside ? serial_strides : free_strides;
      for (int64_t i = 0; i < outer; ++i) {
        if (shared) scatter_run(target, s.set, at, n, free_strides);
        else if (free_inside) scatter_each(target, s.set, at, n, free_strides);
        else scatter_each(target, s.set, at, m, serial_strides);
        for (int o = 0; o < operands; ++o) at[o] += outer_strides[o];
      }
    });
  });
}

template <class T, class S, class Op>
ngResult scatter_all(const Scatter& s, T* out, const S* src, const Op& op) {
  IndexCheck check;
  Target<T, S, Op> target{out, src, op, &check, 0, INT64_MAX};
  const double each = 2.0 * s.set.count;
  constexpr int64_t line = 64;
  if (s.free.numel * static_cast<int64_t>(sizeof(T)) >= cores() * line || s.serial.numel == 1) {
    parallel_for(s.free.numel, each * static_cast<double>(s.serial.numel),
                 [&](int64_t begin, int64_t end) { scatter_range(s, target, begin, end); });
    return check.result();
  }
  // Owners: a part per core of the range of offsets that the indices can add.
  int64_t range = 1;
  for (int k = 0; k < s.set.count; ++k) range += (s.set.extents[k] - 1) * s.set.strides[k];
  const double total = each * static_cast<double>(s.free.numel) * static_cast<double>(s.serial.numel);
  const int64_t parts = total < 40000.0 ? 1 : std::min<int64_t>(cores(), range);
  parallel_for(parts, total, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      auto own = target;
      own.low = range / parts * part;
      own.high = part + 1 == parts ? INT64_MAX : range / parts * (part + 1);
      scatter_range(s, own, 0, s.free.numel);
    }
  });
  return check.result();
}

// ---- the operators ----

struct Strides {
  int64_t of[kMaxDims];
  Strides(int ndim, const Tensor& t) {
    const Shape shape(t);
    for (int d = 0; d < ndim; ++d) of[d] = t.immediate ? 0 : shape.strides[d];
  }
};

// One index operand for dimension `dim`. full_index: it has all dims of src; else it is one-dimensional.
void plan_along(Scatter& s, const Args& args, const int64_t* out_strides, bool full_index) {
  const Tensor &index = args.in[0], &src = args.in[1];
  const Shape to(args.out[0]), index_shape(index);
  const int ndim = to.ndim, dim = to.dim(args.i(0));
  s.add_index(index, to.sizes[dim], out_strides[dim], dim);
  const Strides src_strides(ndim, src);
  int order[kMaxDims];
  order_by_stride(ndim, out_strides, order);
  for (int k = 0; k < ndim; ++k) {
    const int d = order[k];
    if (d == dim) continue;
    // The source of index_add and index_copy has out's sizes in the other dims.
    const int64_t strides[3] = {out_strides[d], src_strides.of[d], full_index ? index_shape.strides[d] : 0};
    s.free.add(full_index ? index_shape.sizes[d] : to.sizes[d], strides);
  }
  const int at = full_index ? dim : 0;
  const int64_t strides[3] = {0, src_strides.of[dim], index_shape.strides[at]};
  s.serial.add(index_shape.sizes[at], strides);
}

ngResult scatter_assign(const Args& args, bool full_index) {
  Scatter s;
  plan_along(s, args, Shape(args.out[0]).strides, full_index);
  return for_size(size_of(args.out[0].type), [&](auto tag) {
    using E = decltype(tag);
    return scatter_all(s, args.out[0].as<E>(), args.in[1].as<const E>(), Assign{});
  });
}

ngResult run_scatter(const Args& args) { return scatter_assign(args, true); }
ngResult run_index_copy(const Args& args) { return scatter_assign(args, false); }

template <class T, class S, class Op>
ngResult reduce_with(const Args& args, T* out, const int64_t* out_strides, const Op& op) {
  Scatter s;
  plan_along(s, args, out_strides, true);
  return scatter_all(s, out, args.in[1].as<const S>(), op);
}

template <class T, class S>
ngResult reduce_by_mode(const Args& args, T* out, const int64_t* out_strides) {
  switch (args.i(1)) {
    case 0: return reduce_with<T, S>(args, out, out_strides, Sum{});
    case 1: return reduce_with<T, S>(args, out, out_strides, Product{});
    default: break;
  }
  if constexpr (is_complex<T>) {
    return fail(NG_ERROR_NOT_SUPPORTED, "scatter_reduce: complex numbers have no order");
  } else {
    return args.i(1) == 2 ? reduce_with<T, S>(args, out, out_strides, Largest{})
                          : reduce_with<T, S>(args, out, out_strides, Smallest{});
  }
}

// Half types: repeated indices accumulate in a float copy of out, rounded once at the end.
template <class T>
ngResult reduce_in_float(const Args& args) {
  const Tensor& out = args.out[0];
  const Shape shape(out);
  const std::unique_ptr<float[]> buffer(new float[out.numel()]);
  int64_t strides[kMaxDims];
  int64_t step = 1;
  for (int d = shape.ndim - 1; d >= 0; --d) strides[d] = step, step *= shape.sizes[d];
  Walk walk(2);
  for (int d = 0; d < shape.ndim; ++d) {
    const int64_t both[2] = {shape.strides[d], strides[d]};
    walk.add(shape.sizes[d], both);
  }
  T* const data = out.as<T>();
  const int64_t stride = walk.inner_stride(0);
  parallel_for(walk.numel, 0.5, [&](int64_t begin, int64_t end) {
    walk.run(begin, end, [&](const int64_t* at, int64_t n) {
      to_float(data + at[0], stride, buffer.get() + at[1], n);
    });
  });
  const ngResult result = reduce_by_mode<float, T>(args, buffer.get(), strides);
  parallel_for(walk.numel, 0.5, [&](int64_t begin, int64_t end) {
    walk.run(begin, end, [&](const int64_t* at, int64_t n) {
      from_float(buffer.get() + at[1], data + at[0], stride, n);
    });
  });
  return result;
}

// As for_all_types, complex types too.
template <class Body>
ngResult for_numbers(ngDataType type, const Body& body) {
  if (type == NG_COMPLEX64) return body(Tag<std::complex<float>>{});
  if (type == NG_COMPLEX128) return body(Tag<std::complex<double>>{});
  return for_all_types(type, body);
}

ngResult run_scatter_reduce(const Args& args) {
  const Tensor& out = args.out[0];
  const Shape shape(out), index(args.in[0]);
  const bool repeats = index.sizes[shape.dim(args.i(0))] > 1;
  return for_numbers(out.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_half<T>) {
      if (repeats) return reduce_in_float<T>(args);
    }
    return reduce_by_mode<T, T>(args, out.as<T>(), shape.strides);
  });
}

template <class C>
C alpha_of(const Args& args, int k) {
  if (!args.has(k)) return C(1);
  if constexpr (is_complex<C>) {
    using R = typename C::value_type;
    if (args.attrs[k].kind == 4) return C(static_cast<R>(args.attrs[k].v.c[0]), static_cast<R>(args.attrs[k].v.c[1]));
    return C(static_cast<R>(args.f(k)));
  } else if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(args.i(k));
  } else {
    return static_cast<C>(args.f(k));
  }
}

ngResult run_index_add(const Args& args) {
  const Tensor& out = args.out[0];
  Scatter s;
  plan_along(s, args, Shape(out).strides, false);
  return for_numbers(out.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto alpha = alpha_of<Compute<T>>(args, 1);
    T* to = out.as<T>();
    const T* from = args.in[1].as<const T>();
    return alpha == Compute<T>(1) ? scatter_all(s, to, from, Sum{})
                                  : scatter_all(s, to, from, ScaledSum<Compute<T>>{alpha});
  });
}

ngResult run_index_put(const Args& args) {
  const Tensor &values = args.in[0], &self = args.out[0];
  const Shape to(self);
  const int num_indices = args.num_in - 1, ndim = to.ndim;
  Scatter s;
  s.set.from_end = true;
  for (int k = 0; k < num_indices; ++k) s.add_index(args.in[1 + k], args.i(k), args.i(num_indices + k), k);
  const Strides value_strides(ndim, values);
  for (int d = 0; d < ndim; ++d) {
    int64_t strides[Walk::kMaxOperands] = {to.strides[d], value_strides.of[d]};
    bool free = to.strides[d] != 0;
    for (int k = 0; k < num_indices; ++k) {
      const int64_t stride = Shape(args.in[1 + k]).strides[d];
      free &= stride == 0;
      strides[kFirstIndex + k] = stride;
    }
    (free ? s.free : s.serial).add(values.immediate ? to.sizes[d] : Shape(values).sizes[d], strides);
  }
  if (args.i(2 * num_indices) == 0) {
    return for_size(size_of(self.type), [&](auto tag) {
      using E = decltype(tag);
      return scatter_all(s, self.as<E>(), values.as<const E>(), Assign{});
    });
  }
  return for_numbers(self.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return scatter_all(s, self.as<T>(), values.as<const T>(), Sum{});
  });
}

ngResult accepts_along(const Args& args) {
  const bool fits = is_index_type(args.in[0]) && args.in[1].type == args.out[0].type;
  return fits ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

ngResult accepts_reduce(const Args& args) {
  const bool ordered = args.out[0].type < NG_COMPLEX64 || args.i(1) < 2;
  return ordered ? accepts_along(args) : NG_ERROR_NOT_SUPPORTED;
}

ngResult accepts_put(const Args& args) {
  if (args.num_in - 1 > IndexSet::kMax || args.in[0].type != args.out[0].type) return NG_ERROR_NOT_SUPPORTED;
  for (int k = 1; k < args.num_in; ++k) {
    if (!is_index_type(args.in[k]) || args.in[k].ndim != args.out[0].ndim) return NG_ERROR_NOT_SUPPORTED;
  }
  return NG_SUCCESS;
}

constexpr uint32_t kMovable = kAllTypes | kComplexTypes;
NG_KERNEL("scatter", kMovable, run_scatter, 0, accepts_along);
NG_KERNEL("index_copy", kMovable, run_index_copy, 0, accepts_along);
NG_KERNEL("scatter_reduce", kMovable, run_scatter_reduce, 0, accepts_reduce);
NG_KERNEL("index_add", kMovable, run_index_add, 0, accepts_along);
NG_KERNEL("index_put", kMovable, run_index_put, 0, accepts_put);

}  // namespace
}  // namespace ng
