// sort and topk along one dimension. Values become unsigned keys that order as PyTorch does (NaN largest, -0 = 0,
// inverted when descending) and travel with their position, which makes every order total: stable for free. Long rows
// are radix sorted, by all cores if there are few rows.
#include <cstring>
#include <memory>
#include <type_traits>

#include "index_walk.h"
#include "scratch.h"

namespace ng {
namespace {

// ---- keys ----

template <int bytes> struct KeyOfSize;
template <> struct KeyOfSize<1> { using type = uint8_t; };
template <> struct KeyOfSize<2> { using type = uint16_t; };
template <> struct KeyOfSize<4> { using type = uint32_t; };
template <> struct KeyOfSize<8> { using type = uint64_t; };
template <class T> using Key = typename KeyOfSize<sizeof(T)>::type;

// Bits of infinity: a float whose magnitude is beyond is NaN. 0 for types that are no floats.
template <class T> constexpr uint64_t infinity_bits = 0;
template <> constexpr uint64_t infinity_bits<Half> = 0x7c00;
template <> constexpr uint64_t infinity_bits<BFloat16> = 0x7f80;
template <> constexpr uint64_t infinity_bits<float> = 0x7f800000;
template <> constexpr uint64_t infinity_bits<double> = 0x7ff0000000000000;

template <class T>
Key<T> key_of(const T& value) {
  using K = Key<T>;
  constexpr K sign = static_cast<K>(K(1) << (8 * sizeof(K) - 1));
  K bits;
  std::memcpy(&bits, &value, sizeof bits);
  if constexpr (infinity_bits<T> != 0) {
    // Choices, not branches: they vectorise.
    const K magnitude = static_cast<K>(bits & static_cast<K>(~sign));
    const K number = static_cast<K>(bits & sign ? ~bits : bits | sign);
    const K zero_or_number = magnitude == 0 ? sign : number;
    return magnitude > static_cast<K>(infinity_bits<T>) ? static_cast<K>(~K(0)) : zero_or_number;
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<K>(bits ^ sign);
  } else {
    return bits;
  }
}

// Up to 32 bits of key share a word with the position; wider keys stand beside it.
struct WideItem {
  uint64_t key;
  uint64_t position;
  bool operator<(const WideItem& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

template <class K> struct ItemOf {
  using type = uint64_t;
  static uint64_t make(K key, int64_t position) {
    return static_cast<uint64_t>(key) << 32 | static_cast<uint64_t>(position);
  }
};
template <> struct ItemOf<uint64_t> {
  using type = WideItem;
  static WideItem make(uint64_t key, int64_t position) { return {key, static_cast<uint64_t>(position)}; }
};
template <class T> using Item = typename ItemOf<Key<T>>::type;

inline int64_t position_of(uint64_t item) { return static_cast<int64_t>(item & 0xffffffffu); }
inline int64_t position_of(const WideItem& item) { return static_cast<int64_t>(item.position); }
inline uint64_t key_part(uint64_t item) { return item >> 32; }
inline uint64_t key_part(const WideItem& item) { return item.key; }
inline unsigned digit_of(uint64_t item, int digit) { return static_cast<uint8_t>(item >> (32 + 8 * digit)); }
inline unsigned digit_of(const WideItem& item, int digit) { return static_cast<uint8_t>(item.key >> (8 * digit)); }

template <class T>
void make_items(Item<T>* items, const T* row, int64_t stride, int64_t begin, int64_t end, bool descending) {
  const Key<T> flip = descending ? static_cast<Key<T>>(~Key<T>(0)) : Key<T>(0);
  const auto item = [flip](const T& value, int64_t i) {
    return ItemOf<Key<T>>::make(static_cast<Key<T>>(key_of(value) ^ flip), i);
  };
  if (stride == 1) {
    for (int64_t i = begin; i < end; ++i) items[i - begin] = item(row[i], i);
  } else {
    for (int64_t i = begin; i < end; ++i) items[i - begin] = item(row[i * stride], i);
  }
}

// ---- sorting one row of items ----

constexpr int64_t kSmallRow = 64;     // items on the stack
constexpr int64_t kInsertionRow = 24;
constexpr int64_t kRadixRow = 10;     // times the key's bytes: from here on radix beats comparisons
constexpr int64_t kSplitRow = 65536;  // from here on a row is worth several cores
constexpr int kMaxTeam = 64;

template <class I>
void insertion_sort(I* items, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const I item = items[i];
    int64_t at = i;
    for (; at > 0 && item < items[at - 1]; --at) items[at] = items[at - 1];
    items[at] = item;
  }
}

struct Histogram {
  int64_t of[256];
};

// One digit's pass from a to b by several cores, a slice of a each; false if all items have the same digit: nothing
// had to move.
template <class I>
bool radix_pass(const I* a, I* b, int64_t n, int digit, int team, Histogram* counts) {
  const double cost = 2.0 * static_cast<double>(n) / team;
  parallel_for(team, cost, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      Histogram& own = counts[t];
      own = Histogram{};
      for (int64_t i = n * t / team, end = n * (t + 1) / team; i < end; ++i) ++own.of[digit_of(a[i], digit)];
    }
  });
  int64_t start = 0;
  for (int value = 0; value < 256; ++value) {
    const int64_t before = start;
    for (int t = 0; t < team; ++t) {
      const int64_t count = counts[t].of[value];
      counts[t].of[value] = start;
      start += count;
    }
    if (start - before == n) return false;
  }
  parallel_for(team, cost, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      Histogram& own = counts[t];
      for (int64_t i = n * t / team, end = n * (t + 1) / team; i < end; ++i) b[own.of[digit_of(a[i], digit)]++] = a[i];
    }
  });
  return true;
}

