// searchsorted (which also serves bucketize) and bincount.
#include <memory>

#include "index_walk.h"

namespace ng {
namespace {

// ---- searchsorted ----

// First place of row[0, n) whose element is not below (right: not at or below) `value`; a NaN is above everything.
template <class C, bool right, class Read>
int64_t search(int64_t n, C value, const Read& read) {
  const auto before = [&](int64_t at) {
    const C element = read(at);
    return right ? !(element > value) : !(element >= value);
  };
  // Masks in place of a branch that fails every other time; and PyTorch's own probes, so that sequences with NaN
  // inside, which are not sorted by these comparisons, end at the same place.
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t upper = -static_cast<int64_t>(before(middle));  // all ones: go on in the upper half
    low += (middle + 1 - low) & upper;
    high = middle + ((high - middle) & upper);
  }
  return low;
}

struct Sorted {
  int64_t length;          // of one sequence
  int64_t values_per_row;  // values sought in each sequence
  bool shared;             // one sequence for all values
  bool right;
  const int64_t* sorter;
};

template <class T, class Out>
ngResult search_all(const Args& args, const Sorted& what) {
  using C = Compute<T>;
  const T* sequence = args.in[0].as<const T>();
  const T* values = args.in[1].as<const T>();
  Out* out = args.out[0].as<Out>();
  const int64_t n = what.length;
  IndexCheck check;
  parallel_for(args.out[0].numel(), 30.0, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = what.shared ? 0 : i / what.values_per_row * n;
      const T* row = sequence + start;
      auto plain = [&](int64_t k) { return static_cast<C>(row[k]); };
      auto sorted = [&](int64_t k) {
        const int64_t at = what.sorter[start + k];
        return check(at, n, 0) ? static_cast<C>(row[at]) : C{};
      };
      const C value = static_cast<C>(values[i]);
      if (what.sorter) {
        out[i] = static_cast<Out>(what.right ? search<C, true>(n, value, sorted) : search<C, false>(n, value, sorted));
      } else {
        out[i] = static_cast<Out>(what.right ? search<C, true>(n, value, plain) : search<C, false>(n, value, plain));
      }
    }
  });
  return check.result();
}

ngResult run_searchsorted(const Args& args) {
  const Tensor &sequence = args.in[0], &values = args.in[1];
  const Shape rows(sequence);
  Sorted what;
  what.length = rows.sizes[rows.ndim - 1];
  what.shared = rows.ndim == 1;
  what.values_per_row = values.ndim > 0 ? values.sizes[values.ndim - 1] : 1;
  what.right = args.has(0) && args.i(0) != 0;
  what.sorter = args.num_in > 2 ? args.in[2].as<const int64_t>() : nullptr;
  return for_all_types(sequence.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return args.out[0].type == NG_INT32 ? search_all<T, int32_t>(args, what) : search_all<T, int64_t>(args, what);
  });
}

ngResult accepts_searchsorted(const Args& args) {
  const bool dense = is_dense(args.in[0]) && (args.in[1].immediate || is_dense(args.in[1])) && is_dense(args.out[0]);
  const bool sorter = args.num_in < 3 || !args.in[2] || (args.in[2].type == NG_INT64 && is_dense(args.in[2]));
  return dense && sorter && args.in[0].type == args.in[1].type ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

// ---- bincount ----

// In one thread: the sums of weights then have PyTorch's order.
template <class T, class Weight, class Out>
ngResult weigh(const Args& args) {
  const Tensor &self = args.in[0], &weights = args.in[1], &out = args.out[0];
  const int64_t bins = out.numel(), n = self.numel();
  const int64_t self_stride = Shape(self).strides[0], weight_stride = Shape(weights).strides[0];
  Out* to = out.as<Out>();
  std::fill_n(to, bins, Out(0));
  IndexCheck check;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t bin = static_cast<int64_t>(self.as<T>()[i * self_stride]);
    if (check(bin, bins, 0)) to[bin] += static_cast<Out>(weights.as<Weight>()[i * weight_stride]);
  }
  return check.result();
}

template <class T>
void count_part(const T* values, int64_t stride, int64_t begin, int64_t end, int64_t* bins, int64_t size,
                IndexCheck& check) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t bin = static_cast<int64_t>(values[i * stride]);
    if (check(bin, size, 0)) ++bins[bin];
  }
}

// Each core counts a part into bins of its own, added up at the end; small jobs count straight into out.
template <class T>
ngResult count(const Args& args) {
  const Tensor &self = args.in[0], &out = args.out[0];
  const int64_t bins = out.numel(), n = self.numel(), stride = Shape(self).strides[0];
  const T* values = self.as<const T>();
  int64_t* to = out.as<int64_t>();
  std::fill_n(to, bins, int64_t{0});
  IndexCheck check;
  const int64_t parts = bins * 8 > n ? 1 : std::max<int64_t>(1, std::min<int64_t>(cores(), n / 32768));
  std::unique_ptr<int64_t[]> partial;
  if (parts > 1) partial.reset(new int64_t[(parts - 1) * bins]());
  if (!partial) {
    count_part(values, stride, 0, n, to, bins, check);
    return check.result();
  }
  parallel_for(parts, static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      int64_t* const own = p == 0 ? to : partial.get() + (p - 1) * bins;
      count_part(values, stride, n * p / parts, n * (p + 1) / parts, own, bins, check);
    }
  });
  for (int64_t p = 0; p + 1 < parts; ++p) {
    for (int64_t b = 0; b < bins; ++b) to[b] += partial[p * bins + b];
  }
  return check.result();
}

ngResult run_bincount(const Args& args) {
  const bool weighted = args.num_in > 1 && args.in[1];
  return for_all_types(args.in[0].type, [&](auto tag) -> ngResult {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>) {
      return fail(NG_ERROR_NOT_SUPPORTED, "bincount counts integers");
    } else if (!weighted) {
      return count<T>(args);
    } else {
      return args.in[1].type == NG_FLOAT32 ? weigh<T, float, float>(args) : weigh<T, double, double>(args);
    }
  });
}

ngResult accepts_bincount(const Args& args) {
  if (args.in[0].type == NG_BOOL || args.in[0].type > NG_INT64 || !is_dense(args.out[0])) return NG_ERROR_NOT_SUPPORTED;
  if (args.num_in < 2 || !args.in[1]) return args.out[0].type == NG_INT64 ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
  const ngDataType weight = args.in[1].type;
  const bool fits = (weight == NG_FLOAT32 || weight == NG_FLOAT64) && weight == args.out[0].type;
  return fits ? NG_SUCCESS : NG_ERROR_NOT_SUPPORTED;
}

NG_KERNEL("searchsorted", kAllTypes, run_searchsorted, bit(NG_INT64) | bit(NG_INT32), accepts_searchsorted);
// Asked for by the type of the values or of the weights.
NG_KERNEL("bincount", kIntTypes | bit(NG_FLOAT32) | bit(NG_FLOAT64), run_bincount,
          bit(NG_INT64) | bit(NG_FLOAT32) | bit(NG_FLOAT64), accepts_bincount);

}  // namespace
}  // namespace ng
