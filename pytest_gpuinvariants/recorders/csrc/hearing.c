/* From a native recorder's listener to Python, with as little Python as can be.
 *
 * A program makes the same calls from the same places again and again.  So each call gets a key, of
 * all that makes it a finding of its own: what it did, on which thread, and the Python frames that it
 * came from.  Python is called for a key that it has not named yet; calls of a key that it has are
 * only counted, until it asks.  All of this runs under Python's lock, the GIL.  Python's functions
 * are given by Python itself, so that no header of it is needed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "asked_for.h"
#include "frames.h"
#include "native_event.h"
#include "native_threads.h"
#include "python.h"

#define EXPORT __attribute__((visibility("default")))

python_functions python;
static void *hears;          /* the Python function */
static void *state;           /* a context variable on whose value a finding depends, or NULL */

static void prepare_for_allocator(void);

EXPORT void gi_hearing_open(const python_functions *functions, void *function) {
  python = *functions;
  hears = function;
  prepare_for_allocator();
}

/* NULL: there is none. */
EXPORT void gi_depend_on(void *context_variable) { state = context_variable; }

static uint64_t mixed_text(uint64_t key, const char *text) {
  uint64_t part;
  size_t length = text ? strlen(text) : 0, i = 0;
  for (; i + sizeof part <= length; i += sizeof part) {
    memcpy(&part, text + i, sizeof part);
    key = mixed(key, part);
  }
  part = length;
  memcpy(&part, text ? text + i : "", length - i);
  return mixed(key, part);
}

static uint64_t key_of_call(const gi_event *event) {
  uint64_t key = mixed((uint64_t)(uintptr_t)event->api, event->bytes);
  key = mixed(mixed(key, event->rows), event->stream);
  key = mixed(mixed(key, event->thread), (uint64_t)(uint32_t)event->event_class << 32 | (uint32_t)event->blocking);
  key = mixed(key, (uint64_t)(uint32_t)event->destination << 32 | (uint32_t)event->source);
  key = mixed(key, (uint64_t)(uint32_t)event->capturing << 32 | (uint32_t)event->result);
  key = mixed(key, (uint64_t)(uint32_t)event->device);
  return event->kernel ? mixed_text(mixed_text(key, event->kernel), event->library) : key;
}

static uint64_t key_of_place(uint64_t key) {
  void *value = NULL;
  /* On a thread that Python did not start there is no value, and no frame. */
  if (state && !python.PyContextVar_Get(state, NULL, &value) && value) {
    key = mixed(key, (uint64_t)(uintptr_t)value); /* small integers are one object each */
    python.Py_DecRef(value);
  }
  return key_of_frames(key);
}

/* ---- keys that Python has named -------------------------------------------------------------------- */

#define MOST_NAMED 4096
#define ROOM (2 * MOST_NAMED) /* a power of two */

static struct {
  uint64_t key, count; /* key 0: a free place */
} named[ROOM];
static size_t taken_places[MOST_NAMED], taken_count;

static size_t place_of(uint64_t key) {
  size_t at = (size_t)key % ROOM;
  while (named[at].key && named[at].key != key) at = (at + 1) % ROOM;
  return at;
}

EXPORT void gi_name(uint64_t key) {
  size_t at = place_of(key);
  if (named[at].key || taken_count == MOST_NAMED) return;
  named[at].key = key;
  taken_places[taken_count++] = at;
}

/* Take the calls that were only counted, MOST_NAMED keys and counts at most; their number.  All names are forgotten. */
EXPORT size_t gi_take_counts(uint64_t *keys, uint64_t *counts) {
  size_t taken = 0;
  for (size_t i = 0; i < taken_count; i++) {
    size_t at = taken_places[i];
    if (named[at].count) {
      keys[taken] = named[at].key;
      counts[taken++] = named[at].count;
    }
    named[at].key = named[at].count = 0;
  }
  taken_count = 0;
  return taken;
}

static int count_if_named(uint64_t key) {
  size_t at = place_of(key);
  if (named[at].key != key) return 0;
  named[at].count++;
  return 1;
}

/* A gi_listener. */
EXPORT void gi_hear(const gi_event *event) {
  /* The place on the native stack tells the ways apart by which one line of Python reaches one call: torch
   * copies a tensor with gaps deeper down than another. */
  uint64_t key = key_of_call(event);
  if (native_thread_keeps(event, key)) return;
  key = mixed(key, (uint64_t)(uintptr_t)__builtin_frame_address(0));
  int gil = python.PyGILState_Ensure();
  key = key_of_place(key);
  key += !key;
  if (!count_if_named(key)) {
    void *type, *value, *trace;
    python.PyErr_Fetch(&type, &value, &trace); /* the call may come from a clean-up while one is on its way */
    void *answer =
        python.PyObject_CallFunction(hears, "KK", (unsigned long long)key, (unsigned long long)(uintptr_t)event);
    if (answer) python.Py_DecRef(answer);
    else python.PyErr_WriteUnraisable(hears);
    python.PyErr_Restore(type, value, trace);
  }
  python.PyGILState_Release(gil);
}

