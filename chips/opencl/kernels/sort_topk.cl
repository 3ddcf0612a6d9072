// topk: each work-item keeps the k smallest items of a slice of a row in a heap (the worst on top); topk_finish makes
// the k smallest of a row's slices, in order. Items: [row][slice][k], of which counts[row][slice] are there.

inline void sift_down(__global Item* heap, long n, long at, Item item) {
  for (;;) {
    long child = 2 * at + 1;
    if (child >= n) break;
    if (child + 1 < n && LESS(heap[child], heap[child + 1])) ++child;
    if (!LESS(item, heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = item;
}

inline void make_heap(__global Item* heap, long n) {
  for (long at = n / 2 - 1; at >= 0; --at) sift_down(heap, n, at, heap[at]);
}

inline void sort_heap(__global Item* heap, long n) {
  for (long last = n - 1; last > 0; --last) {
    const Item item = heap[last];
    heap[last] = heap[0];
    sift_down(heap, last, 0, item);
  }
}

#define BATCH 64

__kernel void topk_slices(VALUES_IN(self), ITEMS_PARAM(items), Walk walk, Rows rows, long slices, long slice_size) {
  const long slice = get_global_id(0), row = get_global_id(1), k = rows.keep;
  if (slice >= slices || row >= rows.rows) return;
  Cursor c;
  cursor_set(&c, &walk, rows.first_row + row);
  const __global U* self = self_base + self_offset + c.at[0];
  __global Item* heap = items_base + items_offset + (row * slices + slice) * k;
  const U flip = rows.descending ? ALL_ONES : (U)0;
  const long stride = rows.self_stride, end = min((slice + 1) * slice_size, rows.size);
  long i = slice * slice_size, count = 0;
  for (; count < k && i < end; ++i) heap[count++] = MAKE_ITEM((U)(key_of(self[i * stride]) ^ flip), i);
  if (count < k) return;
  make_heap(heap, k);
  U worst = KEY_PART(heap[0]);
  while (i < end) {
    // Most batches have nothing better (an equal one comes later, so it is worse): one look at all their keys tells.
    const long batch = min((long)BATCH, end - i);
    U keys[BATCH];
    U better = 0;
    if (stride == 1) {
      for (long b = 0; b < batch; ++b) {
        keys[b] = (U)(key_of(self[i + b]) ^ flip);
        better |= keys[b] < worst ? (U)1 : (U)0;
      }
    } else {
      for (long b = 0; b < batch; ++b) {
        keys[b] = (U)(key_of(self[(i + b) * stride]) ^ flip);
        better |= keys[b] < worst ? (U)1 : (U)0;
      }
    }
    for (long b = 0; better && b < batch; ++b) {
      if (keys[b] >= worst) continue;
      sift_down(heap, k, 0, MAKE_ITEM(keys[b], i + b));
      worst = KEY_PART(heap[0]);
    }
    i += batch;
  }
}

__kernel void topk_finish(VALUES_IN(self), VALUES_OUT(values), __global long* indices_base, long indices_offset,
                          ITEMS_PARAM(items), Walk walk, Rows rows, long slices, long slice_size) {
  const long row = get_global_id(0), k = rows.keep;
  if (row >= rows.rows) return;
  Cursor c;
  cursor_set(&c, &walk, rows.first_row + row);
  const __global U* self = self_base + self_offset + c.at[0];
  __global Item* heap = items_base + items_offset + row * slices * k;
  // Each slice has at least k elements, but perhaps the last one, which is not the first.
  for (long s = 1; s < slices; ++s) {
    const long count = min(k, rows.size - s * slice_size);
    const __global Item* other = heap + s * k;
    for (long i = 0; i < count; ++i) {
      const Item item = other[i];
      if (LESS(item, heap[0])) sift_down(heap, k, 0, item);
    }
  }
  sort_heap(heap, k);
  for (long i = 0; i < k; ++i) {
    const long position = POSITION(heap[i]);
    (values_base + values_offset + c.at[1])[i * rows.value_stride] = self[position * rows.self_stride];
    (indices_base + indices_offset + c.at[2])[i * rows.index_stride] = position;
  }
}
