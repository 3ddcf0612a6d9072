// Overlap of strided operands. Column-wise and interleaved splits of one tensor are told apart by arithmetic; what
// that cannot decide is compared byte run by byte run.
#include "race_extent.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace fl {
namespace {

// Of the dims with strides below `limit`: the bytes that one such piece spans. Others: their greatest common distance.
void split_at(const Extent& extent, int64_t limit, int64_t& inner, int64_t& distance) {
  inner = extent.run;
  for (int d = 0; d < extent.ndim; ++d) {
    if (extent.dims[d].stride < limit) {
      inner += (extent.dims[d].size - 1) * extent.dims[d].stride;
    } else {
      distance = std::gcd(distance, extent.dims[d].stride);
    }
  }
}

// True if pieces at multiples of a common distance never meet, for some choice of what a piece is.
bool apart_by_distance(const Extent& a, const Extent& b) {
  for (const Extent* chosen : {&a, &b}) {
    for (int d = 0; d < chosen->ndim; ++d) {
      int64_t inner_a = 0, inner_b = 0, distance = 0;
      split_at(a, chosen->dims[d].stride, inner_a, distance);
      split_at(b, chosen->dims[d].stride, inner_b, distance);
      if (inner_a > distance || inner_b > distance) continue;
      const auto step = static_cast<uintptr_t>(distance);
      // How far b's pieces begin behind a's, modulo the distance.
      const auto behind = static_cast<int64_t>((b.begin % step + step - a.begin % step) % step);
      if (behind >= inner_a && behind + inner_b <= distance) return true;
    }
  }
  return false;
}

template <class Visit>
bool each_run(const Extent& extent, uintptr_t base, int dim, const Visit& visit) {
  if (dim == extent.ndim) return visit(base, base + static_cast<uintptr_t>(extent.run));
  for (int64_t i = 0; i < extent.dims[dim].size; ++i) {
    if (each_run(extent, base + static_cast<uintptr_t>(i * extent.dims[dim].stride), dim + 1, visit)) return true;
  }
  return false;
}

bool meet_run_by_run(const Extent& a, const Extent& b) {
  constexpr uintptr_t kMost = 64u << 20;
  const uintptr_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  if (end - begin > kMost) return true;
  std::vector<bool> touched(end - begin);
  each_run(a, a.begin, 0, [&](uintptr_t from, uintptr_t to) {
    for (uintptr_t at = std::max(from, begin); at < std::min(to, end); ++at)
      touched[at - begin] = true;
    return false;
  });
  return each_run(b, b.begin, 0, [&](uintptr_t from, uintptr_t to) {
    for (uintptr_t at = std::max(from, begin); at < std::min(to, end); ++at) {
      if (touched[at - begin]) return true;
    }
    return false;
  });
}

}  // namespace

Extent Extent::range(const void* address, uint64_t bytes) {
  Extent extent;
  extent.begin = reinterpret_cast<uintptr_t>(address);
  extent.end = extent.begin + bytes;
  extent.run = static_cast<int64_t>(bytes);
  return extent;
}

Extent Extent::tensor(const void* address, int64_t itemsize, int ndim, const int64_t* sizes, const int64_t* strides) {
  Extent extent = range(address, static_cast<uint64_t>(itemsize));
  for (int d = 0; d < ndim; ++d) {
    if (sizes[d] == 0) return range(address, 0);
  }
  // From the fastest, so that most dims join at once.
  for (int d = ndim - 1; d >= 0; --d)
    extent.add_dim(sizes[d], strides[d] * itemsize);
  return extent;
}

void Extent::add_dim(int64_t size, int64_t stride) {
  if (empty() || size <= 1 || stride == 0) return;
  end += static_cast<uintptr_t>((size - 1) * stride);
  if (ndim == kMaxDims) {  // too fine a pattern: all of the range
    ndim = 0;
    run = static_cast<int64_t>(end - begin);
    return;
  }
  int at = 0;
  while (at < ndim && dims[at].stride > stride)
    ++at;
  std::copy_backward(dims + at, dims + ndim, dims + ndim + 1);
  dims[at] = {size, stride};
  ++ndim;
  // Joins what lies without a gap: into the run first, then dims into each other.
  while (ndim > 0 && dims[ndim - 1].stride <= run) {
    run += (dims[ndim - 1].size - 1) * dims[ndim - 1].stride;
    --ndim;
  }
  for (int d = ndim - 1; d > 0; --d) {
    if (dims[d - 1].stride != dims[d].stride * dims[d].size) continue;
    dims[d - 1] = {dims[d - 1].size * dims[d].size, dims[d].stride};
    std::copy(dims + d + 1, dims + ndim, dims + d);
    --ndim;
  }
}

bool same(const Extent& a, const Extent& b) {
  if (a.begin != b.begin || a.end != b.end || a.ndim != b.ndim || a.run != b.run) return false;
  for (int d = 0; d < a.ndim; ++d) {
    if (a.dims[d].size != b.dims[d].size || a.dims[d].stride != b.dims[d].stride) return false;
  }
  return true;
}

bool covers(const Extent& outer, const Extent& part) {
  return outer.begin <= part.begin && part.end <= outer.end && (outer.dense() || same(outer, part));
}

bool meet(const Extent& a, const Extent& b) {
  if (a.begin >= b.end || b.begin >= a.end) return false;
  if (a.dense() && b.dense()) return true;
  return !apart_by_distance(a, b) && meet_run_by_run(a, b);
}

}  // namespace fl
