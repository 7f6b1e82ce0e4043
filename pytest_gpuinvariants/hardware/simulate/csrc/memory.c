/* Devices and the four kinds of memory: device, pinned, registered and pageable. */
#define _GNU_SOURCE
#include <driver_types.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"
#include "sim_internal.h"

#define ALIGNMENT 512u
#define PAGE ((size_t)sysconf(_SC_PAGESIZE)) /* 64 KiB on some Arm hosts */

int sim_device_count, sim_driver_version;
sim_profile sim_profiles[SIM_MAX_DEVICES];
_Thread_local int sim_current_device;

/* One allocation.  The table is sorted by address, so that any pointer is found by bisection. */
typedef struct {
  uintptr_t base;
  size_t bytes;    /* as asked for */
  size_t reserved; /* as taken */
  int kind, device;
} block;

static block *blocks;
static size_t block_count, block_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_rwlock_t copying = PTHREAD_RWLOCK_INITIALIZER; /* taken before `lock` */
void sim_hold(void) { pthread_rwlock_rdlock(&copying); }
void sim_release(void) { pthread_rwlock_unlock(&copying); }

typedef struct {
  uintptr_t base; /* what programs see; no access */
  char *shadow;   /* the bytes */
  size_t span;
  uint64_t used;
} arena;
static arena arenas[SIM_MAX_DEVICES];

static int touched, forked;

static void at_fork(int stage) {
  sim_streams_fork(stage);
  sim_handles_fork(stage);
  sim_log_fork(stage);
  sim_fork_lock(&lock, stage);
}
static void before_fork(void) { at_fork(SIM_BEFORE_FORK); }
static void in_parent(void) { at_fork(SIM_FORK_PARENT); }
static void in_child(void) {
  at_fork(SIM_FORK_CHILD);
  forked = touched;
}

/* Like the driver, refuse a process that was forked after the parent's first use of CUDA. */
int sim_ready(void) {
  if (forked) return cudaErrorInitializationError;
  touched = 1;
  return sim_device_count ? cudaSuccess : cudaErrorNoDevice;
}
int sim_initialized(void) { return touched; }

SIM_EXPORT int sim_configure(const sim_profile *profiles, int count, int driver_version) {
  if (count < 1 || count > SIM_MAX_DEVICES || sim_device_count) return cudaErrorInvalidValue;
  memcpy(sim_profiles, profiles, sizeof(sim_profile) * (size_t)count);
  sim_driver_version = driver_version;
  sim_device_count = count;
  pthread_atfork(before_fork, in_parent, in_child);
  return cudaSuccess;
}

/* Index of the first block whose base is above `address`. */
static size_t above(uintptr_t address) {
  size_t low = 0, high = block_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].base > address) high = middle;
    else low = middle + 1;
  }
  return low;
}

static block *find(uintptr_t address) {
  size_t index = above(address);
  if (!index) return NULL;
  block *candidate = &blocks[index - 1];
  /* An empty remainder counts: one past the end belongs to nobody. */
  return address - candidate->base < candidate->bytes ? candidate : NULL;
}

static int insert(block value) {
  if (block_count == block_room) {
    size_t room = block_room ? block_room * 2 : 256;
    block *grown = realloc(blocks, room * sizeof *grown);
    if (!grown) return cudaErrorMemoryAllocation;
    blocks = grown;
    block_room = room;
  }
  size_t at = above(value.base);
  memmove(&blocks[at + 1], &blocks[at], (block_count - at) * sizeof *blocks);
  blocks[at] = value;
  block_count++;
  return cudaSuccess;
}

static void erase(block *victim) {
  size_t at = (size_t)(victim - blocks);
  memmove(victim, victim + 1, (block_count - at - 1) * sizeof *blocks);
  block_count--;
}

static arena *arena_of(uintptr_t address) {
  for (int i = 0; i < sim_device_count; i++)
    if (arenas[i].base && address - arenas[i].base < arenas[i].span) return &arenas[i];
  return NULL;
}

