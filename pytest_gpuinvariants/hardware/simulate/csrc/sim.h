/* The simulated CUDA device: state shared by the runtime, driver and NVML faces.
 *
 * Device memory is a range of addresses that the host can not touch (PROT_NONE) with a shadow of
 * the same size beside it: a device pointer dereferenced on the host faults, as on silicon, while
 * the simulator reads and writes the shadow.  Copies run at once, in the order of the calls;
 * kernels are recorded and never run.
 */
#ifndef GPUINVARIANTS_SIM_H
#define GPUINVARIANTS_SIM_H

#include <stddef.h>
#include <stdint.h>

#include "native_event.h"

#define SIM_MAX_DEVICES 16
#define SIM_EXPORT __attribute__((visibility("default")))

/* What one simulated device declares.  Mirrored by runtime.py (ctypes). */
typedef struct {
  char name[96];
  char uuid[48];
  int32_t major, minor;
  int32_t sm_count;
  int32_t l2_bytes;
  int32_t shared_per_block_optin, shared_per_sm;
  int32_t memory_bus_bits;
  int32_t max_threads_per_sm, max_blocks_per_sm;
  int32_t clock_khz, memory_clock_khz;
  uint64_t memory_bytes;
} sim_profile;

/* Events, as every native recorder hands them over. */
enum { SIM_PAGEABLE = GI_PAGEABLE, SIM_PINNED = GI_PINNED, SIM_DEVICE = GI_DEVICE, SIM_REGISTERED = GI_REGISTERED };
enum {
  SIM_EVENT_SYNC = GI_SYNC,
  SIM_EVENT_COPY_STALL = GI_COPY_STALL,
  SIM_EVENT_COPY_ASYNC = GI_COPY_ASYNC,
  SIM_EVENT_ALLOC = GI_ALLOC,
  SIM_EVENT_LAUNCH = GI_LAUNCH,
  SIM_EVENT_TORCH_LAUNCH = GI_TORCH_LAUNCH,
  SIM_EVENT_NOT_SIMULATED = GI_NOT_SIMULATED
};
typedef gi_event sim_event;
typedef gi_listener sim_listener;

/* Set up and observation, called from Python before torch is imported. */
int sim_configure(const sim_profile *profiles, int count, int driver_version);
void sim_listen(sim_listener listener, uint32_t classes);
int sim_unsupported_count(void);
const char *sim_unsupported_name(int index);
uint64_t sim_launch_count(void);
void sim_refuse(int on); /* launches of kernels that are neither torch's nor a copy's */

/* Devices. */
extern int sim_device_count, sim_driver_version;
extern sim_profile sim_profiles[SIM_MAX_DEVICES];
extern _Thread_local int sim_current_device;
int sim_ready(void); /* 0, or the error every call returns after a fork */
int sim_initialized(void); /* whether a call has been made that initialises CUDA */

/* Memory.  Errors are CUDA runtime codes, which the driver's share for these cases. */
int sim_malloc(void **out, size_t bytes, int device);
int sim_free(void *pointer);
int sim_host_alloc(void **out, size_t bytes);
int sim_host_free(void *pointer);
int sim_host_register(void *pointer, size_t bytes, unsigned flags);
int sim_host_unregister(void *pointer);
uint64_t sim_used(int device);
/* The kind of memory at an address, its device, and the start and size of its allocation. */
int sim_classify(const void *pointer, int *device, void **base, size_t *bytes);

/* Copies and fills.  `direction` is a cudaMemcpyKind. */
typedef struct {
  const char *api;
  void *destination;
  const void *source;
  size_t bytes; /* of one row */
  size_t rows, destination_pitch, source_pitch;
  size_t slices, destination_slice, source_slice; /* slice strides in bytes */
  int direction;
  int blocking;
  int uncapturable; /* a capture refuses it */
  void *stream;
} sim_copy;
typedef struct {
  void *destination;
  size_t pitch;
  uint32_t value;
  size_t element, width, rows; /* bytes of the pattern (1, 2 or 4), elements of a row, rows */
  size_t slices, slice;        /* slice stride in bytes */
} sim_filling;
int sim_run_copy(const sim_copy *copy);
int sim_copy_linear(const char *api, void *destination, const void *source, size_t bytes,
                    int direction, int blocking, void *stream);
int sim_fill(const char *api, const sim_filling *fill, int blocking, void *stream);

/* Batches; `failed`, where it is not NULL, takes the index of the copy that failed. */
int sim_copy_batch(const char *api, void *const *to, const void *const *from, const size_t *sizes, size_t count,
                   size_t *failed, void *stream);
typedef struct { /* cudaMemcpy3DOperand and CUmemcpy3DOperand */
  int type;
  void *pointer;
  size_t row, layer; /* 0: packed as the copy's extent */
  uint64_t place;
} sim_operand;
typedef struct { /* cudaMemcpy3DBatchOp and CUDA_MEMCPY3D_BATCH_OP */
  sim_operand source, destination;
  size_t width, height, depth;
  int order;
  unsigned flags;
} sim_operation;
int sim_copy_batch_3d(const char *api, const char *of_array, size_t count, const sim_operation *operations,
                      unsigned long long flags, size_t *failed, void *stream);

