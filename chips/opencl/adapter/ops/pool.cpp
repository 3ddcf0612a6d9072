// The UniOps max_pool, avg_pool, adaptive_avg_pool and their backward passes: kernels/pool_max.cl and pool_avg.cl.
#include "../kernel.h"

namespace ocl {
namespace {

struct Image {  // [N, C, z, y, x]; strides in elements
  int64_t batch, channels, size[3], batch_stride, channel_stride, stride[3];
  int64_t plane() const { return size[0] * size[1] * size[2]; }
  bool dense() const {
    return (size[2] == 1 || stride[2] == 1) && (size[1] == 1 || stride[1] == size[2]) &&
           (size[0] == 1 || stride[0] == size[1] * size[2]);
  }
};

Image image_of(const fl_tensor& t, int spatial) {
  Image image{};
  const bool batched = t.ndim == spatial + 2;  // else [C, spatial]
  image.batch = batched ? t.sizes[0] : 1, image.batch_stride = batched ? t.strides[0] : 0;
  const int channel = t.ndim - spatial - 1;
  image.channels = t.sizes[channel], image.channel_stride = t.strides[channel];
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - spatial);
    image.size[d] = from >= 0 ? t.sizes[channel + 1 + from] : 1;
    image.stride[d] = from >= 0 ? t.strides[channel + 1 + from] : 1;
  }
  if (spatial < 3) image.stride[0] = image.size[1] * image.size[2];  // of size 1: as dense planes have it
  return image;
}

// Attribute `which` (kernel, stride …) of dim d of three, or `otherwise` where the operation has fewer dims.
int32_t dim_attr(const Op& op, int which, int d, int32_t otherwise) {
  const int spatial = static_cast<int>(op.attr_int(0)), from = d - (3 - spatial);
  return from >= 0 ? static_cast<int32_t>(op.attr_int(1 + which * spatial + from)) : otherwise;
}

bool supported(const Op& op) {
  const int64_t spatial = op.attr_int(0);
  if (spatial < 1 || spatial > 3) return false;
  for (int i = 0; i < op.call.num_inputs; ++i) {
    const int64_t ndim = op.input(i).ndim;
    if (ndim != spatial + 2 && ndim != spatial + 1) return false;
    if (numel(op.input(i)) >= int64_t{1} << 31) return false;
  }
  return numel(op.output(0)) < int64_t{1} << 31;
}

// Items of a CPU device take all channels, in vectors, where these lie side by side in all images.
bool pixels(const Op& op, std::initializer_list<Image> images) {
  bool suits = op.device.cpu;
  for (const Image& i : images) suits &= i.channels >= 16 && i.channel_stride == 1 && (i.plane() == 1 || i.stride[2] != 1);
  return suits;
}

// An image's strides and, in `size`, its extents.
void put(const Image& image, int64_t& n, int64_t& c, int64_t (&strides)[3]) {
  n = image.batch_stride, c = image.channel_stride;
  for (int d = 0; d < 3; ++d) strides[d] = image.stride[d];
}
void put_size(const Image& image, int32_t (&size)[3]) {
  for (int d = 0; d < 3; ++d) size[d] = static_cast<int32_t>(image.size[d]);
}

// ---- maximum

// max_pool_t of kernels/pool_max.cl
struct MaxArgs {
  int64_t in_n, in_c, in[3], out_n, out_c, out[3], index_n, index_c, index[3];
  int32_t channels, extent[3], grid[3], kernel[3], step[3], padding[3], dilation[3], span, block;
  int32_t reserved;
};
struct MaxBackwardArgs {
  int64_t in_n, in_c, in[3], out_n, out_c, out[3], index_n, index_c, index[3];
  int32_t channels, extent[3], grid[3], dense, block;
  int32_t reserved;
};

const char* lowest_of(Type type) {
  switch (type) {
    case Type::UInt8: return "0";
    case Type::Int8: return "CHAR_MIN";
    case Type::Int16: return "SHRT_MIN";
    case Type::Int32: return "INT_MIN";
    case Type::Int64: return "LONG_MIN";
    default: return "-INFINITY";
  }
}

