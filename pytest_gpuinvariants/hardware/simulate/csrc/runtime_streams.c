/* The face of libcudart, continued: streams, events, capture, graphs, kernels, entry points. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime_face.h"

/* ---- streams -------------------------------------------------------------------------------- */

API cudaStreamCreate(cudaStream_t *out) { RETURN(sim_stream_create((void **)out, 0, 0)); }
API cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags) { RETURN(sim_stream_create((void **)out, flags, 0)); }
API cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority) {
  RETURN(sim_stream_create((void **)out, flags, priority));
}
API cudaStreamDestroy(cudaStream_t stream) { RETURN(sim_stream_destroy(stream)); }
API cudaStreamSynchronize(cudaStream_t stream) {
  sim_called_from(__builtin_return_address(0));
  RETURN(sim_stream_synchronize("cudaStreamSynchronize", stream));
}

static sim_stream *live(cudaStream_t stream) {
  sim_stream *found = sim_stream_of(stream);
  if (!found) sim_fail(cudaErrorInvalidResourceHandle);
  return found;
}

API cudaStreamQuery(cudaStream_t stream) { RETURN(sim_stream_query(stream)); }
API cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  RETURN(sim_stream_wait(stream, event, flags & cudaEventWaitExternal));
}
API cudaStreamGetPriority(cudaStream_t handle, int *priority) {
  sim_stream *stream = live(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  *priority = stream->priority;
  return cudaSuccess;
}
API cudaStreamGetFlags(cudaStream_t handle, unsigned int *flags) {
  sim_stream *stream = live(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  *flags = stream->flags;
  return cudaSuccess;
}
API cudaStreamGetDevice(cudaStream_t handle, int *device) {
  sim_stream *stream = live(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  *device = stream->device;
  return cudaSuccess;
}
/* The function runs on the calling thread, where a driver would use one of its own. */
API cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
  sim_stream *stream;
  int error = sim_stream_enter(handle, &stream);
  if (!error && !function) error = cudaErrorInvalidValue;
  if (!error && !sim_stream_add(stream, &(sim_node){.what = SIM_NODE_HOST, .as.host = {function, data}})) function(data);
  RETURN(error);
}
API cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void *data, unsigned int flags) {
  sim_stream *stream;
  int error = sim_stream_enter(handle, &stream);
  if (!error && (flags || !callback)) error = cudaErrorInvalidValue;
  if (!error && sim_stream_status(stream)) error = cudaErrorStreamCaptureUnsupported;
  if (!error) callback(handle, cudaSuccess, data);
  RETURN(error);
}

/* ---- events --------------------------------------------------------------------------------- */

API cudaEventCreate(cudaEvent_t *out) { RETURN(sim_event_create((void **)out, 0)); }
API cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags) { RETURN(sim_event_create((void **)out, flags)); }
API cudaEventDestroy(cudaEvent_t event) { RETURN(sim_event_destroy(event)); }
API cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { RETURN(sim_event_record(event, stream, 0)); }
API cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  RETURN(sim_event_record(event, stream, flags & cudaEventRecordExternal));
}
API cudaEventQuery(cudaEvent_t event) { RETURN(sim_event_query(event)); }
API cudaEventSynchronize(cudaEvent_t event) {
  sim_called_from(__builtin_return_address(0));
  RETURN(sim_event_synchronize("cudaEventSynchronize", event));
}
API cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  RETURN(sim_event_elapsed(milliseconds, start, end));
}

/* ---- capture and graphs ---------------------------------------------------------------------- */

API cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  RETURN(sim_capture_begin(stream, (int)mode, NULL));
}
API cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) { RETURN(sim_capture_end(stream, (void **)graph)); }
API cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  sim_stream *stream = live(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  *status = (enum cudaStreamCaptureStatus)sim_stream_status(stream);
  return cudaSuccess;
}

static cudaError_t capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
  sim_stream *stream = live(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  int now;
  uint64_t sequence;
  sim_graph *captured;
  sim_capture_info(stream, &now, &sequence, &captured);
  *status = (enum cudaStreamCaptureStatus)now;
  if (id) *id = sequence;
  if (graph) *graph = (cudaGraph_t)captured;
  if (dependencies) *dependencies = NULL;
  if (count) *count = 0;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                             cudaGraph_t *graph, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                             size_t *count) {
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, dependencies, count);
}
ALIAS(cudaStreamGetCaptureInfo, _ptsz)
#else
API cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
#endif
API cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  int value = (int)*mode;
  sim_exchange_capture_mode(&value);
  *mode = (enum cudaStreamCaptureMode)value;
  return cudaSuccess;
}

static sim_graph *graph_of(cudaGraph_t graph) {
  return sim_handle_is(graph, SIM_GRAPH) ? (sim_graph *)graph : NULL;
}

API cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                  const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode) {
  (void)dependencies; (void)edges; (void)count;
  RETURN(graph_of(graph) ? sim_capture_begin(stream, (int)mode, graph_of(graph)) : cudaErrorInvalidValue);
}

