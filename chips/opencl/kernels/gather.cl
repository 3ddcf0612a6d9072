// gather, index_select and index: out[place] = self[place + what the index operands add]. Walk operands: out, self,
// then the indices. E is a type of the elements' size: they only move.

// n elements with the same indices.
inline void copy_run(__global MEM(E)* out, long out_step, const __global MEM(E)* self, long self_step, long n) {
  long i = 0;
  if (out_step == 1 && self_step == 1) {
    for (; i + 16 <= n; i += 16) vstore16(vload16(0, self + i), 0, out + i);
    for (; i < n; ++i) out[i] = self[i];
  } else {
    for (; i < n; ++i) out[i * out_step] = self[i * self_step];
  }
}

#define GATHER_LOOP(out_step, self_step, index_step)                                    \
  for (long i = 0; i < n; ++i) {                                                        \
    long offset = 0;                                                                    \
    for (int k = 0; k < NUM_INDEX; ++k) {                                               \
      offset += index_part(&set, k, index[k][c.at[FIRST_INDEX + k] + i * (index_step)], &bad); \
    }                                                                                   \
    to[i * (out_step)] = from[i * (self_step) + offset];                                \
  }

__kernel void index_read(__global MEM(E)*restrict out_base, long out_offset, const __global MEM(E)*restrict self_base,
                         long self_offset INDEX_PARAMS, ERRORS, Walk walk, IndexSet set, long chunk) {
  OPERAND_OUT(E, out);
  OPERAND_IN(E, self);
  OPERAND_INDICES
  long begin = get_global_id(0) * chunk;
  const long end = min(begin + chunk, walk.numel);
  if (begin >= end) return;
  int shared = 1, unit = 1, bad = 0;
  for (int k = 0; k < NUM_INDEX; ++k) {
    shared &= STEP(walk, FIRST_INDEX + k) == 0;
    unit &= STEP(walk, FIRST_INDEX + k) == 1;
  }
  const long out_step = STEP(walk, 0), self_step = STEP(walk, 1);
  Cursor c;
  cursor_set(&c, &walk, begin);
  while (begin < end) {
    const long n = min(cursor_left(&c, &walk), end - begin);
    __global MEM(E)* to = out + c.at[0];
    const __global MEM(E)* from = self + c.at[1];
    if (shared) {
      int outside = 0;
      long offset = 0;
      for (int k = 0; k < NUM_INDEX; ++k) {
        offset += index_part(&set, k, index[k][c.at[FIRST_INDEX + k]], &outside);
      }
      if (!outside) copy_run(to, out_step, from + offset, self_step, n);
      bad |= outside;
    } else if (unit && out_step == 1 && self_step == 0) {
      GATHER_LOOP(1, 0, 1)
    } else {
      GATHER_LOOP(out_step, self_step, STEP(walk, FIRST_INDEX + k))
    }
    begin += n;
    cursor_advance(&c, &walk, n);
  }
  if (bad) {
    OPERAND_ERRORS;
    ERROR_INDEX(errors);
  }
}