// All digits counted in one reading, then a pass for each digit that differs.
template <class I>
I* radix_sort(I* items, I* spare, int64_t n, int key_bytes) {
  uint32_t counts[8][256];
  std::memset(counts, 0, sizeof(counts[0]) * static_cast<size_t>(key_bytes));
  for (int64_t i = 0; i < n; ++i) {
    for (int digit = 0; digit < key_bytes; ++digit) ++counts[digit][digit_of(items[i], digit)];
  }
  for (int digit = 0; digit < key_bytes; ++digit) {
    uint32_t* const places = counts[digit];
    if (places[digit_of(items[0], digit)] == n) continue;
    uint32_t start = 0;
    for (int value = 0; value < 256; ++value) {
      const uint32_t count = places[value];
      places[value] = start;
      start += count;
    }
    for (int64_t i = 0; i < n; ++i) spare[places[digit_of(items[i], digit)]++] = items[i];
    std::swap(items, spare);
  }
  return items;
}

// Items arrive in the order of their positions. Returns where the sorted items are: in items or in spare.
template <class I>
I* sort_items(I* items, I* spare, int64_t n, int key_bytes, int team) {
  if (n <= kInsertionRow) {
    insertion_sort(items, n);
    return items;
  }
  if (n < kRadixRow * key_bytes) {
    std::sort(items, items + n);
    return items;
  }
  if (team == 1) return radix_sort(items, spare, n, key_bytes);
  Histogram counts[kMaxTeam];
  for (int digit = 0; digit < key_bytes; ++digit) {
    if (radix_pass(items, spare, n, digit, team, counts)) std::swap(items, spare);
  }
  return items;
}

// ---- the rows of a call ----

struct Rows {
  Walk walk{3};  // self, values, indices over all dims but the sorted one
  int64_t size = 1, self_stride = 0, value_stride = 0, index_stride = 0;

  Rows(const Args& args, int64_t attr_dim) {
    const Shape self(args.in[0]), values(args.out[0]), indices(args.out[1]);
    const int dim = self.dim(attr_dim);
    for (int d = 0; d < self.ndim; ++d) {
      if (d == dim) continue;
      const int64_t strides[3] = {self.strides[d], values.strides[d], indices.strides[d]};
      walk.add(self.sizes[d], strides);
    }
    size = self.sizes[dim];
    self_stride = self.strides[dim];
    value_stride = values.strides[dim];
    index_stride = indices.strides[dim];
  }

  // body(self offset, values offset, indices offset) for rows [begin, end).
  template <class Body>
  void each(int64_t begin, int64_t end, const Body& body) const {
    walk.run(begin, end, [&](const int64_t* at, int64_t n) {
      for (int64_t r = 0; r < n; ++r) {
        body(at[0] + r * walk.inner_stride(0), at[1] + r * walk.inner_stride(1), at[2] + r * walk.inner_stride(2));
      }
    });
  }
};

// Room for a row's items: on the stack if small, kept between calls if not huge.
template <class I>
struct ItemBuffer {
  static constexpr int64_t kKeptBytes = int64_t{64} << 20;
  alignas(64) I small[kSmallRow];
  std::unique_ptr<I[]> huge;
  I* data;

  ItemBuffer(ScratchSlot slot, int64_t n) : data(small) {
    if (n > kKeptBytes / static_cast<int64_t>(sizeof(I))) {
      huge.reset(new I[n]);
      data = huge.get();
    } else if (n > kSmallRow) {
      data = scratch<I>(slot, n);
    }
  }
};

