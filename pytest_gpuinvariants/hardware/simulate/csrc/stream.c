/* Streams and stream capture.  Work runs when it is queued, so a wait never waits.
 *
 * The answers to calls that a capture forbids were read off an H200 (tests/simulate/scenarios.py). */
#define _GNU_SOURCE
#include <driver_types.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "sim_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of every field about capture */

/* One capture sequence: the stream it began on, at index 0, and those that joined through events. */
struct sim_capture {
  uint64_t id, thread;
  int mode, status; /* cudaStreamCaptureMode, cudaStreamCaptureStatus */
  int given;        /* the graph is the caller's, who keeps it if the capture fails */
  sim_graph *graph;
  sim_stream *members[SIM_CAPTURE_STREAMS];
  sim_capture *next;
};
static sim_capture *captures; /* those that did not end yet */
static uint64_t last_capture_id;
static _Thread_local int thread_mode = cudaStreamCaptureModeGlobal;

static sim_stream legacy_streams[SIM_MAX_DEVICES], per_thread_streams[SIM_MAX_DEVICES];

static int is_legacy(const void *handle) { return (uintptr_t)handle <= 1; /* 0 and cudaStreamLegacy */ }

sim_stream *sim_stream_of(void *handle) {
  if ((uintptr_t)handle <= 2) {
    sim_stream *own = is_legacy(handle) ? &legacy_streams[sim_current_device] : &per_thread_streams[sim_current_device];
    own->device = sim_current_device;
    return own;
  }
  return sim_handle_is(handle, SIM_STREAM) ? handle : NULL;
}

