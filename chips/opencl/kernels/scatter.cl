// scatter, index_copy, scatter_reduce, index_add and index_put: out[place + what the index operands add] becomes
// COMBINE(it, src[place]). Walk operands: out, src, then the indices. The positions of `unmet` never meet in out and
// are split over the work-items; each goes through all of `serial` in order, so that repeated indices all count and the
// last one wins. If parts > 1, a work-item writes only where the index offset is in its own part of out.
// T is out's type, S src's; COMBINE(a, b) in computing types, NO_VECTORS where it has no vector form.

typedef struct {
  long chunk;      // unmet positions of a work-item
  long part;       // index offsets of a part
  long parts;
  long use_value;  // src is one value, not in memory
} Plan;

typedef struct {
  __global MEM(T)* out;
  const __global MEM(S)* src;
  const __global MEM(I)* index[NUM_INDEX];
  long low, high;
  int use_value, bad;
  ACC(S) value;
} Target;

inline void combine_at(const Target* t, long to, long from) {
  const ACC(S) b = t->use_value ? t->value : LOAD(S, t->src, from);
  STORE(T, t->out, to, COMBINE(LOAD(T, t->out, to), b));
}

inline long offset_at(Target* t, const IndexSet* set, const long* at, const long* steps, long i) {
  long offset = 0;
  int outside = 0;
  for (int k = 0; k < NUM_INDEX; ++k) {
    offset += index_part(set, k, t->index[k][at[FIRST_INDEX + k] + i * steps[FIRST_INDEX + k]], &outside);
  }
  t->bad |= outside;
  return outside ? -1 : offset;
}

// n elements that share their indices.
inline void scatter_run(Target* t, const IndexSet* set, const long* at, const long* steps, long n) {
  const long offset = offset_at(t, set, at, steps, 0);
  if (offset < t->low || offset >= t->high) return;
  const long to = at[0] + offset, from = at[1];
  long i = 0;
#ifndef NO_VECTORS
  if (steps[0] == 1 && (steps[1] == 1 || t->use_value)) {
    for (; i + 16 <= n; i += 16) {
      ACC16(S) b = t->value;
      if (!t->use_value) b = LOAD16(S, t->src, from + i);
      STORE16(T, t->out, to + i, COMBINE(LOAD16(T, t->out, to + i), b));
    }
  }
#endif
  for (; i < n; ++i) combine_at(t, to + i * steps[0], from + i * steps[1]);
}

// n elements that each look up their place.
inline void scatter_each(Target* t, const IndexSet* set, const long* at, const long* steps, long n) {
  for (long i = 0; i < n; ++i) {
    const long offset = offset_at(t, set, at, steps, i);
    if (offset < t->low || offset >= t->high) continue;
    combine_at(t, at[0] + i * steps[0] + offset, at[1] + i * steps[1]);
  }
}

__kernel void index_write(OUT(T, out), IN(S, src) INDEX_PARAMS, ERRORS, Walk unmet, Walk serial, IndexSet set, Plan plan,
                          ACC(S) value) {
  long begin = get_global_id(0) * plan.chunk;
  const long end = min(begin + plan.chunk, unmet.numel);
  const long part = get_global_id(1);
  if (begin >= end || part >= plan.parts) return;
  OPERAND_INDICES
  Target t;
  t.out = out_base + out_offset;
  t.src = src_base + src_offset;
  for (int k = 0; k < NUM_INDEX; ++k) t.index[k] = index[k];
  t.low = part * plan.part;
  t.high = part + 1 == plan.parts ? LONG_MAX : t.low + plan.part;
  t.use_value = plan.use_value != 0;
  t.bad = 0;
  t.value = value;
  long steps[OPERANDS], serial_steps[OPERANDS], at[OPERANDS];
  int shared = unmet.numel > 1;  // the indices are the same all along a run of unmet positions
  for (int o = 0; o < OPERANDS; ++o) {
    steps[o] = STEP(unmet, o);
    serial_steps[o] = STEP(serial, o);
    if (o >= FIRST_INDEX) shared &= steps[o] == 0;
  }
  const int unmet_inside = shared || (unmet.numel > 1 && (serial.numel == 1 || steps[1] <= serial_steps[1]));
  Cursor u, s;
  cursor_set(&u, &unmet, begin);
  while (begin < end) {
    const long n = min(cursor_left(&u, &unmet), end - begin);
    cursor_set(&s, &serial, 0);
    for (long done = 0; done < serial.numel;) {
      const long m = cursor_left(&s, &serial);
      for (int o = 0; o < OPERANDS; ++o) at[o] = u.at[o] + s.at[o];
      const long outer = unmet_inside ? m : n;
      for (long i = 0; i < outer; ++i) {
        if (shared) scatter_run(&t, &set, at, steps, n);
        else if (unmet_inside) scatter_each(&t, &set, at, steps, n);
        else scatter_each(&t, &set, at, serial_steps, m);
        for (int o = 0; o < OPERANDS; ++o) at[o] += unmet_inside ? serial_steps[o] : steps[o];
      }
      done += m;
      cursor_advance(&s, &serial, m);
    }
    begin += n;
    cursor_advance(&u, &unmet, n);
  }
  if (t.bad) {
    OPERAND_ERRORS;
    ERROR_INDEX(errors);
  }
}
