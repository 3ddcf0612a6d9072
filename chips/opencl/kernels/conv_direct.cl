// Convolution by its definition, one item per result, for GPUs and whatever the other kernels refuse.
// Defines: T.
typedef struct {
  long in_n, in_c, in[3], out_n, out_c, out[3], weight_o, weight_i, weight[3];  // strides, in elements
  int batch, groups, group_in, group_out;
  int extent_in[3], extent_out[3], kernel_size[3], step[3], padding[3], dilation[3];
  int has_bias;
} direct_t;

// The coordinate along dim d of the source at a tap of a destination's position; -1 outside.
static inline int source_at(const direct_t* p, int d, int position, int tap) {
  const int at = position * p->step[d] - p->padding[d] + tap * p->dilation[d];
  return at < p->extent_in[d] ? max(at, -1) : -1;
}
// The inverse; -1 if no destination reads this source there.
static inline int destination_at(const direct_t* p, int d, int source, int tap) {
  const int at = source + p->padding[d] - tap * p->dilation[d];
  if (at < 0 || at % p->step[d] != 0) return -1;
  return at / p->step[d] < p->extent_out[d] ? at / p->step[d] : -1;
}

__kernel void conv_direct(OUT(T, out), IN(T, in), IN(T, weight), IN(T, bias), const direct_t p, long count) {
  OPERAND_OUT(T, out);
  OPERAND_IN(T, in);
  OPERAND_IN(T, weight);
  OPERAND_IN(T, bias);
  long id = get_global_id(0);
  if (id >= count) return;
  const int x = id % p.extent_out[2], y = id / p.extent_out[2] % p.extent_out[1];
  id /= (long)p.extent_out[2] * p.extent_out[1];
  const int z = id % p.extent_out[0];
  id /= p.extent_out[0];
  const int o = id % (p.groups * p.group_out);
  const long n = id / (p.groups * p.group_out);
  const int first = o / p.group_out * p.group_in;
  ACC(T) sum = 0;
  for (int kz = 0; kz < p.kernel_size[0]; ++kz)
    for (int ky = 0; ky < p.kernel_size[1]; ++ky)
      for (int kx = 0; kx < p.kernel_size[2]; ++kx) {
        const int sz = source_at(&p, 0, z, kz), sy = source_at(&p, 1, y, ky), sx = source_at(&p, 2, x, kx);
        if (sz < 0 || sy < 0 || sx < 0) continue;
        const long from = n * p.in_n + first * p.in_c + sz * p.in[0] + sy * p.in[1] + sx * p.in[2];
        const long w = o * p.weight_o + kz * p.weight[0] + ky * p.weight[1] + kx * p.weight[2];
        for (int c = 0; c < p.group_in; ++c)
          sum += LOAD(T, in, from + c * p.in_c) * LOAD(T, weight, w + c * p.weight_i);
      }
  if (p.has_bias) sum += LOAD(T, bias, o);
  STORE(T, out, n * p.out_n + o * p.out_c + z * p.out[0] + y * p.out[1] + x * p.out[2], sum);
}

// The gradient of `in`, or a transposed convolution: `in` is written, `out` is read.
__kernel void conv_direct_input(OUT(T, in), IN(T, out), IN(T, weight), IN(T, bias), const direct_t p, long count) {
  OPERAND_OUT(T, in);
  OPERAND_IN(T, out);
  OPERAND_IN(T, weight);
  OPERAND_IN(T, bias);
  long id = get_global_id(0);
  if (id >= count) return;
  const int x = id % p.extent_in[2], y = id / p.extent_in[2] % p.extent_in[1];
  id /= (long)p.extent_in[2] * p.extent_in[1];
  const int z = id % p.extent_in[0];
  id /= p.extent_in[0];
  const int i = id % (p.groups * p.group_in);
  const long n = id / (p.groups * p.group_in);
  const int first = i / p.group_in * p.group_out;
  ACC(T) sum = 0;
  for (int kz = 0; kz < p.kernel_size[0]; ++kz)
    for (int ky = 0; ky < p.kernel_size[1]; ++ky)
      for (int kx = 0; kx < p.kernel_size[2]; ++kx) {
        const int dz = destination_at(&p, 0, z, kz), dy = destination_at(&p, 1, y, ky),
                  dx = destination_at(&p, 2, x, kx);
        if (dz < 0 || dy < 0 || dx < 0) continue;
        const long from = n * p.out_n + first * p.out_c + dz * p.out[0] + dy * p.out[1] + dx * p.out[2];
        const long w = first * p.weight_o + i % p.group_in * p.weight_i + kz * p.weight[0] + ky * p.weight[1] +
                       kx * p.weight[2];
        for (int o = 0; o < p.group_out; ++o)
          sum += LOAD(T, out, from + o * p.out_c) * LOAD(T, weight, w + o * p.weight_o);
      }
  if (p.has_bias) sum += LOAD(T, bias, i);
  STORE(T, in, n * p.in_n + i * p.in_c + z * p.in[0] + y * p.in[1] + x * p.in[2], sum);
}

// The gradient of `weight`.
__kernel void conv_direct_weight(OUT(T, weight), IN(T, out), IN(T, in), const direct_t p, long count) {
  OPERAND_OUT(T, weight);
  OPERAND_IN(T, out);
  OPERAND_IN(T, in);
  long id = get_global_id(0);
  if (id >= count) return;
  const int kx = id % p.kernel_size[2], ky = id / p.kernel_size[2] % p.kernel_size[1];
  id /= (long)p.kernel_size[2] * p.kernel_size[1];
  const int kz = id % p.kernel_size[0];
  id /= p.kernel_size[0];
  const int i = id % p.group_in, o = id / p.group_in, c = o / p.group_out * p.group_in + i;
  ACC(T) sum = 0;
  for (long n = 0; n < p.batch; ++n)
    for (int z = 0; z < p.extent_out[0]; ++z) {
      const int sz = source_at(&p, 0, z, kz);
      if (sz < 0) continue;
      for (int y = 0; y < p.extent_out[1]; ++y) {
        const int sy = source_at(&p, 1, y, ky);
        if (sy < 0) continue;
        const long from = n * p.in_n + c * p.in_c + sz * p.in[0] + sy * p.in[1];
        const long grad = n * p.out_n + o * p.out_c + z * p.out[0] + y * p.out[1];
        for (int x = 0; x < p.extent_out[2]; ++x) {
          const int sx = source_at(&p, 2, x, kx);
          if (sx >= 0) sum += LOAD(T, in, from + sx * p.in[2]) * LOAD(T, out, grad + x * p.out[2]);
        }
      }
    }
  STORE(T, weight, o * p.weight_o + i * p.weight_i + kz * p.weight[0] + ky * p.weight[1] + kx * p.weight[2], sum);
}
