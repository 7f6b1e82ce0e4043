/* Whose kernel a launch is: that of torch, of the libraries that torch is built on, or of someone else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cupti.h"

#define ROOM 4096 /* kernels remembered, a power of two */
#define PROBES 8
#define LIBRARIES 256
#define DEPTH 48

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The address of the name stands for the name: a handle may come back for another kernel once the
 * first one's module is gone. */
typedef struct {
  uint64_t key;
  const char *symbol;
  kernel kernel;
} known_kernel;
static known_kernel known[ROOM];
static _Thread_local known_kernel latest; /* a loop launches the same kernel, and need not wait for the lock */
static const char *libraries[LIBRARIES]; /* their names, kept: a library may be unloaded before it is told of */

static const char *file_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static int starts_with_any(const char *text, const char *const *prefixes) {
  for (; *prefixes; prefixes++)
    if (!strncmp(text, *prefixes, strlen(*prefixes))) return 1;
  return 0;
}

/* libtorch_python launches what Inductor compiled for the code under test: that is not torch's own. */
static int from_torch(const char *library) {
  static const char *const own[] = {"libtorch_cuda", "libtorch.so", "libtorch_global", "libtorch_nvshmem", "libc10",
                                    "libcublas", "libcudnn", "libcufft", "libcurand", "libcusolver", "libcusparse",
                                    "libnccl", NULL};
  return starts_with_any(file_of(library), own);
}

/* Between the caller and here lie CUPTI, the driver and, when it is a library of its own, the runtime. */
static int is_plumbing(const char *library, const void *own_base, const void *base) {
  static const char *const between[] = {"libcupti", "libcuda.so", "libcudart", "libnvidia", NULL};
  return base == own_base || starts_with_any(file_of(library), between);
}

static const char *caller(void) {
  void *frames[DEPTH];
  Dl_info own, info;
  int count = backtrace(frames, DEPTH);
  if (!dladdr((void *)caller, &own)) return "";
  for (int i = 0; i < count; i++)
    if (dladdr(frames[i], &info) && info.dli_fname && !is_plumbing(info.dli_fname, own.dli_fbase, info.dli_fbase))
      return info.dli_fname;
  return "";
}

static const char *keep(const char *library) {
  for (int i = 0; i < LIBRARIES; i++) {
    if (!libraries[i]) libraries[i] = strdup(library);
    if (libraries[i] && !strcmp(libraries[i], library)) return libraries[i];
  }
  return "";
}

/* fork() while another thread holds the lock would leave it locked in the child for ever. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

void kernels_prepare(void) {
  void *frame;
  backtrace(&frame, 1); /* loads the unwinder */
  pthread_once(&once, watch_forks);
}

static kernel find(uint64_t key, const char *symbol) {
  size_t home = (size_t)(((key >> 4) * 0x9e3779b97f4a7c15u) >> 40), at = home % ROOM;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < PROBES; i++) {
    size_t next = (home + i) % ROOM;
    if (known[next].key == key && known[next].symbol == symbol) {
      kernel found = known[next].kernel;
      pthread_mutex_unlock(&lock);
      found.name = symbol ? symbol : "";
      return found;
    }
    if (!known[next].key) {
      at = next;
      break;
    }
  }
  pthread_mutex_unlock(&lock);

  /* The address of a host stub lies in the library that holds the kernel; a handle lies in none.
   * Without the lock: both may wait for the dynamic linker's. */
  Dl_info info;
  const char *library = dladdr((void *)(uintptr_t)key, &info) && info.dli_fname ? info.dli_fname : caller();
  pthread_mutex_lock(&lock);
  kernel found = {symbol ? symbol : "", "", from_torch(library)};
  if (!found.torch) found.library = keep(library);
  known[at].key = key;
  known[at].symbol = symbol;
  known[at].kernel = found;
  pthread_mutex_unlock(&lock);
  return found;
}

const kernel *kernel_of(uint64_t key, const char *symbol) {
  if (latest.key != key || latest.symbol != symbol || !key) latest = (known_kernel){key, symbol, find(key, symbol)};
  return &latest.kernel;
}
