/* An adapter that passes everything through to the reference chip's and can forget a wait: the chosen call answers OK at
 * once, as if what it waits for had already happened. So a program that is right only because of that wait is wrong.
 *
 * Between litmus_begin() and litmus_end() each call that made somebody wait is written down, with the line of the
 * program at which its thread was, by litmus_at(). LITMUS_ADAPTER, in the environment, is the path of the adapter behind this
 * one. Counterpart: mutants.py.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "torch_fl/adapter.h"

/* The names are in mutants.py, in this order. */
enum { kWaitEvent, kStreamSync, kEventSync, kDeviceSync, kStreamQuery, kEventQuery };
enum { kMostWaits = 4096 };

struct litmus_wait {
  int32_t kind, line;
};

/* Threads that run no line of a program, as autograd's, work for the one that was at a line last. */
static _Thread_local int32_t here;
static int32_t anywhere;
static const fl_adapter* inner;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int counting, count, forgotten;
static struct litmus_wait seen[kMostWaits];
static int32_t forget_kind, forget_line, forget_nth, reached;

FL_EXPORT void litmus_at(int32_t line) {
  here = line;
  __atomic_store_n(&anywhere, line, __ATOMIC_RELAXED);
}

/* nth, from 1: which of the waits of this kind at this line is forgotten; 0: all of them. kind -1: none at all. */
FL_EXPORT void litmus_begin(int32_t kind, int32_t line, int32_t nth) {
  pthread_mutex_lock(&mutex);
  counting = 1;
  count = forgotten = reached = 0;
  forget_kind = kind;
  forget_line = line;
  forget_nth = nth;
  pthread_mutex_unlock(&mutex);
}

/* Stops, copies what was seen, and returns its number; out_forgotten: how many of them were forgotten. */
FL_EXPORT int32_t litmus_end(struct litmus_wait* out, int32_t capacity, int32_t* out_forgotten) {
  pthread_mutex_lock(&mutex);
  counting = 0;
  for (int32_t i = 0; i < count && i < capacity; ++i) out[i] = seen[i];
  *out_forgotten = forgotten;
  const int32_t total = count;
  pthread_mutex_unlock(&mutex);
  return total;
}

/* Writes this wait down; true if it is the one to forget. */
static int forget(int32_t kind) {
  int chosen = 0;
  pthread_mutex_lock(&mutex);
  if (counting) {
    const int32_t line = here != 0 ? here : __atomic_load_n(&anywhere, __ATOMIC_RELAXED);
    if (count < kMostWaits) seen[count] = (struct litmus_wait){kind, line};
    ++count;
    if (kind == forget_kind && line == forget_line) {
      ++reached;
      chosen = forget_nth == 0 || reached == forget_nth;
    }
    forgotten += chosen;
  }
  pthread_mutex_unlock(&mutex);
  return chosen;
}

static fl_status device_synchronize(int32_t device) {
  return forget(kDeviceSync) ? FL_STATUS_OK : inner->device_synchronize(device);
}

static fl_status stream_synchronize(fl_stream stream) {
  return forget(kStreamSync) ? FL_STATUS_OK : inner->stream_synchronize(stream);
}

static fl_status stream_wait_event(fl_stream stream, fl_event event) {
  return forget(kWaitEvent) ? FL_STATUS_OK : inner->stream_wait_event(stream, event);
}

static fl_status event_synchronize(fl_event event) {
  return forget(kEventSync) ? FL_STATUS_OK : inner->event_synchronize(event);
}

/* A query is a wait only where it answers that there is something to wait for. */
static fl_status stream_query(fl_stream stream) {
  const fl_status status = inner->stream_query(stream);
  return status == FL_STATUS_NOT_READY && forget(kStreamQuery) ? FL_STATUS_OK : status;
}

static fl_status event_query(fl_event event) {
  const fl_status status = inner->event_query(event);
  return status == FL_STATUS_NOT_READY && forget(kEventQuery) ? FL_STATUS_OK : status;
}

const fl_adapter* fl_get_adapter(void) {
  static fl_adapter table;
  const char* path = getenv("LITMUS_ADAPTER");
  void* library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "forgetful adapter: %s\n", path != NULL ? dlerror() : "LITMUS_ADAPTER is not set");
    return NULL;
  }
  const fl_get_adapter_fn get = (fl_get_adapter_fn)dlsym(library, FL_ENTRY_SYMBOL);
  if (get == NULL || (inner = get()) == NULL || inner->struct_size != sizeof(table)) {
    fprintf(stderr, "forgetful adapter: %s is not of this version\n", path);
    return NULL;
  }
  table = *inner;
  table.device_synchronize = device_synchronize;
  table.stream_synchronize = stream_synchronize;
  table.stream_wait_event = stream_wait_event;
  table.stream_query = stream_query;
  table.event_synchronize = event_synchronize;
  table.event_query = event_query;
  return &table;
}
