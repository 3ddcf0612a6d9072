// The slab that the CPU kernels of convolution read: what a tile of positions needs of the source. Per channel there is
// one plane per residue of the step (and per tap along z), its rows `width` apart. On that pitch the source of a run of
// positions at any tap is a run too: position q reads slab[q + offset of the tap], so vectors are loaded without any
// index arithmetic. Positions between the rows are computed and dropped. Needs conv_lines.cl.

// Along z, y, x: source coordinate = position * step + first + tap * tap_step.
typedef struct {
  long src_n, src_g, src_c, src[3];  // strides, in elements
  long dst_n, dst_g, dst_c, dst[3];
  long slot, slab_at, sums_at;       // per item in flight: its scratch, and where in it the slab and the sums are
  long weight_row;                   // between output channels of the weight, if it is not packed
  int extent[3], grid[3];            // of the source, of the positions
  int step[3], first[3], tap_step[3], taps[3];
  int planes[3], lowest[3];          // residues of the step; smallest shift of a tap, in steps
  int rows, columns;                 // of a tile
  int height, width, length;         // of a plane in the slab; of a channel's slab
  int tiles_y, tiles_x, m_tiles;
  int batch, groups, in_channels, out_channels;  // channels per group
  int chunk, m_rows;                 // input channels per slab, output channels per item
  int sums_pitch, items, slots, has_bias;
} conv_t;

static inline void fill_slab(__global acc* slab, const __global MEM(T)* src, const conv_t* p, int channels, int z, int y0,
                      int x0) {
  for (int c = 0; c < channels; ++c) {
    __global acc* line = slab + (long)c * p->length;
    const __global MEM(T)* channel = src + c * p->src_c;
    for (int plane = 0; plane < p->planes[0] * p->planes[1] * p->planes[2]; ++plane) {
      const int px = plane % p->planes[2], py = plane / p->planes[2] % p->planes[1],
                pz = plane / (p->planes[2] * p->planes[1]);
      const int at_z = z * p->step[0] + p->first[0] + pz * p->tap_step[0];
      const int from_y = p->first[1] + py * p->tap_step[1], from_x = p->first[2] + px * p->tap_step[2];
      const int rest_y = from_y - floor_div(from_y, p->step[1]) * p->step[1];
      const int rest_x = from_x - floor_div(from_x, p->step[2]) * p->step[2];
      const int at_x = (x0 + p->lowest[2]) * p->step[2] + rest_x;
      for (int r = 0; r < p->height; ++r, line += p->width) {
        const int at_y = (y0 + r + p->lowest[1]) * p->step[1] + rest_y;
        const int inside = at_z >= 0 && at_z < p->extent[0] && at_y >= 0 && at_y < p->extent[1];
        const __global MEM(T)* row = channel + at_z * p->src[0] + at_y * p->src[1];
        if (inside && px == 0 && c + 4 < channels && p->src[2] == 1)
          prefetch_line(row + 4 * p->src_c + max(at_x, 0), (long)p->width * p->step[2] * sizeof(MEM(T)));
        fill_line(line, row, at_x, p->step[2], p->extent[2], p->src[2], p->width, inside);
      }
    }
  }
}

// Where in a channel's slab the taps find position 0.
static inline void find_offsets(__global int* offsets, const conv_t* p) {
  for (int kz = 0; kz < p->taps[0]; ++kz)
    for (int ky = 0; ky < p->taps[1]; ++ky)
      for (int kx = 0; kx < p->taps[2]; ++kx) {
        const int y = floor_div(p->first[1] + ky * p->tap_step[1], p->step[1]) - p->lowest[1];
        const int x = floor_div(p->first[2] + kx * p->tap_step[2], p->step[2]) - p->lowest[2];
        const int plane = (kz * p->planes[1] + ky % p->planes[1]) * p->planes[2] + kx % p->planes[2];
        *offsets++ = (plane * p->height + y) * p->width + x;
      }
}
