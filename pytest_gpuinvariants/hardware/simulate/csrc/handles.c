/* Live handles: a stale or foreign one is found out here, before anything is read through it. */
#include <pthread.h>
#include <stdlib.h>

#include "sim.h"
#include "sim_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Open addressing over pointers. */
typedef struct {
  const void *handle; /* NULL: never used */
  int type;           /* 0: removed */
} slot;
static slot *slots;
static size_t slot_room, slot_used;

static size_t slot_index(const slot *table, size_t room, const void *handle) {
  size_t i = sim_hash(handle) & (room - 1);
  while (table[i].handle && table[i].handle != handle) i = (i + 1) & (room - 1);
  return i;
}

static void grow(void) {
  size_t live = 0;
  for (size_t i = 0; i < slot_room; i++) live += slots[i].type != 0;
  size_t room = slot_room ? slot_room : 1024;
  if (live * 4 >= room) room *= 2; /* else dropping the removed ones makes room enough */
  slot *grown = calloc(room, sizeof *grown);
  slot_used = 0;
  for (size_t i = 0; i < slot_room; i++)
    if (slots[i].type) {
      grown[slot_index(grown, room, slots[i].handle)] = slots[i];
      slot_used++;
    }
  free(slots);
  slots = grown;
  slot_room = room;
}

void sim_handle_add(void *handle, int type) {
  pthread_mutex_lock(&lock);
  if (slot_used * 2 >= slot_room) grow();
  size_t at = slot_index(slots, slot_room, handle);
  if (!slots[at].handle) slot_used++;
  slots[at] = (slot){handle, type};
  pthread_mutex_unlock(&lock);
}

static int handle_is(const void *handle, int type) {
  return slot_room && handle && slots[slot_index(slots, slot_room, handle)].type == type;
}

int sim_handle_is(const void *handle, int type) {
  pthread_mutex_lock(&lock);
  int is = handle_is(handle, type);
  pthread_mutex_unlock(&lock);
  return is;
}

int sim_handle_remove(void *handle, int type) {
  pthread_mutex_lock(&lock);
  int was = handle_is(handle, type);
  if (was) slots[slot_index(slots, slot_room, handle)].type = 0;
  pthread_mutex_unlock(&lock);
  return was;
}

/* Memory behind a handle is freed late: a thread that checked the handle a moment ago reads no freed
 * memory, and a new handle does not at once take a destroyed one's address and so pass for it. */
#define RETIRED 4096
void sim_retire(void *memory) {
  static void *retired[RETIRED];
  static unsigned next;
  pthread_mutex_lock(&lock);
  void *oldest = retired[next];
  retired[next] = memory;
  next = (next + 1) % RETIRED;
  pthread_mutex_unlock(&lock);
  free(oldest);
}

void sim_handles_fork(int stage) { sim_fork_lock(&lock, stage); }
