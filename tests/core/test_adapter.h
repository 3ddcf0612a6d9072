/* How a test steers the in-memory adapter: counters and switches, all read and written under its lock. */
#ifndef TEST_ADAPTER_H_
#define TEST_ADAPTER_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TEST_NUM_DEVICES = 3 };

struct test_control {
  uint64_t capacity; /* bytes per device */
  uint64_t used[TEST_NUM_DEVICES];
  int64_t allocs, frees, events_made, streams_made, host_allocs, host_frees, kernel_finds, synchronizes;
  int64_t fail_alloc_in;    /* the alloc that fails with OUT_OF_MEMORY: 1 = the next; 0 = none */
  int32_t fail_alloc_count; /* how many fail from there */
  int32_t alloc_status;     /* another status for every alloc; 0 = none */
  int32_t sync_status;      /* what the next wait or query of a stream reports, once; 0 = OK */
  int32_t kernel_status;    /* what kernel_find answers; 0 = by name */
  int32_t lost;             /* every call answers DEVICE_LOST */
  int32_t misalign;         /* memory_alloc gives addresses that are multiples of 64 only */
  int32_t wait_status;      /* what stream_wait_event answers; 0 = it waits */
  uint64_t max_allocation;  /* of one memory_alloc; 0 = any */
  int64_t configures;       /* calls of configure */
  int64_t ranges_made, ranges_freed, maps;
  int32_t no_ranges;        /* range_reserve answers OUT_OF_MEMORY */
  char cache_dir[256];      /* as configure was told */
};

/* The control block, locked until test_unlock(). */
struct test_control* test_lock(void);
void test_unlock(void);
/* Work queued on a held stream stays queued (query: NOT_READY) until it is released or waited for. */
void test_hold(void* stream);
void test_release(void* stream);

#ifdef __cplusplus
}
#endif
#endif
