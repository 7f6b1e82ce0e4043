/* The face of libcuda, continued: copies and fills of linear memory.
 *
 * cuda.h renames most of these to their current ABI (…_v2), which # would print: so plain names are spelled. */
#include <driver_types.h>

#include "driver_face.h"

/* A call's name, and what it is called where an operand is a CUDA array, which is not simulated. */
#define NAMED(api) api, api " with a CUDA array"

/* ---- linear copies ------------------------------------------------------------------------------ */

#define COPY(name, abi, to_type, from_type, direction)                                                       \
  API name##abi(to_type to, from_type from, size_t bytes) {                                                  \
    return drv(sim_copy_linear(#name, (void *)to, (const void *)from, bytes, direction, 1, NULL));           \
  }                                                                                                          \
  API name##Async##abi(to_type to, from_type from, size_t bytes, CUstream stream) {                          \
    return drv(sim_copy_linear(#name "Async", (void *)to, (const void *)from, bytes, direction, 0, stream)); \
  }                                                                                                          \
  ALIAS(name##abi, _ptds) ALIAS(name##Async##abi, _ptsz)
COPY(cuMemcpy, , CUdeviceptr, CUdeviceptr, cudaMemcpyDefault)
COPY(cuMemcpyHtoD, _v2, CUdeviceptr, const void *, cudaMemcpyHostToDevice)
COPY(cuMemcpyDtoH, _v2, void *, CUdeviceptr, cudaMemcpyDeviceToHost)
COPY(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr, cudaMemcpyDeviceToDevice)

static CUresult peers(CUcontext one, CUcontext other) {
  int device;
  CUresult error = device_of(one, &device);
  return error ? error : device_of(other, &device);
}
static CUresult copy_peer(const char *api, CUdeviceptr to, CUcontext theirs, CUdeviceptr from, CUcontext ours,
                          size_t bytes, int blocking, CUstream stream) {
  CUresult error = peers(theirs, ours);
  if (error) return error;
  return drv(sim_copy_linear(api, (void *)to, (const void *)from, bytes, cudaMemcpyDeviceToDevice, blocking, stream));
}
API cuMemcpyPeer(CUdeviceptr to, CUcontext theirs, CUdeviceptr from, CUcontext ours, size_t bytes) {
  return copy_peer("cuMemcpyPeer", to, theirs, from, ours, bytes, 1, NULL);
}
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext theirs, CUdeviceptr from, CUcontext ours, size_t bytes,
                      CUstream stream) {
  return copy_peer("cuMemcpyPeerAsync", to, theirs, from, ours, bytes, 0, stream);
}
ALIAS(cuMemcpyPeer, _ptds) ALIAS(cuMemcpyPeerAsync, _ptsz)

/* ---- copies within a structure ------------------------------------------------------------------ */

typedef struct {
  CUmemorytype type;
  const void *host;
  CUdeviceptr device;
  size_t x, y, z, pitch, height;
} side;
/* One side, src or dst, of a 2D or of a 3D copy. */
#define SIDE(p, which, at_z, rows)                                                                        \
  (side){p->which##MemoryType, p->which##Host, p->which##Device, p->which##XInBytes, p->which##Y, at_z, \
         p->which##Pitch, rows}
#define SIDE_2D(p, which) SIDE(p, which, 0, 0)
#define SIDE_3D(p, which) SIDE(p, which, p->which##Z, p->which##Height)

static char *start(side at) {
  const char *base = at.type == CU_MEMORYTYPE_HOST ? at.host : (const char *)at.device;
  return (char *)base + (at.z * at.height + at.y) * at.pitch + at.x;
}
static int direction(side to, side from) {
  if (to.type == CU_MEMORYTYPE_UNIFIED || from.type == CU_MEMORYTYPE_UNIFIED) return cudaMemcpyDefault;
  return (from.type == CU_MEMORYTYPE_DEVICE) * 2 + (to.type == CU_MEMORYTYPE_DEVICE); /* in cudaMemcpyKind's order */
}
static int fits(side at, size_t width, size_t height, size_t depth) {
  int linear = at.type == CU_MEMORYTYPE_HOST || at.type == CU_MEMORYTYPE_DEVICE || at.type == CU_MEMORYTYPE_UNIFIED;
  int columns = at.pitch >= at.x && at.pitch - at.x >= width, rows = at.height >= at.y && at.height - at.y >= height;
  return linear && columns && (rows || (depth == 1 && !at.height));
}
static CUresult copy_area(const char *api, const char *of_array, side to, side from, size_t width, size_t height,
                          size_t depth, int blocking, CUstream stream) {
  if (to.type == CU_MEMORYTYPE_ARRAY || from.type == CU_MEMORYTYPE_ARRAY)
    return drv(sim_unsupported(of_array, CUDA_ERROR_NOT_SUPPORTED));
  if (!fits(to, width, height, depth) || !fits(from, width, height, depth)) return CUDA_ERROR_INVALID_VALUE;
  sim_copy copy = {.api = api, .destination = start(to), .source = start(from),
                   .bytes = width, .rows = height, .slices = depth,
                   .destination_pitch = to.pitch, .destination_slice = to.pitch * to.height,
                   .source_pitch = from.pitch, .source_slice = from.pitch * from.height,
                   .direction = direction(to, from), .blocking = blocking, .stream = stream};
  return drv(sim_run_copy(&copy));
}

static CUresult copy_2d(const char *api, const char *of_array, const CUDA_MEMCPY2D *p, int blocking, CUstream stream) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return copy_area(api, of_array, SIDE_2D(p, dst), SIDE_2D(p, src), p->WidthInBytes, p->Height, 1, blocking, stream);
}
static CUresult copy_3d(const char *api, const char *of_array, const CUDA_MEMCPY3D *p, int blocking, CUstream stream) {
  if (!p || p->srcLOD || p->dstLOD) return CUDA_ERROR_INVALID_VALUE;
  side to = SIDE_3D(p, dst), from = SIDE_3D(p, src);
  return copy_area(api, of_array, to, from, p->WidthInBytes, p->Height, p->Depth, blocking, stream);
}
/* An array knows its context, a pointer does not. */
static CUresult copy_3d_peer(const char *api, const char *of_array, const CUDA_MEMCPY3D_PEER *p, int blocking,
                             CUstream stream) {
  if (!p || p->srcLOD || p->dstLOD) return CUDA_ERROR_INVALID_VALUE;
  int arrays = p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY;
  CUresult error = arrays ? CUDA_SUCCESS : peers(p->srcContext, p->dstContext);
  if (error) return error;
  side to = SIDE_3D(p, dst), from = SIDE_3D(p, src);
  return copy_area(api, of_array, to, from, p->WidthInBytes, p->Height, p->Depth, blocking, stream);
}

#define BLOCKING(name, abi, type, copy)                                         \
  API name##abi(const type *area) { return copy(NAMED(#name), area, 1, NULL); } \
  ALIAS(name##abi, _ptds)
#define ASYNC(name, abi, type, copy)                                                                              \
  API name##Async##abi(const type *area, CUstream stream) { return copy(NAMED(#name "Async"), area, 0, stream); } \
  ALIAS(name##Async##abi, _ptsz)
BLOCKING(cuMemcpy2D, _v2, CUDA_MEMCPY2D, copy_2d) ASYNC(cuMemcpy2D, _v2, CUDA_MEMCPY2D, copy_2d)
BLOCKING(cuMemcpy2DUnaligned, _v2, CUDA_MEMCPY2D, copy_2d)
BLOCKING(cuMemcpy3D, _v2, CUDA_MEMCPY3D, copy_3d) ASYNC(cuMemcpy3D, _v2, CUDA_MEMCPY3D, copy_3d)
BLOCKING(cuMemcpy3DPeer, , CUDA_MEMCPY3D_PEER, copy_3d_peer) ASYNC(cuMemcpy3DPeer, , CUDA_MEMCPY3D_PEER, copy_3d_peer)

/* ---- batches ------------------------------------------------------------------------------------ */

#if CUDA_VERSION >= 12080
_Static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP) == sizeof(sim_operation), "one layout for driver and runtime");

static CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, size_t *failed,
                           CUstream stream) {
  return drv(sim_copy_batch("cuMemcpyBatchAsync", (void **)to, (const void **)from, sizes, count, failed, stream));
}
static CUresult copy_batch_3d(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, size_t *failed,
                              CUstream stream) {
  const sim_operation *operations = (const sim_operation *)copies;
  return drv(sim_copy_batch_3d(NAMED("cuMemcpy3DBatchAsync"), count, operations, flags, failed, stream));
}
#if CUDA_VERSION >= 13000
API cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                          CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, CUstream stream) {
  (void)attributes; (void)indices; (void)attribute_count;
  return copy_batch(to, from, sizes, count, NULL, stream);
}
API cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream) {
  return copy_batch_3d(count, copies, flags, NULL, stream);
}
ALIAS(cuMemcpyBatchAsync_v2, _ptsz) ALIAS(cuMemcpy3DBatchAsync_v2, _ptsz)
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
#endif
/* As of CUDA 12.8: with an index of the failed copy. */
API cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
                       size_t *indices, size_t attribute_count, size_t *failed, CUstream stream) {
  (void)attributes; (void)indices; (void)attribute_count;
  return copy_batch(to, from, sizes, count, failed, stream);
}
API cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags,
                         CUstream stream) {
  return copy_batch_3d(count, copies, flags, failed, stream);
}
ALIAS(cuMemcpyBatchAsync, _ptsz) ALIAS(cuMemcpy3DBatchAsync, _ptsz)
#endif