/* Live handles: a stale or foreign one is an error, never a crash. */
enum { SIM_STREAM = 1, SIM_EVENT, SIM_GRAPH, SIM_GRAPH_EXEC, SIM_MODULE, SIM_KERNEL, SIM_OBJECT, SIM_BLAS };
void sim_handle_add(void *handle, int type);
int sim_handle_is(const void *handle, int type);
int sim_handle_remove(void *handle, int type);
void sim_retire(void *memory); /* in place of free(), for what a handle led to */

/* Streams and events. */
#define SIM_CAPTURE_STREAMS 64
typedef struct sim_graph sim_graph;
typedef struct sim_capture sim_capture;
typedef struct {
  int device, priority;
  unsigned flags;
  sim_capture *capture;                /* the sequence it is part of, NULL outside one */
  int slot;                            /* its place in that sequence */
  uint32_t seen[SIM_CAPTURE_STREAMS];  /* work of each place that precedes this stream's next */
} sim_stream;
typedef struct {
  int device, recorded;
  unsigned flags;
  uint64_t nanoseconds;
  uint64_t capture_id; /* of the sequence it was last recorded in, 0 when in none */
  uint32_t seen[SIM_CAPTURE_STREAMS];
} sim_cuda_event;

int sim_stream_create(void **out, unsigned flags, int priority);
int sim_stream_destroy(void *stream);
sim_stream *sim_stream_of(void *stream); /* NULL for a bad handle */
/* The stream behind a handle, if work may be queued on it now; else the error. */
int sim_stream_enter(void *handle, sim_stream **out);
int sim_stream_query(void *stream);
int sim_stream_wait(void *stream, void *event, int external);
int sim_stream_synchronize(const char *api, void *stream);
int sim_device_synchronize(const char *api);
int sim_event_create(void **out, unsigned flags);
int sim_event_destroy(void *event);
int sim_event_record(void *event, void *stream, int external);
void sim_event_stamp(void *event); /* it happens now */
int sim_event_query(void *event);
int sim_event_synchronize(const char *api, void *event);
int sim_event_elapsed(float *milliseconds, void *start, void *end);

/* Graphs. */
enum { SIM_NODE_KERNEL, SIM_NODE_COPY, SIM_NODE_FILL, SIM_NODE_HOST, SIM_NODE_EVENT, SIM_NODE_GRAPH };
typedef struct {
  int what;
  union {
    sim_copy copy;
    sim_filling fill;
    struct {
      void (*function)(void *);
      void *data;
    } host;
    void *event;
    sim_graph *graph;
  } as;
} sim_node;
sim_graph *sim_graph_create(void);
sim_graph *sim_graph_retain(sim_graph *graph);
void sim_graph_release(sim_graph *graph);
sim_graph *sim_graph_clone(const sim_graph *graph);
size_t sim_graph_nodes(const sim_graph *graph);
void sim_graph_add(sim_graph *graph, const sim_node *node);
int sim_graph_replay(const sim_graph *graph);
/* What a copy or a fill does once its stream's turn has come. */
int sim_copy_now(const sim_copy *copy);
int sim_fill_now(const sim_filling *fill);

/* Capture. */
int sim_capture_begin(void *stream, int mode, sim_graph *into);
int sim_capture_end(void *stream, void **graph);
int sim_stream_status(const sim_stream *stream); /* a cudaStreamCaptureStatus */
void sim_capture_info(const sim_stream *stream, int *status, uint64_t *id, sim_graph **graph);
int sim_stream_add(sim_stream *stream, const sim_node *node);             /* 1 if captured */
int sim_capture_mark(const sim_stream *stream, sim_cuda_event *event);    /* 1 if captured */
int sim_capture_asked(const sim_cuda_event *event); /* error of asking for an event of a capture, else 0 */
int sim_capture_unsafe(void);                       /* error of a call that captures forbid, else 0 */
int sim_capture_refuse(sim_stream *stream);         /* the same of a call that its stream's capture forbids */
int sim_capture_error(int error);                   /* whether an error is one that a capture causes */
void sim_exchange_capture_mode(int *mode);

/* Kernels. */
typedef struct {
  const char *name;
  const char *library; /* the file it came from */
  int torch;           /* from one of torch's own libraries, or of cuBLAS */
  const void *images;  /* the wrapper of its fat binary, NULL where there is none */
} sim_kernel;
void sim_kernel_register(const void *host_function, const char *name, const void *images);
/* The architectures of the image that a card of compute capability 9.0 (90) would take; 0 when that is not known. */
int sim_image_for(const void *images, int card, int *binary, int *ptx);
int sim_kernel_of(const void *function, sim_kernel *out); /* 0 when it is not one */
void *sim_kernel_new(const char *name, const char *library);
const char *sim_library_of(const void *address);
typedef struct {
  unsigned grid[3], block[3];
  size_t shared;
} sim_shape;
int sim_launch(const char *api, const void *function, void *stream, const sim_shape *shape);
int sim_not_a_kernel(void); /* the runtime's error for a function it does not know */

/* Errors and the call log. */
int sim_fail(int error); /* remembers it as the thread's last error */
int sim_last_error(int clear);
const char *sim_error_name(int error);
const char *sim_driver_error_name(int error);
const char *sim_error_text(int error);
int sim_unsupported(const char *name, int error); /* logs and reports the name, returns the error */
int sim_wants(uint32_t event_class);
void sim_report(const sim_event *event);
void sim_called_from(const void *return_address); /* before a call that waits */
int sim_attribute(int attribute, int device, int *value); /* CUdevice_attribute numbering */
void sim_uuid_bytes(int device, unsigned char out[16]);

#endif