/* ---- calls that are made under a lock of PyTorch's allocator --------------------------------------
 *
 * The allocator calls CUDA while it holds a mutex, which another thread may wait for with Python's
 * lock, the GIL, in hand: to wait for the GIL there would stop both for ever.  Such a call is set
 * aside, and told before the next one that this thread tells, or on the main thread as soon as the
 * interpreter runs again: the Python stack is then still that of the line. */

#define MOST_ASIDE 4096
#define DEPTH 32

static _Thread_local struct {
  gi_event *events;
  size_t count, room;
} aside;

EXPORT void gi_tell_aside(void) {
  size_t count = aside.count;
  aside.count = 0;
  for (size_t i = 0; i < count; i++) gi_hear(&aside.events[i]);
}

/* Drop what this thread has set aside: after a fork it is the parent's to tell. */
EXPORT void gi_drop_aside(void) { aside.count = 0; }

static int tell_aside_soon(void *unused) {
  (void)unused;
  gi_tell_aside();
  return 0;
}

static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void forget_aside(void *unused) {
  (void)unused;
  free(aside.events);
  aside.events = NULL;
  aside.count = aside.room = 0;
}
static void make_key(void) { pthread_key_create(&at_thread_end, forget_aside); }

static void set_aside(const gi_event *event) {
  if (aside.count == MOST_ASIDE) return;
  pthread_once(&once, make_key);
  pthread_setspecific(at_thread_end, &aside);
  if (aside.count == aside.room) {
    size_t room = aside.room ? aside.room * 2 : 16;
    gi_event *grown = realloc(aside.events, room * sizeof *grown);
    if (!grown) return;
    aside.events = grown;
    aside.room = room;
  }
  aside.events[aside.count++] = *event;
  /* The interpreter makes such calls on its main thread only. */
  if (aside.count == 1 && gettid() == getpid()) python.Py_AddPendingCall(tell_aside_soon, NULL);
}

#define ALLOCATOR "libc10_cuda"
#define REACH (64 * 1024) /* of the native stack, in bytes, within which the caller of CUDA is */

static struct {
  uintptr_t start, size;
} allocator; /* the address range of its library */

static int find_allocator(struct dl_phdr_info *library, size_t size, void *unused) {
  (void)size, (void)unused;
  if (!strstr(library->dlpi_name, ALLOCATOR)) return 0;
  uintptr_t end = 0;
  for (int i = 0; i < library->dlpi_phnum; i++) {
    uintptr_t last = library->dlpi_phdr[i].p_vaddr + library->dlpi_phdr[i].p_memsz;
    if (library->dlpi_phdr[i].p_type == PT_LOAD && last > end) end = last;
  }
  allocator.start = library->dlpi_addr;
  allocator.size = end;
  return 1;
}

static uintptr_t stack_end(void) {
  static _Thread_local uintptr_t end;
  pthread_attr_t attributes;
  if (!end && !pthread_getattr_np(pthread_self(), &attributes)) {
    void *start;
    size_t size;
    if (!pthread_attr_getstack(&attributes, &start, &size)) end = (uintptr_t)start + size;
    pthread_attr_destroy(&attributes);
  }
  return end;
}

/* Whether an address of the allocator's library is on the stack, be it left over from an earlier call. */
static int allocator_may_call(void) {
  if (!allocator.size) return 0;
  const uintptr_t *at = __builtin_frame_address(0), *end = (const uintptr_t *)stack_end();
  if (end - at > (ptrdiff_t)(REACH / sizeof *at)) end = at + REACH / sizeof *at;
  int found = 0;
  for (; at < end; at++) found |= *at - allocator.start < allocator.size;
  return found;
}

/* Whether the allocator makes this call. */
static int by_allocator(void) {
  if (!allocator_may_call()) return 0; /* unwinding takes long */
  void *frames[DEPTH];
  int count = backtrace(frames, DEPTH);
  for (int i = 0; i < count; i++) {
    Dl_info info;
    if ((uintptr_t)frames[i] - allocator.start >= allocator.size) continue;
    return !dladdr(frames[i], &info) || !asked_for(frames[i], &info);
  }
  return 0;
}

static void prepare_for_allocator(void) {
  void *frame;
  backtrace(&frame, 1); /* loads the unwinder, which must not happen inside a CUDA call */
  if (!allocator.size) dl_iterate_phdr(find_allocator, NULL);
}

/* A gi_listener for calls that may come from inside the allocator. */
EXPORT void gi_hear_or_set_aside(const gi_event *event) {
  int waits = !python.PyGILState_Check() && python.PyGILState_GetThisThreadState(); /* else there is nothing to wait for */
  if (waits && ((event->event_class & GI_ALLOC) || (event->event_class == GI_SYNC && by_allocator()))) {
    set_aside(event);
    return;
  }
  gi_tell_aside();
  gi_hear(event);
}