/* ---- fills -------------------------------------------------------------------------------------- */

static CUresult fill(const char *api, CUdeviceptr to, size_t pitch, unsigned value, size_t element, size_t width,
                     size_t rows, int blocking, CUstream stream) {
  sim_filling filling = {.destination = (void *)to, .pitch = pitch, .value = value, .element = element,
                         .width = width, .rows = rows, .slices = 1};
  return drv(sim_fill(api, &filling, blocking, stream));
}
#define FILL(bits, type)                                                                                               \
  API cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count) {                                                 \
    return fill("cuMemsetD" #bits, to, 0, value, sizeof value, count, 1, 1, NULL);                                     \
  }                                                                                                                    \
  API cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {                              \
    return fill("cuMemsetD" #bits "Async", to, 0, value, sizeof value, count, 1, 0, stream);                           \
  }                                                                                                                    \
  API cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t rows) {                    \
    return fill("cuMemsetD2D" #bits, to, pitch, value, sizeof value, width, rows, 1, NULL);                            \
  }                                                                                                                    \
  API cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t rows, CUstream stream) { \
    return fill("cuMemsetD2D" #bits "Async", to, pitch, value, sizeof value, width, rows, 0, stream);                  \
  }                                                                                                                    \
  ALIAS(cuMemsetD##bits##_v2, _ptds) ALIAS(cuMemsetD##bits##Async, _ptsz)                                              \
  ALIAS(cuMemsetD2D##bits##_v2, _ptds) ALIAS(cuMemsetD2D##bits##Async, _ptsz)
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