API cudaGraphCreate(cudaGraph_t *out, unsigned int flags) {
  int error = sim_ready();
  if (!error && (!out || flags)) error = cudaErrorInvalidValue;
  if (error) RETURN(error);
  sim_graph *graph = sim_graph_create();
  sim_handle_add(graph, SIM_GRAPH);
  *out = (cudaGraph_t)graph;
  return cudaSuccess;
}
API cudaGraphDestroy(cudaGraph_t graph) {
  if (!sim_handle_remove(graph, SIM_GRAPH)) RETURN(cudaErrorInvalidValue);
  sim_graph_release((sim_graph *)graph);
  return cudaSuccess;
}
API cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  sim_graph *found = graph_of(graph);
  if (!found || !count) RETURN(cudaErrorInvalidValue);
  if (nodes) RETURN(sim_unsupported("cudaGraphGetNodes (of the nodes themselves)", cudaErrorNotSupported));
  *count = sim_graph_nodes(found);
  return cudaSuccess;
}

API cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  (void)flags;
  sim_graph *found = graph_of(graph);
  if (!found || !out) RETURN(cudaErrorInvalidValue);
  sim_graph *built = sim_graph_clone(found);
  sim_handle_add(built, SIM_GRAPH_EXEC);
  *out = (cudaGraphExec_t)built;
  return cudaSuccess;
}
API cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
API cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  if (!sim_handle_is(handle, SIM_GRAPH_EXEC)) RETURN(cudaErrorInvalidValue);
  sim_stream *stream;
  int error = sim_stream_enter(stream_handle, &stream);
  sim_graph *graph = (sim_graph *)handle;
  if (!error && !sim_stream_add(stream, &(sim_node){.what = SIM_NODE_GRAPH, .as.graph = graph}))
    error = sim_graph_replay(graph);
  RETURN(error);
}
API cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream) {
  (void)stream;
  RETURN(sim_handle_is(handle, SIM_GRAPH_EXEC) ? cudaSuccess : cudaErrorInvalidValue);
}
API cudaGraphExecDestroy(cudaGraphExec_t handle) {
  if (!sim_handle_remove(handle, SIM_GRAPH_EXEC)) RETURN(cudaErrorInvalidValue);
  sim_graph_release((sim_graph *)handle);
  return cudaSuccess;
}
/* User objects keep host memory alive for a graph.  Here nothing of it is read after the capture, so
 * they live until the process ends. */
API cudaUserObjectCreate(cudaUserObject_t *out, void *pointer, cudaHostFn_t destroy, unsigned int count, unsigned int flags) {
  (void)pointer; (void)destroy; (void)count; (void)flags;
  void *object = malloc(16);
  sim_handle_add(object, SIM_OBJECT);
  *out = (cudaUserObject_t)object;
  return cudaSuccess;
}
API cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  (void)count;
  RETURN(sim_handle_is(object, SIM_OBJECT) ? cudaSuccess : cudaErrorInvalidValue);
}
API cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned int count, unsigned int flags) {
  (void)count; (void)flags;
  RETURN(graph_of(graph) && sim_handle_is(object, SIM_OBJECT) ? cudaSuccess : cudaErrorInvalidValue);
}

ALIAS(cudaStreamSynchronize, _ptsz) ALIAS(cudaStreamQuery, _ptsz) ALIAS(cudaStreamWaitEvent, _ptsz)
ALIAS(cudaStreamGetPriority, _ptsz) ALIAS(cudaStreamGetFlags, _ptsz) ALIAS(cudaStreamGetDevice, _ptsz)
ALIAS(cudaLaunchHostFunc, _ptsz) ALIAS(cudaStreamAddCallback, _ptsz) ALIAS(cudaEventRecord, _ptsz)
ALIAS(cudaEventRecordWithFlags, _ptsz) ALIAS(cudaStreamBeginCapture, _ptsz) ALIAS(cudaStreamEndCapture, _ptsz)
ALIAS(cudaStreamIsCapturing, _ptsz) ALIAS(cudaStreamBeginCaptureToGraph, _ptsz)
ALIAS(cudaGraphLaunch, _ptsz) ALIAS(cudaGraphUpload, _ptsz)

/* ---- kernels --------------------------------------------------------------------------------- */

SIM_EXPORT void **CUDARTAPI __cudaRegisterFatBinary(void *image) { return (void **)image; }
SIM_EXPORT void CUDARTAPI __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
SIM_EXPORT void CUDARTAPI __cudaUnregisterFatBinary(void **handle) { (void)handle; }
SIM_EXPORT void CUDARTAPI __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                                 int limit, uint3 *thread, uint3 *block, dim3 *block_size,
                                                 dim3 *grid_size, int *warp_size) {
  (void)device; (void)limit; (void)thread; (void)block; (void)block_size; (void)grid_size; (void)warp_size;
  sim_kernel_register(host, name, handle);
}
SIM_EXPORT void CUDARTAPI __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                                            size_t size, int constant, int global) {
  (void)handle; (void)host; (void)device; (void)name; (void)external; (void)size; (void)constant; (void)global;
}
SIM_EXPORT char CUDARTAPI __cudaInitModule(void **handle) { (void)handle; return 1; }