const Program& max_program(Op& op) {
  return op.program(0, [&](Source& source) {
    source.define("T", op.in);
    source.define("LOWEST", std::string(lowest_of(op.in)));
    if ((bit(op.in) & (kHalfTypes | bit(Type::Float32))) != 0) source.define("FLOAT", int64_t{1});
    source.file("pool_max.cl");
    source.kernel("max_pool").kernel("max_pool_backward");
  });
}

// What both directions tell their kernel of the three images.
template <class Args>
Args max_args(const Image& in, const Image& out, const Image& index) {
  Args a{};
  put(in, a.in_n, a.in_c, a.in);
  put(out, a.out_n, a.out_c, a.out);
  put(index, a.index_n, a.index_c, a.index);
  put_size(in, a.extent);
  put_size(out, a.grid);
  a.channels = static_cast<int32_t>(in.channels);
  return a;
}

fl_status max_pool(Op& op) {
  if (!supported(op)) return FL_STATUS_UNIMPLEMENTED;
  const int spatial = static_cast<int>(op.attr_int(0));
  const Image in = image_of(op.input(0), spatial), out = image_of(op.output(0), spatial),
              index = image_of(op.output(1), spatial);
  MaxArgs a = max_args<MaxArgs>(in, out, index);
  for (int d = 0; d < 3; ++d) {
    a.kernel[d] = dim_attr(op, 0, d, 1), a.step[d] = dim_attr(op, 1, d, 1);
    a.padding[d] = dim_attr(op, 2, d, 0), a.dilation[d] = dim_attr(op, 3, d, 1);
  }
  a.span = op.device.cpu ? a.grid[2] : 1;
  const bool vectors = (bit(op.in) & (kHalfTypes | bit(Type::Float32))) != 0;
  a.block = static_cast<int32_t>(vectors && pixels(op, {in, out, index}) ? in.channels : 1);
  const int64_t items = op.device.cpu ? out.batch * (out.channels / a.block) * out.size[0] * out.size[1]
                                      : numel(op.output(0));
  if (items == 0 || a.span == 0) return FL_STATUS_OK;
  op.launch(max_program(op), 0, {items}, {op.device.cpu ? 16 : 64}, op.output(0), op.output(1), op.input(0),
            Bytes{&a, sizeof(a)}, items);
  return FL_STATUS_OK;
}

fl_status max_pool_backward(Op& op) {
  if (!supported(op)) return FL_STATUS_UNIMPLEMENTED;
  const int spatial = static_cast<int>(op.attr_int(0));
  const Image in = image_of(op.output(0), spatial), out = image_of(op.input(0), spatial),
              index = image_of(op.input(1), spatial);
  MaxBackwardArgs a = max_args<MaxBackwardArgs>(in, out, index);
  a.dense = in.dense();
  a.block = pixels(op, {in, out, index}) ? 16 : 1;
  const int64_t items = in.batch * ((in.channels + a.block - 1) / a.block);
  if (items == 0) return FL_STATUS_OK;
  op.launch(max_program(op), 1, {items}, {op.device.cpu ? 1 : 64}, op.output(0), op.input(0), op.input(1),
            Bytes{&a, sizeof(a)}, items);
  return FL_STATUS_OK;
}

// ---- average

// avg_pool_t of kernels/pool_avg.cl
struct AvgArgs {
  int64_t in_n, in_c, in[3], out_n, out_c, out[3];
  int64_t divisor;
  int32_t channels, extent[3], grid[3], kernel[3], step[3], padding[3], count_padding, span, dense, block;
};

template <bool kAdaptive>
const Program& avg_program(Op& op) {
  return op.program(0, [&](Source& source) {
    source.define("T", op.in);
    source.define("ADAPTIVE", int64_t{kAdaptive});
    source.file("pool_avg.cl");
    source.kernel("avg_pool").kernel("avg_pool_backward");
  });
}