template <class T>
void write_row(const Item<T>* items, int64_t begin, int64_t end, const T* row, int64_t row_stride, T* values,
               int64_t value_stride, int64_t* indices, int64_t index_stride) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position = position_of(items[i]);
    values[i * value_stride] = row[position * row_stride];
    indices[i * index_stride] = position;
  }
}

// The team works on one row after the other.
template <class T>
void sort_long_rows(const Args& args, const Rows& rows, bool descending) {
  using I = Item<T>;
  const int64_t n = rows.size;
  const int team = static_cast<int>(std::min<int64_t>({cores(), kMaxTeam, std::max<int64_t>(1, n / (kSplitRow / 4))}));
  ItemBuffer<I> first(kScratchRow, n), second(kScratchRow2, n);
  rows.each(0, rows.walk.numel, [&](int64_t self_at, int64_t value_at, int64_t index_at) {
    const T* row = args.in[0].as<const T>() + self_at;
    parallel_for(n, 2.0, [&](int64_t begin, int64_t end) {
      make_items<T>(first.data + begin, row, rows.self_stride, begin, end, descending);
    });
    const I* sorted = sort_items(first.data, second.data, n, sizeof(T), team);
    parallel_for(n, 5.0, [&](int64_t begin, int64_t end) {
      write_row<T>(sorted, begin, end, row, rows.self_stride, args.out[0].as<T>() + value_at, rows.value_stride,
                   args.out[1].as<int64_t>() + index_at, rows.index_stride);
    });
  });
}

template <class T>
void sort_rows(const Args& args, const Rows& rows, bool descending) {
  using I = Item<T>;
  const int64_t n = rows.size;
  if (n >= kSplitRow && rows.walk.numel < cores()) return sort_long_rows<T>(args, rows, descending);
  parallel_for(rows.walk.numel, 30.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    ItemBuffer<I> first(kScratchRow, n), second(kScratchRow2, n);
    rows.each(begin, end, [&](int64_t self_at, int64_t value_at, int64_t index_at) {
      const T* row = args.in[0].as<const T>() + self_at;
      make_items<T>(first.data, row, rows.self_stride, 0, n, descending);
      const I* sorted = sort_items(first.data, second.data, n, sizeof(T), 1);
      write_row<T>(sorted, 0, n, row, rows.self_stride, args.out[0].as<T>() + value_at, rows.value_stride,
                   args.out[1].as<int64_t>() + index_at, rows.index_stride);
    });
  });
}

// bool sorts as the bytes it is.
template <class Tag>
using Sortable = std::conditional_t<std::is_same_v<typename Tag::type, bool>, uint8_t, typename Tag::type>;

ngResult sort_into(const Args& args) {
  const Rows rows(args, args.i(0));
  if (rows.size > UINT32_MAX) return fail(NG_ERROR_NOT_SUPPORTED, "sort: more than 2^32 elements in a row");
  return for_all_types(args.in[0].type, [&](auto tag) {
    sort_rows<Sortable<decltype(tag)>>(args, rows, args.i(1) != 0);
    return NG_SUCCESS;
  });
}

ngResult run_sort(const Args& args) {
  const Tensor& self = args.in[0];
  if (self.data != args.out[0].data) return sort_into(args);
  // In place: values are read again by position after the first ones are written, so from a copy.
  const Shape shape(self);
  const int64_t bytes = size_of(self.type), numel = self.numel();
  int64_t strides[kMaxDims];
  int64_t step = 1;
  for (int d = shape.ndim - 1; d >= 0; --d) strides[d] = step, step *= shape.sizes[d];
  Tensor copy = self;
  copy.data = scratch<Bytes16>(kScratchOperand, (numel * bytes + 15) / 16);
  copy.strides = strides;
  copy_strided(bytes, shape.ndim, shape.sizes, copy.data, strides, self.data, shape.strides);
  Args in_copy = args;
  in_copy.in = &copy;
  return sort_into(in_copy);
}

// ---- topk ----

// Keys of n values; true if any is below `limit` (an equal one comes later, so it is worse).
template <class T>
bool make_keys(const T* values, int64_t stride, int64_t n, Key<T> flip, Key<T> limit, Key<T>* __restrict keys) {
  Key<T> below = 0;
  const auto each = [&](const T& value) {
    const Key<T> key = static_cast<Key<T>>(key_of(value) ^ flip);
    below = static_cast<Key<T>>(below | (key < limit ? 1 : 0));
    return key;
  };
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) keys[i] = each(values[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) keys[i] = each(values[i * stride]);
  }
  return below != 0;
}

