/* The face of libcudart, continued: copies and fills of linear memory. */
#include "runtime_face.h"

/* A call's name, and what it is called where an operand is a CUDA array, which is not simulated. */
#define NAMED(api) api, api " with a CUDA array"

/* ---- linear copies and copies of rows ------------------------------------------------------------- */

API cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  RETURN(sim_copy_linear("cudaMemcpy", to, from, bytes, kind, 1, NULL));
}
API cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  RETURN(sim_copy_linear("cudaMemcpyAsync", to, from, bytes, kind, 0, stream));
}
static int both_exist(int one, int other) {
  return one >= 0 && other >= 0 && one < sim_device_count && other < sim_device_count;
}
API cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  if (!both_exist(to_device, from_device)) RETURN(cudaErrorInvalidDevice);
  RETURN(sim_copy_linear("cudaMemcpyPeer", to, from, bytes, cudaMemcpyDeviceToDevice, 1, NULL));
}
API cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream) {
  if (!both_exist(to_device, from_device)) RETURN(cudaErrorInvalidDevice);
  RETURN(sim_copy_linear("cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, 0, stream));
}

static int copy_2d(const char *api, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                   size_t height, enum cudaMemcpyKind kind, int blocking, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  sim_copy copy = {.api = api, .destination = to, .source = from, .bytes = width, .rows = height,
                   .destination_pitch = to_pitch, .source_pitch = from_pitch, .slices = 1,
                   .direction = kind, .blocking = blocking, .stream = stream};
  return sim_run_copy(&copy);
}
API cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                 enum cudaMemcpyKind kind) {
  RETURN(copy_2d("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height, kind, 1, NULL));
}
API cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                      enum cudaMemcpyKind kind, cudaStream_t stream) {
  RETURN(copy_2d("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height, kind, 0, stream));
}

/* ---- copies within a structure -------------------------------------------------------------------- */

static char *corner(struct cudaPitchedPtr area, struct cudaPos at) {
  return (char *)area.ptr + at.z * area.pitch * area.ysize + at.y * area.pitch + at.x;
}
static int narrow(struct cudaPitchedPtr area, struct cudaPos at, struct cudaExtent extent) {
  return extent.height * extent.depth > 1 && (area.pitch < at.x || area.pitch - at.x < extent.width);
}
static int copy_3d(const char *api, const char *of_array, const struct cudaMemcpy3DParms *p, int blocking,
                   cudaStream_t stream) {
  if (!p) return cudaErrorInvalidValue;
  if (p->srcArray || p->dstArray) return sim_unsupported(of_array, cudaErrorNotSupported);
  if (narrow(p->dstPtr, p->dstPos, p->extent) || narrow(p->srcPtr, p->srcPos, p->extent))
    return cudaErrorInvalidPitchValue;
  sim_copy copy = {.api = api,
                   .destination = corner(p->dstPtr, p->dstPos),
                   .source = corner(p->srcPtr, p->srcPos),
                   .bytes = p->extent.width,
                   .rows = p->extent.height,
                   .slices = p->extent.depth,
                   .destination_pitch = p->dstPtr.pitch,
                   .source_pitch = p->srcPtr.pitch,
                   .destination_slice = p->dstPtr.pitch * p->dstPtr.ysize,
                   .source_slice = p->srcPtr.pitch * p->srcPtr.ysize,
                   .direction = p->kind,
                   .blocking = blocking,
                   .stream = stream};
  return sim_run_copy(&copy);
}
static int copy_3d_peer(const char *api, const char *of_array, const struct cudaMemcpy3DPeerParms *p, int blocking,
                        cudaStream_t stream) {
  if (!p) return cudaErrorInvalidValue;
  if (!both_exist(p->dstDevice, p->srcDevice)) return cudaErrorInvalidDevice;
  struct cudaMemcpy3DParms same = {.srcArray = p->srcArray, .srcPos = p->srcPos, .srcPtr = p->srcPtr,
                                   .dstArray = p->dstArray, .dstPos = p->dstPos, .dstPtr = p->dstPtr,
                                   .extent = p->extent, .kind = cudaMemcpyDefault};
  return copy_3d(api, of_array, &same, blocking, stream);
}
API cudaMemcpy3D(const struct cudaMemcpy3DParms *p) { RETURN(copy_3d(NAMED("cudaMemcpy3D"), p, 1, NULL)); }
API cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, cudaStream_t stream) {
  RETURN(copy_3d(NAMED("cudaMemcpy3DAsync"), p, 0, stream));
}
API cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *p) {
  RETURN(copy_3d_peer(NAMED("cudaMemcpy3DPeer"), p, 1, NULL));
}
API cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *p, cudaStream_t stream) {
  RETURN(copy_3d_peer(NAMED("cudaMemcpy3DPeerAsync"), p, 0, stream));
}

/* ---- batches ---------------------------------------------------------------------------------------- */

#if CUDART_VERSION >= 13000
API cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *sizes, size_t count,
                         struct cudaMemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                         cudaStream_t stream) {
  (void)attributes; (void)indices; (void)attribute_count;
  RETURN(sim_copy_batch("cudaMemcpyBatchAsync", to, from, sizes, count, NULL, stream));
}
_Static_assert(sizeof(struct cudaMemcpy3DBatchOp) == sizeof(sim_operation), "one layout for driver and runtime");
API cudaMemcpy3DBatchAsync(size_t count, struct cudaMemcpy3DBatchOp *copies, unsigned long long flags,
                           cudaStream_t stream) {
  const sim_operation *operations = (const sim_operation *)copies;
  RETURN(sim_copy_batch_3d(NAMED("cudaMemcpy3DBatchAsync"), count, operations, flags, NULL, stream));
}
ALIAS(cudaMemcpyBatchAsync, _ptsz) ALIAS(cudaMemcpy3DBatchAsync, _ptsz)
#endif

