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

#define BATCH 64

// What the indices of a batch of n elements add, n <= BATCH: -1 where one is out of range.
inline int batch_offsets(Target* t, const IndexSet* set, const long* at, const long* steps, long n, long* offsets) {
  int outside = 0;
#if NUM_INDEX == 1
  const __global MEM(I)* given = t->index[0] + at[FIRST_INDEX];
  const long step = steps[FIRST_INDEX];
  if (step == 1) {
    for (long i = 0; i < n; ++i) offsets[i] = index_part(set, 0, given[i], &outside);
  } else {
    for (long i = 0; i < n; ++i) offsets[i] = index_part(set, 0, given[i * step], &outside);
  }
  if (!outside) return 1;
#endif
  outside = 0;
  for (long i = 0; i < n; ++i) {
    offsets[i] = offset_at(t, set, at, steps, i);
    outside |= offsets[i] < 0;
  }
  return !outside;
}

#define EACH(count, CHOICE, VALUE)                                                      \
  for (long c = 0; c < (count); ++c) {                                                  \
    const long i = CHOICE, place = to + i * steps[0] + offsets[i], source = from + i * steps[1]; \
    const ACC(S) b = VALUE;                                                             \
    STORE(T, out, place, COMBINE(LOAD(T, out, place), b));                              \
  }

// n elements that each look up their place. Those of other parts are sorted out without branches, which no processor
// would predict.
inline void scatter_each(Target* t, const IndexSet* set, const long* first, const long* steps, long n, int whole) {
  long at[OPERANDS], offsets[BATCH];
  __global MEM(T)* out = t->out;
  const __global MEM(S)* src = t->src;
  for (int o = 0; o < OPERANDS; ++o) at[o] = first[o];
  for (long done = 0; done < n; done += BATCH) {
    const long batch = min((long)BATCH, n - done), to = at[0], from = at[1];
    const int inside = batch_offsets(t, set, at, steps, batch, offsets);
    if (inside && whole) {
      if (t->use_value) EACH(batch, c, t->value)
      else EACH(batch, c, LOAD(S, src, source))
    } else {
      uchar chosen[BATCH];
      long count = 0;
      for (long i = 0; i < batch; ++i) {
        chosen[count] = (uchar)i;
        count += offsets[i] >= t->low && offsets[i] < t->high ? 1 : 0;
      }
      EACH(count, chosen[c], t->use_value ? t->value : LOAD(S, src, source))
    }
    for (int o = 0; o < OPERANDS; ++o) at[o] += batch * steps[o];
  }
}

__kernel void index_write(OUT(T, out), IN(S, src) INDEX_PARAMS, ERRORS, Walk unmet, Walk serial, IndexSet set,
                          Plan plan, ACC(S) value) {
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
        else if (unmet_inside) scatter_each(&t, &set, at, steps, n, plan.parts == 1);
        else scatter_each(&t, &set, at, serial_steps, m, plan.parts == 1);
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