/* The <<<…>>> syntax pushes its configuration and the stub pops it, on one thread. */
static _Thread_local struct { dim3 grid, block; size_t shared; void *stream; } pushed[8];
static _Thread_local int depth;

SIM_EXPORT unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  if (depth == 8) return 1;
  pushed[depth].grid = grid;
  pushed[depth].block = block;
  pushed[depth].shared = shared;
  pushed[depth++].stream = stream;
  return 0;
}
SIM_EXPORT cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!depth) RETURN(cudaErrorInvalidConfiguration);
  depth--;
  *grid = pushed[depth].grid;
  *block = pushed[depth].block;
  *shared = pushed[depth].shared;
  *(void **)stream = pushed[depth].stream;
  return cudaSuccess;
}

static sim_shape shape(dim3 grid, dim3 block, size_t shared) {
  return (sim_shape){{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared};
}
API cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  (void)arguments;
  sim_shape is = shape(grid, block, shared);
  RETURN(sim_launch("cudaLaunchKernel", function, stream, &is));
}
API cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                cudaStream_t stream) {
  (void)arguments;
  sim_shape is = shape(grid, block, shared);
  RETURN(sim_launch("cudaLaunchCooperativeKernel", function, stream, &is));
}
API cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  (void)arguments;
  if (!config) RETURN(cudaErrorInvalidValue);
  sim_shape is = shape(config->gridDim, config->blockDim, config->dynamicSmemBytes);
  RETURN(sim_launch("cudaLaunchKernelExC", function, config->stream, &is));
}
API __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  (void)arguments;
  sim_shape is = shape(grid, block, shared);
  RETURN(sim_launch("cudaLaunchKernel", (const void *)kernel, stream, &is));
}
API __cudaGetKernel(cudaKernel_t *out, const void *function) {
  if (!sim_kernel_of(function, NULL)) RETURN(sim_not_a_kernel());
  *out = (cudaKernel_t)function;
  return cudaSuccess;
}
API cudaGetKernel(cudaKernel_t *out, const void *function) { return __cudaGetKernel(out, function); }
ALIAS(cudaLaunchKernel, _ptsz) ALIAS(cudaLaunchCooperativeKernel, _ptsz) ALIAS(cudaLaunchKernelExC, _ptsz)
ALIAS(__cudaLaunchKernel, _ptsz)

/* No image is read, so the numbers are the largest a kernel may use; but CUB picks its code by the versions. */
API cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
  sim_kernel kernel;
  if (!sim_kernel_of(function, &kernel)) RETURN(sim_not_a_kernel());
  const sim_profile *is = &sim_profiles[sim_current_device];
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 64;
  out->binaryVersion = out->ptxVersion = is->major * 10 + is->minor;
  sim_image_for(kernel.images, is->major * 10 + is->minor, &out->binaryVersion, &out->ptxVersion);
  out->maxDynamicSharedSizeBytes = is->shared_per_block_optin;
  return cudaSuccess;
}
API cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
  if (!sim_kernel_of(function, NULL)) RETURN(sim_not_a_kernel());
  int too_large = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize &&
                  value > sim_profiles[sim_current_device].shared_per_block_optin;
  RETURN(too_large ? cudaErrorInvalidValue : cudaSuccess);
}
API cudaFuncSetCacheConfig(const void *function, enum cudaFuncCache config) {
  (void)config;
  RETURN(sim_kernel_of(function, NULL) ? cudaSuccess : sim_not_a_kernel());
}
static int blocks_per_sm(int block, size_t shared) {
  const sim_profile *is = &sim_profiles[sim_current_device];
  int by_threads = block > 0 ? is->max_threads_per_sm / block : 0;
  int by_shared = shared ? (int)((size_t)is->shared_per_sm / shared) : is->max_blocks_per_sm;
  int least = by_threads < by_shared ? by_threads : by_shared;
  return least < is->max_blocks_per_sm ? least : is->max_blocks_per_sm;
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int block, size_t shared,
                                                           unsigned int flags) {
  (void)flags;
  if (!sim_kernel_of(function, NULL)) RETURN(sim_not_a_kernel());
  *count = blocks_per_sm(block, shared);
  return cudaSuccess;
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int block, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, block, shared, 0);
}

/* ---- the driver's entry points ------------------------------------------------------------------ */

SIM_EXPORT cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned int version,
                                                                  unsigned long long flags,
                                                                  enum cudaDriverEntryPointQueryResult *status) {
  static int (*look_up)(const char *, void **, int, unsigned long long, int *);
  void *driver = look_up ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver) *(void **)&look_up = dlsym(driver, "cuGetProcAddress_v2");
  *out = NULL;
  if (look_up) look_up(symbol, out, (int)version, flags, NULL);
  if (status) *status = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
ALIAS(cudaGetDriverEntryPointByVersion, _ptsz)
#if CUDART_VERSION < 13000
SIM_EXPORT cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char *symbol, void **out, unsigned long long flags,
                                                         enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(symbol, out, CUDART_VERSION, flags, status);
}
#endif
