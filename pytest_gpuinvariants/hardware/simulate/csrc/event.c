/* Events: a moment, or a place in a capture. */
#define _GNU_SOURCE
#include <driver_types.h>
#include <stdlib.h>
#include <time.h>

#include "sim.h"
#include "sim_internal.h"

int sim_event_create(void **out, unsigned flags) {
  int error = sim_ready();
  if (error) return error;
  if (!out || flags & ~7u) return cudaErrorInvalidValue;
  sim_cuda_event *event = calloc(1, sizeof *event);
  if (!event) return cudaErrorMemoryAllocation;
  event->device = sim_current_device;
  event->flags = flags;
  sim_handle_add(event, SIM_EVENT);
  *out = event;
  return cudaSuccess;
}

int sim_event_destroy(void *event) {
  if (!sim_handle_remove(event, SIM_EVENT)) return cudaErrorInvalidResourceHandle;
  sim_retire(event);
  return cudaSuccess;
}

void sim_event_stamp(void *handle) {
  if (!sim_handle_is(handle, SIM_EVENT)) return;
  sim_cuda_event *event = handle;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  event->recorded = 1;
  event->capture_id = 0;
}

int sim_event_record(void *handle, void *stream_handle, int external) {
  int error = sim_ready();
  if (error) return error;
  if (!sim_handle_is(handle, SIM_EVENT)) return cudaErrorInvalidResourceHandle;
  sim_stream *stream;
  if ((error = sim_stream_enter(stream_handle, &stream))) return error;
  sim_cuda_event *event = handle;
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  /* An external event is recorded by the replay; any other marks the place in the capture. */
  if (external && sim_stream_add(stream, &(sim_node){.what = SIM_NODE_EVENT, .as.event = event})) return cudaSuccess;
  if (!sim_capture_mark(stream, event)) sim_event_stamp(event);
  return cudaSuccess;
}

int sim_event_query(void *handle) {
  int error = sim_ready();
  if (!error && !sim_handle_is(handle, SIM_EVENT)) error = cudaErrorInvalidResourceHandle;
  if (!error) error = sim_capture_asked(handle);
  return error ? error : sim_capture_unsafe();
}

int sim_event_synchronize(const char *api, void *event) {
  int error = sim_event_query(event);
  sim_report(&(sim_event){.api = api, .event_class = SIM_EVENT_SYNC, .blocking = 1,
                          .capturing = sim_capture_error(error), .result = error});
  return error;
}

int sim_event_elapsed(float *milliseconds, void *start, void *end) {
  if (!milliseconds) return cudaErrorInvalidValue;
  if (!sim_handle_is(start, SIM_EVENT) || !sim_handle_is(end, SIM_EVENT)) return cudaErrorInvalidResourceHandle;
  sim_cuda_event *first = start, *last = end;
  if ((first->flags | last->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
  if (first->capture_id || last->capture_id) return cudaErrorInvalidValue;
  if (!first->recorded || !last->recorded) return cudaErrorInvalidResourceHandle;
  *milliseconds = (float)((double)(int64_t)(last->nanoseconds - first->nanoseconds) / 1e6);
  return cudaSuccess;
}
