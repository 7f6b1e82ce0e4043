/* Events, handed to Python on the thread that made the call.
 *
 * The listener needs Python's lock, the GIL.  PyTorch's allocator calls CUDA while it holds a mutex of its
 * own, which another thread may wait for with the GIL in hand: to wait for the GIL there would stop both
 * for ever.  Such an event is set aside, and delivered at this thread's next call to CUDA from elsewhere
 * (the kernel or the copy that the memory was for), or on the main thread as soon as the interpreter runs
 * again, whichever comes first: the Python stack is then still that of the call.  A thread that does
 * nothing but allocate delivers at its end, without a stack. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "asked_for.h"
#include "sim.h"
#include "sim_internal.h"

#define MOST_ASIDE 65536

static sim_listener listener;
static uint32_t wanted;
static _Thread_local int reporting;      /* the listener's own calls are not events */
static _Thread_local int in_allocator;   /* the call that is about to be reported came from there */
static _Thread_local struct {
  sim_event *events;
  size_t count, room;
} aside;

/* The interpreter's own functions, if this process has one. */
static int (*holds_gil)(void);
static int (*call_soon)(int (*)(void *), void *);

SIM_EXPORT void sim_listen(sim_listener callback, uint32_t classes) {
  holds_gil = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
  call_soon = (int (*)(int (*)(void *), void *))dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
  sim_deliver(); /* what this thread still has, to the listener that it was meant for */
  if (callback != listener) {
    __atomic_store_n(&wanted, 0u, __ATOMIC_RELEASE);
    __atomic_store_n(&listener, callback, __ATOMIC_RELEASE);
  }
  __atomic_store_n(&wanted, callback ? classes : 0u, __ATOMIC_RELEASE);
}

int sim_wants(uint32_t event_class) { return (__atomic_load_n(&wanted, __ATOMIC_ACQUIRE) & event_class) != 0; }

static void hand_over(const sim_event *event) {
  sim_listener hears = __atomic_load_n(&listener, __ATOMIC_ACQUIRE);
  if (!hears) return; /* it left just now, on another thread */
  reporting = 1;
  hears(event);
  reporting = 0;
}

void sim_deliver(void) {
  if (!aside.count || reporting) return;
  for (size_t i = 0; i < aside.count; i++) hand_over(&aside.events[i]);
  aside.count = 0;
}

static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void thread_ends(void *unused) {
  (void)unused;
  sim_deliver();
  free(aside.events);
  aside.events = NULL;
  aside.room = 0;
}
static void make_key(void) { pthread_key_create(&at_thread_end, thread_ends); }

static int deliver_soon(void *unused) {
  (void)unused;
  sim_deliver();
  return 0;
}

static void set_aside(const sim_event *event) {
  if (aside.count == MOST_ASIDE) return; /* a thread that allocates for ever and does nothing else */
  pthread_once(&once, make_key);
  pthread_setspecific(at_thread_end, &aside);
  if (aside.count == aside.room) {
    size_t room = aside.room ? aside.room * 2 : 16;
    sim_event *grown = realloc(aside.events, room * sizeof *grown);
    if (!grown) return;
    aside.events = grown;
    aside.room = room;
  }
  aside.events[aside.count++] = *event;
  /* The interpreter runs such calls on its main thread only. */
  if (aside.count == 1 && call_soon && gettid() == getpid()) call_soon(deliver_soon, NULL);
}

/* Told by the calls whose kind does not tell: the allocator also waits for events and devices. */
void sim_called_from(const void *address) {
  Dl_info info;
  if (!sim_wants(SIM_EVENT_SYNC) || !dladdr(address, &info) || !info.dli_fname) return;
  in_allocator = strstr(info.dli_fname, "libc10_cuda") && !asked_for(address, &info);
}

void sim_report(const sim_event *event) {
  int deferred = in_allocator || (event->event_class & SIM_EVENT_ALLOC);
  in_allocator = 0;
  if (deferred && holds_gil && holds_gil()) deferred = 0; /* no need to wait for it */
  if (aside.count && !deferred) sim_deliver();
  if (reporting || !sim_wants((uint32_t)event->event_class)) return;
  sim_event full = *event;
  full.thread = (uint64_t)gettid();
  full.device = sim_current_device;
  if (!full.rows) full.rows = 1;
  if (deferred && holds_gil) set_aside(&full);
  else hand_over(&full);
}
