/* One CUDA call as a native recorder hands it to Python.  Mirrored by recorders/native.py (ctypes). */
#ifndef GPUINVARIANTS_NATIVE_EVENT_H
#define GPUINVARIANTS_NATIVE_EVENT_H

#include <stdint.h>

/* Kinds of memory, by what the driver knows about an address. */
enum { GI_WILD = -1, GI_PAGEABLE = 0, GI_PINNED = 1, GI_DEVICE = 2, GI_REGISTERED = 3 };

/* Classes of calls; a listener names the ones it wants. */
enum {
  GI_SYNC = 1,        /* the host waits for a stream, an event, a context or a device */
  GI_COPY_STALL = 2,  /* a copy or fill that blocks, may block, or was refused by a capture */
  GI_COPY_ASYNC = 4,  /* any other copy or fill */
  GI_ALLOC = 8,       /* memory taken from or given back to the driver */
  GI_LAUNCH = 16,     /* a kernel launched by anything but torch's own libraries */
  GI_TORCH_LAUNCH = 32,
  GI_NOT_SIMULATED = 64 /* with one of these: a call that the simulated runtime answers 'not supported' */
};

typedef struct {
  const char *api;      /* without the suffixes of versions and of per-thread streams */
  const char *kernel;   /* launches only: the kernel's name */
  const char *library;  /* launches only: the file that launches it */
  uint64_t bytes;
  uint64_t rows;        /* of a pitched (2D, 3D) copy; 1 for a linear one */
  uint64_t stream;
  uint64_t thread;      /* native id */
  int32_t event_class;
  int32_t destination, source; /* kinds of memory */
  int32_t blocking;     /* the call has no asynchronous contract */
  int32_t device;
  int32_t capturing;    /* the stream was being captured, or a capture refused the call */
  int32_t result;       /* the CUDA error the call returns */
} gi_event;

typedef void (*gi_listener)(const gi_event *event);

#endif