static int open_arena(int device) {
  arena *here = &arenas[device];
  if (here->base) return cudaSuccess;
  /* Twice the memory in addresses, so that fragmentation is never the reason for a failure. */
  size_t span = (size_t)sim_profiles[device].memory_bytes * 2;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *base = mmap(NULL, span, PROT_NONE, flags, -1, 0);
  /* Without access until allocated, so that a system that does not overcommit counts only what is used. */
  void *shadow = mmap(NULL, span, PROT_NONE, flags, -1, 0);
  if (base == MAP_FAILED || shadow == MAP_FAILED) return cudaErrorMemoryAllocation;
  here->base = (uintptr_t)base;
  here->shadow = shadow;
  here->span = span;
  return cudaSuccess;
}

/* Whole pages around a range of the shadow. */
static int unlock_pages(const arena *here, uintptr_t base, size_t bytes) {
  uintptr_t first = (base - here->base) & ~(uintptr_t)(PAGE - 1);
  uintptr_t last = (base - here->base + bytes + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
  return mprotect(here->shadow + first, last - first, PROT_READ | PROT_WRITE) ? cudaErrorMemoryAllocation : cudaSuccess;
}

/* The lowest gap of `need` bytes in a device's range, 0 if none. */
static uintptr_t gap(const arena *here, size_t need) {
  uintptr_t cursor = here->base;
  for (size_t i = above(here->base - 1); i < block_count; i++) {
    if (blocks[i].base >= here->base + here->span) break;
    if (blocks[i].base - cursor >= need) return cursor;
    cursor = blocks[i].base + blocks[i].reserved;
  }
  return here->base + here->span - cursor >= need ? cursor : 0;
}

int sim_malloc(void **out, size_t bytes, int device) {
  int error = sim_ready();
  if (error) return error;
  if (!out || device < 0 || device >= sim_device_count) return cudaErrorInvalidValue;
  *out = NULL;
  if (!bytes) return cudaSuccess;
  if (bytes > sim_profiles[device].memory_bytes) return cudaErrorMemoryAllocation;
  size_t need = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  pthread_mutex_lock(&lock);
  error = open_arena(device);
  arena *here = &arenas[device];
  if (!error && here->used + need > sim_profiles[device].memory_bytes) error = cudaErrorMemoryAllocation;
  uintptr_t base = error ? 0 : gap(here, need);
  if (!error && !base) error = cudaErrorMemoryAllocation;
  if (!error) error = unlock_pages(here, base, need);
  if (!error) error = insert((block){base, bytes, need, SIM_DEVICE, device});
  if (!error) {
    here->used += need;
    *out = (void *)base;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

int sim_free(void *pointer) {
  int error = sim_ready();
  if (error || !pointer) return error;
  pthread_mutex_lock(&lock);
  block *found = find((uintptr_t)pointer);
  if (!found || found->kind != SIM_DEVICE || found->base != (uintptr_t)pointer) {
    error = cudaErrorInvalidValue; /* freed twice, never allocated, or the host's */
  } else {
    arena *here = &arenas[found->device];
    uintptr_t offset = found->base - here->base;
    here->used -= found->reserved;
    /* Whole pages go back to the system; a page shared with a neighbour keeps the neighbour's bytes. */
    uintptr_t first = (offset + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t last = (offset + found->reserved) & ~(uintptr_t)(PAGE - 1);
    if (last > first) madvise(here->shadow + first, last - first, MADV_DONTNEED);
    uintptr_t head = first < offset + found->reserved ? first : offset + found->reserved;
    memset(here->shadow + offset, 0, head - offset);
    if (last >= first && last < offset + found->reserved)
      memset(here->shadow + last, 0, offset + found->reserved - last);
    erase(found);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

/* A program may unmap registered memory and forget to tell: new pinned memory may then take its addresses. */
static void forget_registered(uintptr_t start, uintptr_t end) {
  for (size_t i = above(end - 1); i-- > 0 && blocks[i].base + blocks[i].bytes > start;)
    if (blocks[i].kind == SIM_REGISTERED) erase(&blocks[i]);
}

int sim_host_alloc(void **out, size_t bytes) {
  int error = sim_ready();
  if (error) return error;
  if (!out) return cudaErrorInvalidValue;
  *out = NULL;
  if (!bytes) return cudaSuccess;
  size_t reserved = (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
  if (reserved < bytes) return cudaErrorMemoryAllocation;
  void *memory = mmap(NULL, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
  uintptr_t start = (uintptr_t)memory;
  pthread_mutex_lock(&lock);
  forget_registered(start, start + reserved);
  error = insert((block){start, bytes, reserved, SIM_PINNED, sim_current_device});
  pthread_mutex_unlock(&lock);
  if (error) munmap(memory, reserved);
  else *out = memory;
  return error;
}

int sim_host_free(void *pointer) {
  int error = sim_ready();
  if (error || !pointer) return error;
  pthread_rwlock_wrlock(&copying);
  pthread_mutex_lock(&lock);
  block *found = find((uintptr_t)pointer);
  if (!found || found->kind != SIM_PINNED || found->base != (uintptr_t)pointer) {
    error = cudaErrorInvalidValue;
  } else {
    munmap(pointer, found->reserved);
    erase(found);
  }
  pthread_mutex_unlock(&lock);
  pthread_rwlock_unlock(&copying);
  return error;
}

int sim_mapped(const void *pointer, size_t bytes) {
  uintptr_t first = (uintptr_t)pointer & ~(uintptr_t)(PAGE - 1);
  uintptr_t last = ((uintptr_t)pointer + bytes + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
  unsigned char states[1024];
  if (last <= first) return 0;
  while (first < last) {
    size_t part = last - first < sizeof states * PAGE ? last - first : sizeof states * PAGE;
    if (mincore((void *)first, part, states)) return 0;
    first += part;
  }
  return 1;
}

int sim_host_register(void *pointer, size_t bytes, unsigned flags) {
  const unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
  int error = sim_ready();
  if (error) return error;
  uintptr_t start = (uintptr_t)pointer;
  if (!pointer || !bytes || flags & ~known || start + bytes < start) return cudaErrorInvalidValue;
  pthread_mutex_lock(&lock);
  block *at = find(start);
  size_t next = above(start);
  if (!at && next < block_count && blocks[next].base < start + bytes) at = &blocks[next];
  if (at) error = at->kind == SIM_REGISTERED ? cudaErrorHostMemoryAlreadyRegistered : cudaErrorInvalidValue;
  else if (arena_of(start) || !sim_mapped(pointer, bytes)) error = cudaErrorInvalidValue;
  else error = insert((block){start, bytes, bytes, SIM_REGISTERED, sim_current_device});
  pthread_mutex_unlock(&lock);
  return error;
}

int sim_host_unregister(void *pointer) {
  int error = sim_ready();
  if (error) return error;
  pthread_mutex_lock(&lock);
  block *found = find((uintptr_t)pointer);
  if (!found) error = cudaErrorHostMemoryNotRegistered;
  else if (found->kind != SIM_REGISTERED || found->base != (uintptr_t)pointer) error = cudaErrorInvalidValue;
  else erase(found);
  pthread_mutex_unlock(&lock);
  return error;
}

uint64_t sim_used(int device) {
  pthread_mutex_lock(&lock);
  uint64_t used = arenas[device].used;
  pthread_mutex_unlock(&lock);
  return used;
}

int sim_classify(const void *pointer, int *device, void **base, size_t *bytes) {
  uintptr_t address = (uintptr_t)pointer;
  pthread_mutex_lock(&lock);
  block *found = find(address);
  int kind = found ? found->kind : arena_of(address) ? SIM_WILD : SIM_PAGEABLE;
  if (device) *device = found ? found->device : -1;
  if (base) *base = found ? (void *)found->base : NULL;
  if (bytes) *bytes = found ? found->bytes : 0;
  pthread_mutex_unlock(&lock);
  return kind;
}

char *sim_shadow(const void *pointer) {
  arena *here = arena_of((uintptr_t)pointer);
  return here ? here->shadow + ((uintptr_t)pointer - here->base) : (char *)pointer;
}
