/* Calls of threads that Python does not know.
 *
 * They have no Python stack to look at, and whoever holds Python's lock, the GIL, may be waiting for such a
 * thread: a C++ extension joins the threads that it has started, say.  So they never wait for the lock.
 * Their calls are counted here, until Python takes them: when what is armed changes, or as soon as a thread
 * that nobody waits for gets the lock. */
#include "native_threads.h"

#include <pthread.h>

#include "python.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST 1024 /* different calls, as in recorders/native.py */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t keys[MOST], counts[MOST], lost;
static gi_event events[MOST];
static size_t kept;
static int asked;     /* a thread is on its way to take them */
static void *takes;   /* the Python function that does */
static uint8_t *mark; /* is 1 while some are kept: a process that dies has not told them */

EXPORT void gi_native_threads_open(void *function) { takes = function; }
EXPORT void gi_native_threads_mark(uint8_t *byte) { mark = byte; }

static void *take(void *unused) {
  if (!python.Py_IsInitialized()) return unused;
  int gil = python.PyGILState_Ensure();
  __atomic_store_n(&asked, 0, __ATOMIC_RELEASE);
  void *answer = python.PyObject_CallFunction(takes, NULL);
  if (answer) python.Py_DecRef(answer);
  else python.PyErr_WriteUnraisable(takes);
  python.PyGILState_Release(gil);
  return unused;
}

static void have_them_taken(void) {
  if (__atomic_exchange_n(&asked, 1, __ATOMIC_ACQ_REL)) return;
  pthread_t taking;
  if (pthread_create(&taking, NULL, take, NULL)) __atomic_store_n(&asked, 0, __ATOMIC_RELEASE);
  else pthread_detach(taking);
}

int native_thread_keeps(const gi_event *event, uint64_t key) {
  if (python.PyGILState_GetThisThreadState()) return 0;
  if (!python.Py_IsInitialized()) return 1; /* at the end of the process, when nobody takes them any more */
  pthread_mutex_lock(&lock);
  size_t at = 0;
  while (at < kept && keys[at] != key) at++;
  if (at == MOST) lost++;
  else if (at < kept) counts[at]++;
  else {
    keys[at] = key;
    events[at] = *event;
    counts[at] = 1;
    kept++;
    if (mark) *mark = 1;
  }
  pthread_mutex_unlock(&lock);
  have_them_taken();
  return 1;
}

EXPORT size_t gi_native_calls(void) { return __atomic_load_n(&kept, __ATOMIC_RELAXED); }

/* Take them, MOST events and counts at most; their number.  `missed`: how many calls there was no room for. */
EXPORT size_t gi_take_native_calls(gi_event *into, uint64_t *times, uint64_t *missed) {
  pthread_mutex_lock(&lock);
  size_t taken = kept;
  for (size_t at = 0; at < taken; at++) {
    into[at] = events[at];
    times[at] = counts[at];
  }
  *missed = lost;
  kept = 0;
  lost = 0;
  pthread_mutex_unlock(&lock);
  return taken;
}

/* What was taken has been told. */
EXPORT void gi_native_calls_told(void) {
  pthread_mutex_lock(&lock);
  if (mark && !kept) *mark = 0;
  pthread_mutex_unlock(&lock);
}

/* Drop them, in a process that was forked off: a thread that is not there may have held the lock. */
EXPORT void gi_drop_native_calls(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  kept = 0;
  lost = 0;
  asked = 0;
  mark = NULL; /* the parent's */
}
