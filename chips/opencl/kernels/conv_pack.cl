// Weights as conv_tile.cl reads them: [group][block of BLOCK output channels][input channel][tap][BLOCK], zeros past
// the last. Needs conv_lines.cl.
typedef struct {
  long g, m, c, tap[3];  // strides of the weight, in elements; of a tap: from one used tap to the next
  int taps[3];
  int groups, in_channels, out_channels;  // per group
} pack_t;

// One item: one block of output channels, `chunk` input channels.
__kernel void conv_pack(__global acc* packed_base, long packed_offset, IN(T, weight), const pack_t p_, int chunk) {
  OPERAND_IN(T, weight);
  const pack_t p = p_;
  const int blocks = (p.out_channels + BLOCK - 1) / BLOCK, block = (int)get_global_id(0), c0 = (int)get_global_id(1) * chunk;
  if (block >= blocks * p.groups || c0 >= p.in_channels) return;
  const int m = block % blocks * BLOCK, rows = min(BLOCK, p.out_channels - m), taps = p.taps[0] * p.taps[1] * p.taps[2];
  const int c1 = min(p.in_channels, c0 + chunk);
  __global acc* to = packed_base + packed_offset + ((long)block * p.in_channels + c0) * (taps * BLOCK);
  for (int c = c0; c < c1; ++c) {
    const __global MEM(T)* from = weight + block / blocks * p.g + m * p.m + c * p.c;
    for (int kz = 0; kz < p.taps[0]; ++kz)
      for (int ky = 0; ky < p.taps[1]; ++ky)
        for (int kx = 0; kx < p.taps[2]; ++kx, to += BLOCK) {
          const __global MEM(T)* tap = from + kz * p.tap[0] + ky * p.tap[1] + kx * p.tap[2];
          if (rows == BLOCK) {
            for (int r = 0; r < BLOCK; ++r) to[r] = LOAD(T, tap, r * p.m);
          } else {
            for (int r = 0; r < BLOCK; ++r) to[r] = r < rows ? LOAD(T, tap, r * p.m) : 0;
          }
        }
  }
}
