// copy (any type to any type, any strides) and fill. A copy that keeps the type moves raw bytes and, when it
// transposes, goes tile by tile; a conversion is an elementwise loop.
#include <algorithm>
#include <cstring>

#include "../parallel.h"
#include "copy.h"
#include "elementwise.h"
#include "transpose.h"

namespace ng {
namespace {

// ---- conversion ----

template <class T> struct IsComplex : std::false_type {};
template <class T> struct IsComplex<std::complex<T>> : std::true_type {};

// As PyTorch casts on a CPU: != 0 to bool, the real part of a complex, C++'s own conversion for the rest.
template <class To, class From> To convert(From value) {
  if constexpr (std::is_same_v<To, bool>) return value != From(0);
  else if constexpr (IsComplex<From>::value && IsComplex<To>::value) {
    using Part = typename To::value_type;
    return To(static_cast<Part>(value.real()), static_cast<Part>(value.imag()));
  } else if constexpr (IsComplex<From>::value) return static_cast<To>(value.real());
  else if constexpr (IsComplex<To>::value) return To(static_cast<typename To::value_type>(value));
  // uint8_t by way of int64_t: the direct conversion of a negative float is undefined.
  else if constexpr (std::is_same_v<To, uint8_t>) return static_cast<To>(static_cast<int64_t>(value));
  else return static_cast<To>(value);
}

template <class To, class From> void convert_loop(void* const* operands, int64_t, int64_t n, const Params&) {
  Stored<To>* const out = static_cast<Stored<To>*>(operands[0]);
  const Stored<From>* const in = static_cast<const Stored<From>*>(operands[1]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Stored<To>>(convert<To>(static_cast<From>(in[i])));
}

using All = decltype(join(RealsBool{}, Complexes{}));
using Table = std::array<Loops, NG_DATA_TYPE_COUNT>;  // by type to, type from

template <class To, class... From> constexpr Loops from_each(Types<From...>) {
  Loops row{};
  ((row[TypeOf<From>::value] = convert_loop<To, From>), ...);
  row[NG_FLOAT16] = row[NG_BFLOAT16] = row[NG_FLOAT32];
  return row;
}
template <class... To> constexpr Table to_each(Types<To...>) {
  Table table{};
  ((table[TypeOf<To>::value] = from_each<To>(All{})), ...);
  table[NG_FLOAT16] = table[NG_BFLOAT16] = table[NG_FLOAT32];
  return table;
}
constexpr Table kConversions = to_each(All{});

// ---- same type: moving bytes ----

// An unsigned type of each element size; also used for the two 16-bit floats, which must not be converted.
constexpr ngDataType raw_type(ngDataType type) {
  switch (size_of(type)) {
    case 1: return NG_UINT8;
    case 2: return NG_INT16;
    case 4: return NG_INT32;
    case 8: return NG_INT64;
    default: return NG_COMPLEX128;
  }
}

constexpr int64_t kTile = 16;

// dst is dense along columns, src along rows: whole cache lines of both are used before they leave the cache.
template <class U>
void transpose_rows(const U* src, int64_t src_stride, U* dst, int64_t dst_stride, int64_t begin, int64_t end,
                    int64_t columns) {
  for (int64_t r = begin; r < end; r += kTile) {
    const int64_t rows = std::min(kTile, end - r);
    transpose_block(src + r, src_stride, dst + r * dst_stride, dst_stride, columns, rows);
  }
}

struct Layout {
  const Tensor* src;
  const Tensor* dst;
  int rows, columns;  // dims: src is dense along rows, dst along columns
  int64_t outer;      // product of the other dims
};

// The offset of the outer-th combination of all dims but rows and columns.
int64_t outer_offset(const Layout& layout, const Tensor& tensor, int64_t outer) {
  int64_t offset = 0;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    if (d == layout.rows || d == layout.columns) continue;
    const int64_t size = layout.dst->sizes[d];
    offset += outer % size * tensor.strides[d];
    outer /= size;
  }
  return offset;
}

template <class U> void transpose(const Layout& layout) {
  const int64_t rows = layout.dst->sizes[layout.rows], columns = layout.dst->sizes[layout.columns];
  const int64_t bands = (rows + kTile - 1) / kTile;  // the unit of parallel work
  const double cost = 0.5 * static_cast<double>(kTile * columns);
  parallel_for(layout.outer * bands, cost, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t outer = begin / bands, first = begin % bands, last = std::min(bands, first + end - begin);
      transpose_rows(layout.src->as<const U>() + outer_offset(layout, *layout.src, outer),
                     layout.src->strides[layout.columns],
                     layout.dst->as<U>() + outer_offset(layout, *layout.dst, outer), layout.dst->strides[layout.rows],
                     first * kTile, std::min(rows, last * kTile), columns);
      begin += last - first;
    }
  });
}

