/* Shared by the core's own files only. */
#ifndef GPUINVARIANTS_SIM_INTERNAL_H
#define GPUINVARIANTS_SIM_INTERNAL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_WILD (-1) /* an address of the device's range that no allocation holds */

/* Where the simulator keeps the bytes of a device address; a host address is its own shadow. */
char *sim_shadow(const void *pointer);
/* Whether every page of a host range is mapped. */
int sim_mapped(const void *pointer, size_t bytes);

/* Between these two no pinned memory is given back to the system: like the driver, freeing waits for copies. */
void sim_hold(void);
void sim_release(void);

/* Hand over what this thread has set aside. */
void sim_deliver(void);

/* A place in a table of a power-of-two size: addresses differ least in their low bits. */
static inline size_t sim_hash(const void *pointer) {
  return (size_t)((((uintptr_t)pointer >> 4) * 0x9E3779B97F4A7C15ull) >> 20);
}

/* fork() while another thread holds a lock would leave it locked in the child for ever. */
enum { SIM_BEFORE_FORK, SIM_FORK_PARENT, SIM_FORK_CHILD };
static inline void sim_fork_lock(pthread_mutex_t *lock, int stage) {
  if (stage == SIM_BEFORE_FORK) pthread_mutex_lock(lock);
  else if (stage == SIM_FORK_PARENT) pthread_mutex_unlock(lock);
  else pthread_mutex_init(lock, NULL);
}
void sim_handles_fork(int stage);
void sim_streams_fork(int stage);
void sim_log_fork(int stage);

#endif
