/* An adapter over host memory for the core's tests. Streams are queues that run when they are waited for, queried or
 * released, so asynchrony is the same in every run. Variants are built with -DTEST_OPAQUE (handles, no addresses),
 * -DTEST_PLAIN (no events, no pinned memory, no stream_query), -DTEST_IMMUTABLE (no FL_CAP_IN_PLACE) and -DTEST_RANGES
 * (virtual memory).
 */
#define _GNU_SOURCE
#include "test_adapter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef TEST_RANGES
#include <sys/mman.h>
#endif

#include "torch_fl/adapter.h"
#include "torch_fl/ext_virtual_memory.h"

struct fl_event_s {
  struct fl_stream_s* stream; /* NULL: never recorded */
  uint64_t at;
  uint32_t flags;
};

enum op_kind { OP_COPY, OP_FILL, OP_WAIT };
struct op {
  enum op_kind kind;
  uint8_t value;
  void* dst;
  const void* src;
  uint64_t bytes;
  struct fl_stream_s* other;
  uint64_t other_at;
};
struct fl_stream_s {
  int32_t device;
  int held;
  struct op* ops;
  uint64_t queued, done, room;
};

struct buffer { /* in front of each allocation */
  uint64_t bytes;
  void* raw;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct test_control control = {.capacity = 1u << 30};
static _Thread_local fl_error error;

static fl_status fail(fl_status status, const char* name, const char* message) {
  error.struct_size = sizeof(error);
  error.vendor_code = 7000 + status;
  error.vendor_name = name;
  error.message = message;
  return status;
}

#define ENTER()                                                               \
  pthread_mutex_lock(&mutex);                                                 \
  if (control.lost) {                                                         \
    pthread_mutex_unlock(&mutex);                                             \
    return fail(FL_STATUS_DEVICE_LOST, "TEST_LOST", "the test took it away"); \
  }
#define LEAVE(status)             \
  do {                            \
    fl_status result = (status);  \
    pthread_mutex_unlock(&mutex); \
    return result;                \
  } while (0)

/* ---------------------------------------------------------------- steering */

FL_EXPORT struct test_control* test_lock(void) {
  pthread_mutex_lock(&mutex);
  return &control;
}
FL_EXPORT void test_unlock(void) { pthread_mutex_unlock(&mutex); }

/* Runs a stream's work up to and including number `at`. */
static void run(struct fl_stream_s* stream, uint64_t at) {
  while (stream->done < at) {
    struct op* op = &stream->ops[stream->done];
    if (op->kind == OP_WAIT && op->other->done < op->other_at) run(op->other, op->other_at);
    if (op->kind == OP_COPY) memcpy(op->dst, op->src, op->bytes);
    if (op->kind == OP_FILL) memset(op->dst, op->value, op->bytes);
    ++stream->done;
  }
}

FL_EXPORT void test_hold(void* stream) {
  pthread_mutex_lock(&mutex);
  ((struct fl_stream_s*)stream)->held = 1;
  pthread_mutex_unlock(&mutex);
}
FL_EXPORT void test_release(void* stream) {
  struct fl_stream_s* s = stream;
  pthread_mutex_lock(&mutex);
  s->held = 0;
  run(s, s->queued);
  pthread_mutex_unlock(&mutex);
}

static void queue(struct fl_stream_s* stream, struct op op) {
  if (stream->queued == stream->room) {
    stream->room = stream->room ? stream->room * 2 : 64;
    stream->ops = realloc(stream->ops, stream->room * sizeof(struct op));
  }
  stream->ops[stream->queued++] = op;
}

static fl_status take_sync_status(void) {
  const fl_status status = control.sync_status;
  control.sync_status = 0;
  return status ? fail(status, "TEST_ASYNC", "queued work failed") : FL_STATUS_OK;
}

/* ----------------------------------------------------------------- devices */

static const fl_error* last_error(void) { return &error; }

static int opened;
#ifndef TEST_PLAIN
static char mode[32] = "fast";

/* Knows cache_dir, and mode until devices are open. */
static fl_status configure(const char* key, const char* value) {
  ENTER();
  ++control.configures;
  if (strcmp(key, "cache_dir") == 0) {
    strncpy(control.cache_dir, value, sizeof(control.cache_dir) - 1);
    LEAVE(FL_STATUS_OK);
  }
  if (strcmp(key, "mode") != 0) LEAVE(fail(FL_STATUS_UNIMPLEMENTED, "TEST_KEY", "unknown key"));
  if (strcmp(value, "fast") != 0 && strcmp(value, "slow") != 0) {
    LEAVE(fail(FL_STATUS_INVALID_ARGUMENT, "TEST_VALUE", "mode is fast or slow"));
  }
  if (opened && strcmp(value, mode) != 0) LEAVE(fail(FL_STATUS_FAILED_PRECONDITION, "TEST_OPEN", "too late"));
  strcpy(mode, value);
  LEAVE(FL_STATUS_OK);
}
#endif

static fl_status device_count(int32_t* out) {
  opened = 1;
  *out = TEST_NUM_DEVICES;
  return FL_STATUS_OK;
}

static fl_status device_properties(int32_t device, fl_device_properties* out) {
  static const char* const uuids[TEST_NUM_DEVICES] = {"test-10", "test-2", "test-1"};
  out->struct_size = sizeof(*out);
  out->capabilities = FL_CAP_IN_PLACE | FL_CAP_HOST_VISIBLE | FL_CAP_POINTERS;
#ifdef TEST_OPAQUE
  out->capabilities = FL_CAP_IN_PLACE;
#endif
#ifdef TEST_IMMUTABLE
  out->capabilities = FL_CAP_POINTERS;
#endif
  out->uuid = uuids[device];
  out->name = "Test chip";
  out->arch = "host";
  out->total_memory = control.capacity;
  out->alignment = 64;
  out->multi_processor_count = 1;
  out->max_allocation = control.max_allocation;
  return FL_STATUS_OK;
}

static fl_status memory_info(int32_t device, uint64_t* out_free, uint64_t* out_total) {
  ENTER();
  *out_total = control.capacity;
  *out_free = control.capacity - control.used[device];
  LEAVE(FL_STATUS_OK);
}

/* ------------------------------------------------------------------ memory */

static fl_status memory_alloc(int32_t device, uint64_t bytes, fl_memory* out) {
  ENTER();
  ++control.allocs;
  if (control.max_allocation && bytes > control.max_allocation) {
    LEAVE(fail(FL_STATUS_INVALID_ARGUMENT, "TEST_TOO_MUCH", "the host knows how much is allowed at once"));
  }
  if (control.alloc_status) LEAVE(fail(control.alloc_status, "TEST_ALLOC", "the test wants it"));
  const int injected = control.fail_alloc_in > 0 && --control.fail_alloc_in == 0;
  if (injected && --control.fail_alloc_count > 0) control.fail_alloc_in = 1;
  if (injected || control.used[device] + bytes > control.capacity) {
    LEAVE(fail(FL_STATUS_OUT_OF_MEMORY, "TEST_NO_MEMORY", "full"));
  }
  char* raw = NULL;
  if (posix_memalign((void**)&raw, 4096, bytes + 4096) != 0) LEAVE(fail(FL_STATUS_INTERNAL, "TEST_HOST", "host"));
  char* address = raw + (control.misalign ? 64 : 128);
  struct buffer* head = (struct buffer*)(address - sizeof(struct buffer));
  head->bytes = bytes;
  head->raw = raw;
  control.used[device] += bytes;
  memset(out, 0, sizeof(*out));
#ifdef TEST_OPAQUE
  out->handle = address;
  out->offset = 0;
#else
  out->address = address;
#endif
  LEAVE(FL_STATUS_OK);
}

static char* place(fl_memory memory) {
  return memory.handle ? (char*)memory.handle + memory.offset : (char*)memory.address;
}

static fl_status memory_free(int32_t device, fl_memory memory) {
  ENTER();
  ++control.frees;
  struct buffer* head = (struct buffer*)(place(memory) - sizeof(struct buffer));
  control.used[device] -= head->bytes;
  free(head->raw);
  LEAVE(FL_STATUS_OK);
}

#ifdef TEST_RANGES
/* Pages that are not mapped fault when they are touched. */
enum { PAGE = 1 << 20, MAX_RANGES = 64 };
static struct range { char *begin, *end; uint8_t* mapped; } ranges[MAX_RANGES];

static fl_status granularity(int32_t device, uint64_t* out) {
  (void)device;
  *out = PAGE;
  return FL_STATUS_OK;
}
static struct range* find_range(char* begin, uint64_t bytes) {
  for (struct range* r = ranges; r != ranges + MAX_RANGES; ++r) {
    if (r->begin != NULL && begin >= r->begin && begin + bytes <= r->end) return r;
  }
  return NULL;
}
static fl_status range_reserve(int32_t device, uint64_t bytes, void** out) {
  (void)device;
  ENTER();
  ++control.ranges_made;
  if (control.no_ranges) LEAVE(fail(FL_STATUS_OUT_OF_MEMORY, "TEST_NO_SPACE", "no address space"));
  char* raw = mmap(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char* begin = (char*)(((uintptr_t)raw + PAGE - 1) / PAGE * PAGE);
  struct range* r = ranges;
  while (r->begin != NULL) ++r;
  *r = (struct range){begin, begin + bytes, calloc(bytes / PAGE, 1)};
  *out = begin;
  LEAVE(FL_STATUS_OK);
}
static fl_status range_free(int32_t device, void* address, uint64_t bytes) {
  (void)device;
  ENTER();
  ++control.ranges_freed;
  struct range* r = find_range(address, bytes);
  if (r == NULL || r->begin != address || r->end != r->begin + bytes || memchr(r->mapped, 1, bytes / PAGE) != NULL) {
    LEAVE(fail(FL_STATUS_INVALID_ARGUMENT, "TEST_RANGE", "not an empty range"));
  }
  munmap(r->begin, bytes);
  free(r->mapped);
  r->begin = NULL;
  LEAVE(FL_STATUS_OK);
}
/* INVALID_ARGUMENT unless all pages are whole, of one range, and (not) mapped as they should be. */
static fl_status set_pages(char* begin, uint64_t bytes, int mapped) {
  struct range* r = find_range(begin, bytes);
  if (r == NULL || bytes == 0 || (begin - r->begin) % PAGE != 0 || bytes % PAGE != 0 ||
      memchr(r->mapped + (begin - r->begin) / PAGE, mapped, bytes / PAGE) != NULL) {
    return fail(FL_STATUS_INVALID_ARGUMENT, "TEST_PAGES", "these pages cannot be changed so");
  }
  memset(r->mapped + (begin - r->begin) / PAGE, mapped, bytes / PAGE);
  mprotect(begin, bytes, mapped ? PROT_READ | PROT_WRITE : PROT_NONE);
  if (!mapped) madvise(begin, bytes, MADV_DONTNEED);
  return FL_STATUS_OK;
}
static fl_status range_map(int32_t device, void* address, uint64_t bytes) {
  ENTER();
  ++control.maps;
  const int injected = control.fail_alloc_in > 0 && --control.fail_alloc_in == 0;
  if (injected || control.used[device] + bytes > control.capacity) {
    LEAVE(fail(FL_STATUS_OUT_OF_MEMORY, "TEST_NO_MEMORY", "full"));
  }
  const fl_status status = set_pages(address, bytes, 1);
  if (status == FL_STATUS_OK) control.used[device] += bytes;
  LEAVE(status);
}
static fl_status range_unmap(int32_t device, void* address, uint64_t bytes) {
  ENTER();
  const fl_status status = set_pages(address, bytes, 0);
  if (status == FL_STATUS_OK) control.used[device] -= bytes;
  LEAVE(status);
}
static const fl_virtual_memory virtual_memory = {
    .head = {sizeof(fl_virtual_memory), FL_EXTENSION_VIRTUAL_MEMORY, NULL},
    .granularity = granularity, .range_reserve = range_reserve, .range_free = range_free,
    .range_map = range_map, .range_unmap = range_unmap,
};
/* One of a kind that the host does not know comes first in the chain. */
static const fl_extension unknown = {sizeof(fl_extension), 9999, &virtual_memory.head};
#endif

#ifndef TEST_PLAIN
static fl_status host_alloc(int32_t device, uint64_t bytes, void** out) {
  (void)device;
  ENTER();
  ++control.host_allocs;
  LEAVE(posix_memalign(out, 4096, bytes) == 0 ? FL_STATUS_OK : FL_STATUS_OUT_OF_MEMORY);
}
static fl_status host_free(int32_t device, void* address) {
  (void)device;
  ENTER();
  ++control.host_frees;
  free(address);
  LEAVE(FL_STATUS_OK);
}
#endif

static fl_status copy(fl_stream stream, void* dst, const void* src, uint64_t bytes) {
  ENTER();
  struct op op = {.kind = OP_COPY, .dst = dst, .src = src, .bytes = bytes};
  queue(stream, op);
  LEAVE(FL_STATUS_OK);
}
static fl_status copy_h2d(fl_stream stream, fl_memory dst, const void* src, uint64_t bytes) {
  return copy(stream, place(dst), src, bytes);
}
static fl_status copy_d2h(fl_stream stream, void* dst, fl_memory src, uint64_t bytes) {
  return copy(stream, dst, place(src), bytes);
}
static fl_status copy_d2d(fl_stream stream, fl_memory dst, fl_memory src, uint64_t bytes) {
  return copy(stream, place(dst), place(src), bytes);
}
static fl_status fill(fl_stream stream, fl_memory dst, uint8_t value, uint64_t bytes) {
  ENTER();
  struct op op = {.kind = OP_FILL, .value = value, .dst = place(dst), .bytes = bytes};
  queue(stream, op);
  LEAVE(FL_STATUS_OK);
}

/* ------------------------------------------------------- streams and events */

static fl_status stream_create(int32_t device, int32_t priority, fl_stream* out) {
  (void)priority;
  ENTER();
  ++control.streams_made;
  *out = calloc(1, sizeof(struct fl_stream_s));
  (*out)->device = device;
  LEAVE(FL_STATUS_OK);
}

static fl_status stream_synchronize(fl_stream stream) {
  ENTER();
  ++control.synchronizes;
  run(stream, stream->queued);
  LEAVE(take_sync_status());
}

#ifndef TEST_PLAIN
static fl_status stream_query(fl_stream stream) {
  ENTER();
  if (!stream->held) run(stream, stream->queued);
  if (stream->done < stream->queued) LEAVE(FL_STATUS_NOT_READY);
  LEAVE(take_sync_status());
}

static fl_status stream_wait_event(fl_stream stream, fl_event event) {
  ENTER();
  if (control.wait_status) LEAVE(fail(control.wait_status, "TEST_WAIT", "the test wants it"));
  if (event->stream != NULL) {
    struct op op = {.kind = OP_WAIT, .other = event->stream, .other_at = event->at};
    queue(stream, op);
  }
  LEAVE(FL_STATUS_OK);
}

static fl_status event_create(int32_t device, uint32_t flags, fl_event* out) {
  (void)device;
  ENTER();
  ++control.events_made;
  *out = calloc(1, sizeof(struct fl_event_s));
  (*out)->flags = flags;
  LEAVE(FL_STATUS_OK);
}
static fl_status event_destroy(fl_event event) {
  free(event);
  return FL_STATUS_OK;
}
static fl_status event_record(fl_event event, fl_stream stream) {
  ENTER();
  event->stream = stream;
  event->at = stream->queued;
  LEAVE(FL_STATUS_OK);
}
static fl_status event_query(fl_event event) {
  ENTER();
  if (event->stream == NULL) LEAVE(FL_STATUS_OK);
  if (!event->stream->held) run(event->stream, event->at);
  LEAVE(event->stream->done < event->at ? FL_STATUS_NOT_READY : take_sync_status());
}
static fl_status event_synchronize(fl_event event) {
  ENTER();
  if (event->stream != NULL) run(event->stream, event->at);
  LEAVE(take_sync_status());
}
static fl_status event_elapsed(fl_event start, fl_event end, double* out) {
  ENTER();
  *out = (double)(end->at - start->at); /* operations between */
  LEAVE(FL_STATUS_OK);
}
#endif

/* ----------------------------------------------------------------- kernels */

static fl_status run_kernel(const fl_op_call* call) {
  (void)call;
  return FL_STATUS_OK;
}

static fl_status kernel_find(int32_t device, const char* uniop, fl_dtype in, fl_dtype out, fl_kernel* kernel) {
  (void)device;
  (void)in;
  (void)out;
  ENTER();
  ++control.kernel_finds;
  if (control.kernel_status) LEAVE(fail(control.kernel_status, "TEST_KERNEL", "the test wants it"));
  if (strcmp(uniop, "add") != 0 && strcmp(uniop, "eq") != 0) LEAVE(FL_STATUS_UNIMPLEMENTED);
  kernel->fn = run_kernel;
  kernel->data = (void*)(uintptr_t)(in.code * 1000u + in.bits);
  kernel->max_ndim = 4;
  LEAVE(FL_STATUS_OK);
}

static const fl_adapter table = {
    .struct_size = sizeof(fl_adapter),
    .abi_major = FL_ABI_MAJOR,
    .abi_minor = FL_ABI_MINOR,
#ifdef TEST_RANGES
    .extensions = &unknown,
#endif
#if defined(TEST_OPAQUE)
    .name = "test_opaque",
#elif defined(TEST_PLAIN)
    .name = "test_plain",
#else
    .name = "test",
#endif
    .vendor = "Torch-FL",
    .version = "1",
    .last_error = last_error,
    .device_count = device_count,
    .device_properties = device_properties,
    .memory_info = memory_info,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .copy_h2d = copy_h2d,
    .copy_d2h = copy_d2h,
    .copy_d2d = copy_d2d,
    .fill = fill,
    .stream_create = stream_create,
    .stream_synchronize = stream_synchronize,
#ifndef TEST_PLAIN
    .host_alloc = host_alloc,
    .host_free = host_free,
    .stream_query = stream_query,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
#endif
    .kernel_find = kernel_find,
#ifndef TEST_PLAIN
    .configure = configure,
#endif
};

FL_EXPORT const fl_adapter* fl_get_adapter(void) { return &table; }