int sim_stream_create(void **out, unsigned flags, int priority) {
  int error = sim_ready();
  if (error) return error;
  if (!out || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
  sim_stream *stream = calloc(1, sizeof *stream);
  if (!stream) return cudaErrorMemoryAllocation;
  stream->device = sim_current_device;
  stream->flags = flags;
  stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
  sim_handle_add(stream, SIM_STREAM);
  *out = stream;
  return cudaSuccess;
}

/* ---- captures; the callers of what is static here hold the lock ---------------------------------- */

static void invalidate(sim_capture *capture) { capture->status = cudaStreamCaptureStatusInvalidated; }

static int refuse(sim_stream *stream) {
  if (!stream->capture) return cudaSuccess;
  invalidate(stream->capture);
  return cudaErrorStreamCaptureUnsupported;
}

static sim_capture *capture_by_id(uint64_t id) {
  for (sim_capture *capture = captures; id && capture; capture = capture->next)
    if (capture->id == id) return capture;
  return NULL;
}

static int join(sim_capture *capture, sim_stream *stream) {
  for (int i = 0; i < SIM_CAPTURE_STREAMS; i++)
    if (!capture->members[i]) {
      capture->members[i] = stream;
      stream->capture = capture;
      stream->slot = i;
      return cudaSuccess;
    }
  return cudaErrorStreamCaptureUnsupported;
}

static void finish(sim_capture *capture) {
  for (int i = 0; i < SIM_CAPTURE_STREAMS; i++)
    if (capture->members[i]) capture->members[i]->capture = NULL;
  for (sim_capture **at = &captures; *at; at = &(*at)->next)
    if (*at == capture) {
      *at = capture->next;
      break;
    }
  free(capture);
}

/* Work of a member that the origin does not wait for, told by the members' counts of work. */
static int unjoined(const sim_capture *capture) {
  const sim_stream *origin = capture->members[0];
  for (int i = 1; i < SIM_CAPTURE_STREAMS; i++)
    if (capture->members[i] && capture->members[i]->seen[i] != origin->seen[i]) return 1;
  return 0;
}

/* The legacy stream waits for every blocking stream, and so may not be used while one captures. */
static int implicit(const void *handle) {
  int error = cudaSuccess;
  if (!is_legacy(handle)) return error;
  for (sim_capture *capture = captures; capture; capture = capture->next)
    for (int i = 0; i < SIM_CAPTURE_STREAMS; i++) {
      const sim_stream *member = capture->members[i];
      if (!member || member->flags & cudaStreamNonBlocking || member->device != sim_current_device) continue;
      invalidate(capture);
      error = cudaErrorStreamCaptureImplicit;
    }
  return error;
}

int sim_stream_destroy(void *handle) {
  if ((uintptr_t)handle <= 2 || !sim_handle_remove(handle, SIM_STREAM)) return cudaErrorInvalidResourceHandle;
  sim_stream *stream = handle;
  sim_graph *orphan = NULL;
  int given = 0;
  pthread_mutex_lock(&lock);
  sim_capture *capture = stream->capture;
  if (capture && stream->slot == 0) { /* nobody can end it any more */
    orphan = capture->graph;
    given = capture->given;
    finish(capture);
  } else if (capture) {
    capture->members[stream->slot] = NULL;
    stream->capture = NULL;
  }
  pthread_mutex_unlock(&lock);
  if (orphan && !given && sim_handle_remove(orphan, SIM_GRAPH)) sim_graph_release(orphan);
  sim_graph_release(orphan);
  sim_retire(stream);
  return cudaSuccess;
}

int sim_stream_status(const sim_stream *stream) {
  pthread_mutex_lock(&lock);
  int status = stream->capture ? stream->capture->status : cudaStreamCaptureStatusNone;
  pthread_mutex_unlock(&lock);
  return status;
}

void sim_capture_info(const sim_stream *stream, int *status, uint64_t *id, sim_graph **graph) {
  pthread_mutex_lock(&lock);
  const sim_capture *capture = stream->capture;
  *status = capture ? capture->status : cudaStreamCaptureStatusNone;
  *id = capture ? capture->id : 0;
  *graph = capture ? capture->graph : NULL;
  pthread_mutex_unlock(&lock);
}

int sim_stream_enter(void *handle, sim_stream **out) {
  sim_stream *stream = *out = sim_stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  pthread_mutex_lock(&lock);
  int error = implicit(handle);
  if (!error && stream->capture && stream->capture->status == cudaStreamCaptureStatusInvalidated)
    error = cudaErrorStreamCaptureInvalidated;
  pthread_mutex_unlock(&lock);
  return error;
}

int sim_stream_add(sim_stream *stream, const sim_node *node) {
  pthread_mutex_lock(&lock);
  int captured = stream->capture != NULL;
  if (captured) {
    sim_graph_add(stream->capture->graph, node);
    stream->seen[stream->slot]++;
  }
  pthread_mutex_unlock(&lock);
  return captured;
}

int sim_capture_mark(const sim_stream *stream, sim_cuda_event *event) {
  pthread_mutex_lock(&lock);
  int captured = stream->capture != NULL;
  if (captured) {
    event->capture_id = stream->capture->id;
    memcpy(event->seen, stream->seen, sizeof event->seen);
  }
  pthread_mutex_unlock(&lock);
  return captured;
}

int sim_capture_asked(const sim_cuda_event *event) {
  if (!event->capture_id) return cudaSuccess;
  pthread_mutex_lock(&lock);
  sim_capture *capture = capture_by_id(event->capture_id);
  int active = capture && capture->status == cudaStreamCaptureStatusActive;
  if (active) invalidate(capture);
  pthread_mutex_unlock(&lock);
  return active ? cudaErrorCapturedEvent : cudaErrorInvalidValue;
}

/* The rule of cudaThreadExchangeStreamCaptureMode: which captures forbid an unsafe call here. */
int sim_capture_unsafe(void) {
  int error = cudaSuccess;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return error;
  uint64_t self = (uint64_t)gettid();
  pthread_mutex_lock(&lock);
  for (sim_capture *capture = captures; capture; capture = capture->next) {
    int mine = capture->thread == self && capture->mode != cudaStreamCaptureModeRelaxed;
    int elsewhere = thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (!mine && !elsewhere) continue;
    invalidate(capture);
    error = cudaErrorStreamCaptureUnsupported;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

int sim_capture_refuse(sim_stream *stream) {
  pthread_mutex_lock(&lock);
  int error = refuse(stream);
  pthread_mutex_unlock(&lock);
  return error;
}

int sim_capture_error(int error) {
  return error == cudaErrorCapturedEvent ||
         (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureImplicit);
}

void sim_exchange_capture_mode(int *mode) {
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
}

int sim_capture_begin(void *handle, int mode, sim_graph *into) {
  int error = sim_ready();
  if (error) return error;
  sim_stream *stream = sim_stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (mode < 0 || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  if (is_legacy(handle)) return cudaErrorStreamCaptureUnsupported;
  sim_capture *capture = calloc(1, sizeof *capture);
  pthread_mutex_lock(&lock);
  if (stream->capture) error = cudaErrorIllegalState;
  else {
    capture->id = ++last_capture_id;
    capture->thread = (uint64_t)gettid();
    capture->mode = mode;
    capture->status = cudaStreamCaptureStatusActive;
    capture->graph = into ? sim_graph_retain(into) : sim_graph_retain(sim_graph_create());
    capture->given = into != NULL;
    capture->next = captures;
    captures = capture;
    memset(stream->seen, 0, sizeof stream->seen);
    join(capture, stream);
    if (!into) sim_handle_add(capture->graph, SIM_GRAPH);
  }
  pthread_mutex_unlock(&lock);
  if (error) free(capture);
  return error;
}

int sim_capture_end(void *handle, void **out) {
  if (out) *out = NULL;
  sim_stream *stream = sim_stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  int error = cudaSuccess, given = 0;
  sim_graph *graph = NULL;
  pthread_mutex_lock(&lock);
  sim_capture *capture = stream->capture;
  if (!capture) error = cudaErrorIllegalState;
  else if (stream->slot) {
    invalidate(capture);
    error = cudaErrorStreamCaptureUnmatched;
  } else {
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != (uint64_t)gettid())
      error = cudaErrorStreamCaptureWrongThread;
    else if (capture->status == cudaStreamCaptureStatusInvalidated) error = cudaErrorStreamCaptureInvalidated;
    else if (unjoined(capture)) error = cudaErrorStreamCaptureUnjoined;
    graph = capture->graph;
    given = capture->given;
    finish(capture);
  }
  pthread_mutex_unlock(&lock);
  if (!graph) return error;
  if (error && !given && sim_handle_remove(graph, SIM_GRAPH)) sim_graph_release(graph);
  if (!error && !sim_handle_is(graph, SIM_GRAPH)) error = cudaErrorInvalidValue; /* destroyed meanwhile */
  if (!error && out) *out = graph;
  sim_graph_release(graph);
  return error;
}

int sim_stream_wait(void *stream_handle, void *handle, int external) {
  int error = sim_ready();
  if (error) return error;
  if (!sim_handle_is(handle, SIM_EVENT)) return cudaErrorInvalidResourceHandle;
  sim_stream *stream;
  if ((error = sim_stream_enter(stream_handle, &stream))) return error;
  const sim_cuda_event *event = handle;
  if (external && sim_stream_add(stream, &(sim_node){.what = SIM_NODE_KERNEL})) return cudaSuccess;
  pthread_mutex_lock(&lock);
  sim_capture *theirs = capture_by_id(event->capture_id), *ours = stream->capture;
  if (event->capture_id && !theirs) error = cudaErrorInvalidValue; /* of a capture that ended */
  else if (theirs && theirs->status == cudaStreamCaptureStatusInvalidated) error = cudaErrorStreamCaptureInvalidated;
  else if (theirs && ours && theirs != ours) {
    invalidate(theirs);
    invalidate(ours);
    error = cudaErrorStreamCaptureMerge;
  } else if (theirs && !ours) {
    if (is_legacy(stream_handle)) {
      invalidate(theirs);
      error = cudaErrorStreamCaptureImplicit;
    } else if (!(error = join(theirs, stream))) memcpy(stream->seen, event->seen, sizeof stream->seen);
  } else if (theirs) {
    for (int i = 0; i < SIM_CAPTURE_STREAMS; i++)
      if (stream->seen[i] < event->seen[i]) stream->seen[i] = event->seen[i];
  } else if (ours && event->recorded) {
    invalidate(ours);
    error = cudaErrorStreamCaptureIsolation;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

/* ---- waiting -------------------------------------------------------------------------------------- */

static int report_wait(const char *api, void *stream, int error) {
  sim_report(&(sim_event){.api = api, .stream = (uint64_t)stream, .event_class = SIM_EVENT_SYNC, .blocking = 1,
                          .capturing = sim_capture_error(error), .result = error});
  return error;
}

int sim_stream_query(void *handle) {
  int error = sim_ready();
  if (error) return error;
  sim_stream *stream = sim_stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  pthread_mutex_lock(&lock);
  error = implicit(handle);
  if (!error) error = refuse(stream);
  pthread_mutex_unlock(&lock);
  return error ? error : sim_capture_unsafe();
}

int sim_stream_synchronize(const char *api, void *handle) { return report_wait(api, handle, sim_stream_query(handle)); }

/* A device can not be waited for while any of its streams captures, whatever the modes. */
int sim_device_synchronize(const char *api) {
  int error = sim_ready();
  if (error) return report_wait(api, NULL, error);
  pthread_mutex_lock(&lock);
  for (sim_capture *capture = captures; capture; capture = capture->next)
    for (int i = 0; i < SIM_CAPTURE_STREAMS; i++)
      if (capture->members[i] && capture->members[i]->device == sim_current_device) {
        invalidate(capture);
        error = cudaErrorStreamCaptureUnsupported;
      }
  pthread_mutex_unlock(&lock);
  return report_wait(api, NULL, error ? error : sim_capture_unsafe());
}

void sim_streams_fork(int stage) { sim_fork_lock(&lock, stage); }
