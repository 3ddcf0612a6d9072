// The driver of reductions, around a fold (reduce_fold.cl, reduce_arg.cl …) in the modes of reduce_row.cl. A fold
// gives State, start(), fold_block(), merge(), finish(), store_part(), load_part(). One kernel per program, as compilers
// take their time: REDUCE_ALL, REDUCE_PARTS, or else reduce_merge. BLOCK: the most elements of a block.
// Types: T inputs, A computing, O and O2 outputs, P0 and P1 the parts of a state in scratch memory.

typedef struct {
  const __global MEM(T) * x, *y;
  const __global MEM(A) * centre;  // of the unit's first output
} Inputs;

// A unit's outputs: in MODE 2 up to ROW_BLOCK side by side, sixteen to a state.
#if MODE == 2
#define STATES_PER_UNIT (ROW_BLOCK / 16)
#define LANES_OF(k, count) min(16, (count)-16 * (k))
#define FOR_STATES(k, count) for (int k = 0; k * 16 < (count); ++k)
#else
#define STATES_PER_UNIT 1
#define LANES_OF(k, count) 1
#define FOR_STATES(k, count) for (int k = 0; k < 1; ++k)
#endif

#ifdef CENTRE
#if MODE == 2
inline E centre_of(const __global MEM(A)* p, int count) {
  if (count == 16) return vload16(0, p);
  S lanes[16];
  for (int k = 0; k < 16; ++k) lanes[k] = k < count ? p[k] : (S)0;
  return vload16(0, lanes);
}
#else
#define centre_of(p, count) (*(p))
#endif
#else
#define centre_of(p, count) (E)0
#endif

// Folds the reduced elements [from, to), counted along `reduced`; positions start at 0 with `from`.
inline void fold_range(State* s, Inputs in, const Axes* reduced, long from, long to, S p0, int count) {
#ifdef GROUP
  for (long at = from + (long)get_local_id(0); at < to; at += (long)get_local_size(0)) {
    long offset[OPERANDS];
    offsets_at(reduced, (int)reduced->dims, at, offset);
    fold_block(s, in.x + offset[0], 1, in.y + offset[INPUTS - 1], 1, centre_of(in.centre, 1), p0, 1, at - from, 1);
  }
#else
  const int last = (int)reduced->dims - 1;
  const long inner = reduced->size[last];
  const long x_step = reduced->stride[0][last], y_step = reduced->stride[INPUTS - 1][last];
  for (long at = from; at < to;) {
    const long outer = at / inner, first = at - outer * inner, n = min(inner - first, to - at);
    long offset[OPERANDS];
    offsets_at(reduced, last, outer, offset);
    const __global MEM(T)* x = in.x + offset[0] + first * x_step;
    const __global MEM(T)* y = in.y + offset[INPUTS - 1] + first * y_step;
    for (long k = 0; k < n; k += BLOCK) {
      FOR_STATES(v, count) {
        fold_block(s + v, x + k * x_step + 16 * v, x_step, y + k * y_step + 16 * v, y_step,
                   centre_of(in.centre + 16 * v, LANES_OF(v, count)), p0, min((long)BLOCK, n - k), at + k - from,
                   LANES_OF(v, count));
      }
    }
    at += n;
  }
#endif
}

inline long reduced_count(const Axes* axes) {
  long n = 1;
  for (int d = 0; d < (int)axes->dims; ++d) n *= axes->size[d];
  return n;
}

#ifdef GROUP
// All states of the group into the first one.
inline void merge_group(State* s, __local State* tree) {
  const int id = (int)get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  tree[id] = *s;
  for (int n = (int)get_local_size(0); n > 1; n = (n + 1) / 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    const int half_n = (n + 1) / 2;
    if (id < n - half_n) {
      State a = tree[id];
      merge(&a, tree[id + half_n]);
      tree[id] = a;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  *s = tree[0];
}
#define STATES __local State tree[GROUP]
#define MERGE_GROUP(s) merge_group(s, tree)
#define IS_WRITER (get_local_id(0) == 0)
#else
#define STATES
#define MERGE_GROUP(s)
#define IS_WRITER 1
#endif

#if defined(REDUCE_ALL)
// kept: operands x, y (if INPUTS is 2), out, out2. centre: one value per output, dense.
__kernel void reduce_all(IN(T, x), IN(T, y), IN(A, centre), OUT(O, out), OUT(O2, out2), Axes kept, Axes reduced,
                         long rows, S p0, S p1) {
  STATES;
  const long total = reduced_count(&reduced);
  FOR_ROWS(r, rows) {
    PLACE_ROW(kept, r);
    State s[STATES_PER_UNIT];
    FOR_STATES(k, count) s[k] = start();
    Inputs in = {x_base + x_offset + offset[0], y_base + y_offset + offset[INPUTS - 1],
                 centre_base + centre_offset + row};
    fold_range(s, in, &reduced, 0, total, p0, count);
    MERGE_GROUP(s);
#if MODE == 2
    const long out_step = kept.stride[INPUTS][last_dim], out2_step = kept.stride[INPUTS + 1][last_dim];
#else
    const long out_step = 1, out2_step = 1;
#endif
    if (!IS_WRITER) continue;
    FOR_STATES(k, count) {
      finish(s[k], out_base + out_offset + offset[INPUTS] + 16 * k * out_step, out_step,
             out2_base + out2_offset + offset[INPUTS + 1] + 16 * k * out2_step, out2_step, total, p0, p1,
             LANES_OF(k, count));
    }
  }
}

#elif defined(REDUCE_PARTS)
// One part of the reduced elements per row; states go to scratch memory [parts, outputs].
__kernel void reduce_parts(IN(T, x), IN(T, y), IN(A, centre), OUT(P0, part0), OUT(P1, part1), Axes kept, Axes reduced,
                           long rows, long outputs, long parts, S p0) {
  STATES;
  const long total = reduced_count(&reduced);
  FOR_ROWS(unit, rows * parts) {
    const long part = unit / rows, r = unit - part * rows;
    PLACE_ROW(kept, r);
    State s[STATES_PER_UNIT];
    FOR_STATES(k, count) s[k] = start();
    Inputs in = {x_base + x_offset + offset[0], y_base + y_offset + offset[INPUTS - 1],
                 centre_base + centre_offset + row};
    fold_range(s, in, &reduced, total * part / parts, total * (part + 1) / parts, p0, count);
    MERGE_GROUP(s);
    if (!IS_WRITER) continue;
    FOR_STATES(k, count) {
      const long at = part * outputs + row + 16 * k;
      store_part(s[k], part0_base + part0_offset + at, part1_base + part1_offset + at, LANES_OF(k, count));
    }
  }
}

#else
// Merges the parts of each output, in order. kept as above; rows: outputs.
__kernel void reduce_merge(IN(P0, part0), IN(P1, part1), OUT(O, out), OUT(O2, out2), Axes kept, long rows, long parts,
                           long total, S p0, S p1) {
  FOR_ROWS(r, rows) {
    PLACE_ROW(kept, r);
    State s = start();
    for (long part = 0; part < parts; ++part) {
      const long at = part * rows + row, from = total * part / parts;
      merge(&s, load_part(part0_base + part0_offset + at, part1_base + part1_offset + at, from,
                          total * (part + 1) / parts - from));
    }
    finish(s, out_base + out_offset + offset[INPUTS], 1, out2_base + out2_offset + offset[INPUTS + 1], 1, total, p0, p1,
           count);
  }
}
#endif