// Keeps the k smallest items of row[begin, end): a buffer of 2k or more is filled with what beats the worst of the
// best k so far and cut back to k when full. Returns how many there are, k or fewer.
template <class T>
int64_t select_smallest(Item<T>* best, int64_t room, const T* row, int64_t stride, int64_t begin, int64_t end,
                        int64_t k, bool largest) {
  const Key<T> flip = largest ? static_cast<Key<T>>(~Key<T>(0)) : Key<T>(0);
  int64_t count = 0, i = begin;
  for (; i < end && count < room; ++i) {
    best[count++] = ItemOf<Key<T>>::make(static_cast<Key<T>>(key_of(row[i * stride]) ^ flip), i);
  }
  if (count <= k) return count;
  std::nth_element(best, best + k - 1, best + count);
  count = k;
  Item<T> worst = best[k - 1];
  constexpr int64_t kBatch = 64;
  while (i < end) {
    // Most batches have nothing better: one look at all their keys tells.
    const int64_t batch = std::min(kBatch, end - i);
    Key<T> keys[kBatch];
    const bool better = make_keys(row + i * stride, stride, batch, flip, static_cast<Key<T>>(key_part(worst)), keys);
    for (int64_t b = 0; better && b < batch; ++b) {
      if (keys[b] >= key_part(worst)) continue;
      best[count++] = ItemOf<Key<T>>::make(keys[b], i + b);
      if (count < room) continue;
      std::nth_element(best, best + k - 1, best + count);
      worst = best[k - 1];
      count = k;
    }
    i += batch;
  }
  if (count > k) std::nth_element(best, best + k - 1, best + count);
  return k;
}

// Slices of one row are searched by several cores, then the best of the best.
template <class T>
void topk_long_row(const Args& args, const Rows& rows, int64_t k, int64_t room, bool largest) {
  using I = Item<T>;
  const int64_t n = rows.size, slices = std::min<int64_t>(cores(), kMaxTeam);
  ItemBuffer<I> buffer(kScratchRow, room * slices);
  rows.each(0, rows.walk.numel, [&](int64_t self_at, int64_t value_at, int64_t index_at) {
    const T* row = args.in[0].as<const T>() + self_at;
    int64_t counts[kMaxTeam] = {};
    parallel_for(slices, 2.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        counts[s] = select_smallest<T>(buffer.data + s * room, room, row, rows.self_stride, n * s / slices,
                                       n * (s + 1) / slices, k, largest);
      }
    });
    int64_t total = counts[0];
    for (int64_t s = 1; s < slices; ++s) {
      std::copy_n(buffer.data + s * room, counts[s], buffer.data + total);
      total += counts[s];
    }
    std::partial_sort(buffer.data, buffer.data + k, buffer.data + total);
    write_row<T>(buffer.data, 0, k, row, rows.self_stride, args.out[0].as<T>() + value_at, rows.value_stride,
                 args.out[1].as<int64_t>() + index_at, rows.index_stride);
  });
}

template <class T>
void topk_rows(const Args& args, const Rows& rows, int64_t k, bool largest) {
  using I = Item<T>;
  const int64_t n = rows.size, room = std::min(n, std::max<int64_t>(2 * k, kSmallRow));
  if (n >= kSplitRow && rows.walk.numel < cores() && k <= n / 16) return topk_long_row<T>(args, rows, k, room, largest);
  parallel_for(rows.walk.numel, 3.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    ItemBuffer<I> buffer(kScratchRow, room);
    rows.each(begin, end, [&](int64_t self_at, int64_t value_at, int64_t index_at) {
      const T* row = args.in[0].as<const T>() + self_at;
      const int64_t found = select_smallest<T>(buffer.data, room, row, rows.self_stride, 0, n, k, largest);
      std::sort(buffer.data, buffer.data + found);
      write_row<T>(buffer.data, 0, found, row, rows.self_stride, args.out[0].as<T>() + value_at, rows.value_stride,
                   args.out[1].as<int64_t>() + index_at, rows.index_stride);
    });
  });
}

ngResult run_topk(const Args& args) {
  const Rows rows(args, args.i(1));
  const int64_t k = args.i(0);
  if (k <= 0) return NG_SUCCESS;
  if (k > rows.size) return fail(NG_ERROR_INVALID_VALUE, "topk: k is %ld", static_cast<long>(k));
  if (rows.size > UINT32_MAX) return fail(NG_ERROR_NOT_SUPPORTED, "topk: more than 2^32 elements in a row");
  return for_all_types(args.in[0].type, [&](auto tag) {
    topk_rows<Sortable<decltype(tag)>>(args, rows, k, args.i(2) != 0);
    return NG_SUCCESS;
  });
}

NG_KERNEL("sort", kAllTypes, run_sort);
NG_KERNEL("topk", kAllTypes, run_topk);

}  // namespace
}  // namespace ng