template <bool kAdaptive>
AvgArgs avg_args(const Op& op, const Image& in, const Image& out) {
  AvgArgs a{};
  put(in, a.in_n, a.in_c, a.in);
  put(out, a.out_n, a.out_c, a.out);
  put_size(in, a.extent);
  put_size(out, a.grid);
  a.channels = static_cast<int32_t>(in.channels);
  a.dense = in.dense();
  if (kAdaptive) return a;
  for (int d = 0; d < 3; ++d) {
    a.kernel[d] = dim_attr(op, 0, d, 1), a.step[d] = dim_attr(op, 1, d, 1), a.padding[d] = dim_attr(op, 2, d, 0);
  }
  const int spatial = static_cast<int>(op.attr_int(0));
  a.count_padding = op.attr_int(1 + 3 * spatial) != 0;
  a.divisor = op.attr_int(2 + 3 * spatial);
  return a;
}

template <bool kAdaptive>
fl_status avg_pool(Op& op) {
  if (!supported(op)) return FL_STATUS_UNIMPLEMENTED;
  const int spatial = static_cast<int>(op.attr_int(0));
  const Image in = image_of(op.input(0), spatial), out = image_of(op.output(0), spatial);
  AvgArgs a = avg_args<kAdaptive>(op, in, out);
  a.span = op.device.cpu ? a.grid[2] : 1;
  a.block = static_cast<int32_t>(pixels(op, {in, out}) ? in.channels : 1);
  const int64_t items = op.device.cpu ? out.batch * (out.channels / a.block) * out.size[0] * out.size[1]
                                      : numel(op.output(0));
  if (items == 0 || a.span == 0) return FL_STATUS_OK;
  op.launch(avg_program<kAdaptive>(op), 0, {items}, {op.device.cpu ? 16 : 64}, op.output(0), op.input(0),
            Bytes{&a, sizeof(a)}, items);
  return FL_STATUS_OK;
}

template <bool kAdaptive>
fl_status avg_pool_backward(Op& op) {
  if (!supported(op)) return FL_STATUS_UNIMPLEMENTED;
  const int spatial = static_cast<int>(op.attr_int(0));
  const Image in = image_of(op.output(0), spatial), out = image_of(op.input(0), spatial);
  AvgArgs a = avg_args<kAdaptive>(op, in, out);
  a.span = op.device.cpu ? a.extent[2] : 1;
  a.block = static_cast<int32_t>(pixels(op, {in, out}) ? in.channels : 1);
  int64_t items = op.device.cpu ? in.batch * (in.channels / a.block) * in.size[0] * in.size[1] : numel(op.output(0));
  if (kAdaptive && op.device.cpu && a.block == 1 && out.plane() == 1 && in.size[1] > 1 && in.dense()) {
    a.span = static_cast<int32_t>(in.plane());  // an item per plane
    items = in.batch * in.channels;
  }
  if (items == 0 || a.span == 0) return FL_STATUS_OK;
  op.launch(avg_program<kAdaptive>(op), 1, {items}, {op.device.cpu ? 16 : 64}, op.output(0), op.input(0),
            Bytes{&a, sizeof(a)}, items);
  return FL_STATUS_OK;
}

OCL_KERNEL("max_pool", kRealTypes, max_pool);
OCL_KERNEL("max_pool_backward", kRealTypes, max_pool_backward);
OCL_KERNEL("avg_pool", kFloatTypes | bit(Type::Int64), avg_pool<false>);
OCL_KERNEL("avg_pool_backward", kFloatTypes | bit(Type::Int64), avg_pool_backward<false>);
OCL_KERNEL("adaptive_avg_pool", kFloatTypes, avg_pool<true>);
OCL_KERNEL("adaptive_avg_pool_backward", kFloatTypes, avg_pool_backward<true>);

}  // namespace
}  // namespace ocl