// float to and from a 16-bit type, both dense: one pass without a buffer. True if done.
bool try_narrow(const Tensor& src, const Tensor& dst) {
  const bool widening = is_16_bit_float(src.type) && dst.type == NG_FLOAT32;
  const bool narrowing = is_16_bit_float(dst.type) && src.type == NG_FLOAT32;
  if (!(widening || narrowing) || src.immediate || src.ndim != 1) return false;
  if (src.strides[0] != 1 || dst.strides[0] != 1) return false;
  parallel_for(src.sizes[0], 0.1, [&](int64_t begin, int64_t end) {
    if (widening) widen(src.type, src.as<uint16_t>() + begin, dst.as<float>() + begin, end - begin);
    else narrow(dst.type, src.as<float>() + begin, dst.as<uint16_t>() + begin, end - begin);
  });
  return true;
}

ngResult copy(const Args& args) {
  const Tensor& src = args.in[0];
  const Tensor& dst = args.out[0];
  Params params;
  if (try_narrow(src, dst)) return NG_SUCCESS;
  if (src.type != dst.type) return elementwise(args, kConversions[dst.type], src.type, 0.2, params);
  if (try_transpose(src, dst)) return NG_SUCCESS;
  const ngDataType raw = raw_type(src.type);
  Tensor raw_src = src, raw_dst = dst;
  raw_src.type = raw_dst.type = raw;
  const Args raw_args{&raw_src, &raw_dst, nullptr, 1, 1, 0, args.device};
  return elementwise(raw_args, kConversions[raw], raw, 0.1, params);
}

// ---- fill ----

template <class U> void fill_loop(void* const* operands, int64_t, int64_t n, const Params& params) {
  U value;
  std::memcpy(&value, params.f, sizeof value);
  std::fill_n(static_cast<U*>(operands[0]), n, value);
}

template <class... T> constexpr Loops fill_loops(Types<T...>) {
  Loops all{};
  ((all[TypeOf<T>::value] = fill_loop<T>), ...);
  return all;
}

// Makes the value once, as raw bytes, by the conversions above.
ngResult fill(const Args& args) {
  static constexpr Loops loops = fill_loops(Types<uint8_t, int16_t, int32_t, int64_t, std::complex<double>>{});
  static constexpr ngDataType types_of_kind[] = {NG_INT64, NG_INT64, NG_FLOAT64, NG_INT64, NG_COMPLEX128};
  const ngScalar& attr = args.attrs[0];
  alignas(16) char value[16];
  Tensor from{const_cast<double*>(attr.v.c), nullptr, nullptr, 0, types_of_kind[attr.kind], true};
  Tensor to{value, nullptr, nullptr, 0, args.out[0].type, false};
  Params params;
  const Args convert_args{&from, &to, nullptr, 1, 1, 0, args.device};
  const ngResult result = elementwise(convert_args, kConversions[to.type], from.type, 0, params);
  if (result != NG_SUCCESS) return result;
  std::memcpy(params.f, value, sizeof value);
  Tensor out = args.out[0];
  out.type = raw_type(out.type);
  const Args fill_args{nullptr, &out, nullptr, 0, 1, 0, args.device};
  return elementwise(fill_args, loops, out.type, 0.1, params);
}

constexpr uint32_t kEveryType = kAllTypes | kComplexTypes;
NG_KERNEL("copy", kEveryType, copy, kEveryType);
NG_KERNEL("fill", kEveryType, fill, kEveryType);

}  // namespace

bool try_transpose(const Tensor& src, const Tensor& dst) {
  if (src.immediate || dst.ndim < 2) return false;
  const int columns = dst.ndim - 1;
  int rows = -1;
  int64_t outer = 1;
  for (int d = 0; d < columns; ++d) {
    if (src.strides[d] == 1 && dst.sizes[d] >= kTile && rows < 0) rows = d;
    else outer *= dst.sizes[d];
  }
  if (rows < 0 || dst.strides[columns] != 1 || src.strides[columns] < kTile / 2 || dst.sizes[columns] < kTile) {
    return false;
  }
  const Layout layout{&src, &dst, rows, columns, outer};
  switch (size_of(dst.type)) {
    case 1: transpose<uint8_t>(layout); return true;
    case 2: transpose<uint16_t>(layout); return true;
    case 4: transpose<float>(layout); return true;  // moved, not computed on
    case 8: transpose<uint64_t>(layout); return true;
    default: return false;
  }
}

Loop conversion(ngDataType to, ngDataType from) { return kConversions[to][from]; }

}  // namespace ng