/* ---- symbols ---------------------------------------------------------------------------------------- */

/* A symbol lives in a module's image, which is not loaded here: its copies keep their shape as events. */
static int copy_symbol(const char *api, const void *other, int to_symbol, size_t bytes, int blocking,
                       cudaStream_t handle) {
  sim_stream *stream;
  int error = sim_ready();
  if (!error) error = sim_stream_enter(handle, &stream);
  if (error && !sim_capture_error(error)) return error;
  if (!bytes) return error;
  int kind = sim_classify(other, NULL, NULL, NULL), capturing = sim_stream_status(stream);
  int stalls = error || (kind != SIM_DEVICE && (blocking || kind == SIM_PAGEABLE));
  if (!error) sim_stream_add(stream, &(sim_node){.what = SIM_NODE_KERNEL}); /* as little is done in its turn */
  sim_report(&(sim_event){.api = api, .bytes = bytes, .rows = 1, .stream = (uint64_t)handle,
                          .event_class = stalls ? SIM_EVENT_COPY_STALL : SIM_EVENT_COPY_ASYNC,
                          .destination = to_symbol ? SIM_DEVICE : kind, .source = to_symbol ? kind : SIM_DEVICE,
                          .blocking = blocking, .capturing = capturing || error, .result = error});
  return error;
}
API cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  (void)symbol; (void)offset; (void)kind;
  RETURN(copy_symbol("cudaMemcpyToSymbol", from, 1, bytes, 1, NULL));
}
API cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  (void)symbol; (void)offset; (void)kind;
  RETURN(copy_symbol("cudaMemcpyToSymbolAsync", from, 1, bytes, 0, stream));
}
API cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  (void)symbol; (void)offset; (void)kind;
  RETURN(copy_symbol("cudaMemcpyFromSymbol", to, 0, bytes, 1, NULL));
}
API cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
  (void)symbol; (void)offset; (void)kind;
  RETURN(copy_symbol("cudaMemcpyFromSymbolAsync", to, 0, bytes, 0, stream));
}

/* ---- fills ------------------------------------------------------------------------------------------ */

static int fill(const char *api, struct cudaPitchedPtr area, int value, struct cudaExtent extent, int blocking,
                cudaStream_t stream) {
  sim_filling filling = {.destination = area.ptr, .pitch = area.pitch, .value = (uint32_t)value, .element = 1,
                         .width = extent.width, .rows = extent.height,
                         .slices = extent.depth, .slice = area.pitch * area.ysize};
  return sim_fill(api, &filling, blocking, stream);
}
#define AREA(to, pitch) ((struct cudaPitchedPtr){to, pitch, 0, 0})
#define EXTENT(...) ((struct cudaExtent){__VA_ARGS__})
API cudaMemset(void *to, int value, size_t bytes) {
  RETURN(fill("cudaMemset", AREA(to, 0), value, EXTENT(bytes, 1, 1), 1, NULL));
}
API cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  RETURN(fill("cudaMemsetAsync", AREA(to, 0), value, EXTENT(bytes, 1, 1), 0, stream));
}
API cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
  RETURN(fill("cudaMemset2D", AREA(to, pitch), value, EXTENT(width, height, 1), 1, NULL));
}
API cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  RETURN(fill("cudaMemset2DAsync", AREA(to, pitch), value, EXTENT(width, height, 1), 0, stream));
}
API cudaMemset3D(struct cudaPitchedPtr area, int value, struct cudaExtent extent) {
  RETURN(fill("cudaMemset3D", area, value, extent, 1, NULL));
}
API cudaMemset3DAsync(struct cudaPitchedPtr area, int value, struct cudaExtent extent, cudaStream_t stream) {
  RETURN(fill("cudaMemset3DAsync", area, value, extent, 0, stream));
}

ALIAS(cudaMemcpy, _ptds) ALIAS(cudaMemcpyAsync, _ptsz) ALIAS(cudaMemcpy2D, _ptds) ALIAS(cudaMemcpy2DAsync, _ptsz)
ALIAS(cudaMemcpy3D, _ptds) ALIAS(cudaMemcpy3DAsync, _ptsz) ALIAS(cudaMemcpy3DPeer, _ptds)
ALIAS(cudaMemcpy3DPeerAsync, _ptsz) ALIAS(cudaMemcpyToSymbol, _ptds) ALIAS(cudaMemcpyToSymbolAsync, _ptsz)
ALIAS(cudaMemcpyFromSymbol, _ptds) ALIAS(cudaMemcpyFromSymbolAsync, _ptsz) ALIAS(cudaMemset, _ptds)
ALIAS(cudaMemsetAsync, _ptsz) ALIAS(cudaMemset2D, _ptds) ALIAS(cudaMemset2DAsync, _ptsz) ALIAS(cudaMemset3D, _ptds)
ALIAS(cudaMemset3DAsync, _ptsz)
