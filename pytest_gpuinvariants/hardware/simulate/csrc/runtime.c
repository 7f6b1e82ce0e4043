/* The face of libcudart: the calls that PyTorch, FlashInfer and vLLM make.  The rest of the library's
 * names are generated as stubs that answer cudaErrorNotSupported (see build.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime_face.h"

/* ---- devices -------------------------------------------------------------------------------- */

API cudaGetDeviceCount(int *count) {
  if (!count) RETURN(cudaErrorInvalidValue);
  *count = sim_device_count; /* known already to a forked child, which may ask for nothing else */
  int error = sim_ready();
  RETURN(error == cudaErrorInitializationError ? cudaSuccess : error);
}
API cudaGetDevice(int *device) {
  if (!device) RETURN(cudaErrorInvalidValue);
  *device = sim_current_device;
  RETURN(sim_ready());
}
API cudaSetDevice(int device) {
  if (device < 0 || device >= sim_device_count) RETURN(cudaErrorInvalidDevice);
  sim_current_device = device;
  RETURN(sim_ready());
}
API cudaInitDevice(int device, unsigned int flags, unsigned int mask) { (void)flags; (void)mask; return cudaSetDevice(device); }
API cudaDriverGetVersion(int *version) { if (!version) RETURN(cudaErrorInvalidValue); *version = sim_driver_version; return cudaSuccess; }
API cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  sim_ready(); /* initialises; what a device is, a forked child may ask, too */
  RETURN(sim_attribute((int)attribute, device, value));
}

static int get(int attribute, int device) {
  int value = 0;
  sim_attribute(attribute, device, &value);
  return value;
}

API cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
  if (!out) RETURN(cudaErrorInvalidValue);
  if (device < 0 || device >= sim_device_count) RETURN(cudaErrorInvalidDevice);
  sim_ready();
  const sim_profile *is = &sim_profiles[device];
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "%s", is->name);
  sim_uuid_bytes(device, (unsigned char *)out->uuid.bytes);
  out->totalGlobalMem = is->memory_bytes;
  out->major = is->major;
  out->minor = is->minor;
  out->multiProcessorCount = is->sm_count;
  out->l2CacheSize = is->l2_bytes;
  out->memoryBusWidth = is->memory_bus_bits;
  out->sharedMemPerMultiprocessor = (size_t)is->shared_per_sm;
  out->sharedMemPerBlockOptin = (size_t)is->shared_per_block_optin;
  out->sharedMemPerBlock = (size_t)get(cudaDevAttrMaxSharedMemoryPerBlock, device);
  out->reservedSharedMemPerBlock = (size_t)get(cudaDevAttrReservedSharedMemoryPerBlock, device);
  out->maxThreadsPerMultiProcessor = is->max_threads_per_sm;
  out->maxBlocksPerMultiProcessor = is->max_blocks_per_sm;
  out->maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock, device);
  out->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock, device);
  out->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor, device);
  out->warpSize = get(cudaDevAttrWarpSize, device);
  out->memPitch = 0x7fffffff;
  out->totalConstMem = 65536;
  out->textureAlignment = 512;
  out->texturePitchAlignment = 32;
  const int dimensions[] = {1024, 1024, 64}, grid[] = {0x7fffffff, 65535, 65535};
  memcpy(out->maxThreadsDim, dimensions, sizeof dimensions);
  memcpy(out->maxGridSize, grid, sizeof grid);
  out->pciBusID = get(cudaDevAttrPciBusId, device);
  out->asyncEngineCount = get(cudaDevAttrAsyncEngineCount, device);
#if CUDART_VERSION < 13000
  out->clockRate = is->clock_khz;
  out->memoryClockRate = is->memory_clock_khz;
  out->deviceOverlap = 1;
#endif
  out->clusterLaunch = get(cudaDevAttrClusterLaunch, device);
  out->canMapHostMemory = out->concurrentKernels = out->ECCEnabled = out->unifiedAddressing = 1;
  out->streamPrioritiesSupported = out->globalL1CacheSupported = out->localL1CacheSupported = 1;
  out->cooperativeLaunch = out->hostRegisterSupported = out->canUseHostPointerForRegisteredMem = 1;
  out->computePreemptionSupported = out->ipcEventSupported = 1;
  return cudaSuccess;
}

API cudaDeviceGetPCIBusId(char *out, int length, int device) {
  if (device < 0 || device >= sim_device_count) RETURN(cudaErrorInvalidDevice);
  snprintf(out, (size_t)length, "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}
API cudaDeviceGetByPCIBusId(int *device, const char *bus) {
  char name[32];
  for (int i = 0; i < sim_device_count; i++) {
    cudaDeviceGetPCIBusId(name, sizeof name, i);
    if (!strcasecmp(name, bus)) { *device = i; return cudaSuccess; }
  }
  RETURN(cudaErrorInvalidDevice);
}
API cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (device < 0 || peer < 0 || device >= sim_device_count || peer >= sim_device_count) RETURN(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}
static char peers[SIM_MAX_DEVICES][SIM_MAX_DEVICES]; /* [from][to]: access is enabled */
API cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  int error = sim_ready();
  if (error) RETURN(error);
  if (flags) RETURN(cudaErrorInvalidValue);
  if (peer < 0 || peer >= sim_device_count) RETURN(cudaErrorInvalidDevice);
  if (peer == sim_current_device) RETURN(cudaErrorPeerAccessUnsupported);
  RETURN(__atomic_exchange_n(&peers[sim_current_device][peer], 1, __ATOMIC_RELAXED) ? cudaErrorPeerAccessAlreadyEnabled
                                                                                   : cudaSuccess);
}
API cudaDeviceDisablePeerAccess(int peer) {
  if (peer < 0 || peer >= sim_device_count) RETURN(cudaErrorInvalidDevice);
  RETURN(__atomic_exchange_n(&peers[sim_current_device][peer], 0, __ATOMIC_RELAXED) ? cudaSuccess
                                                                                   : cudaErrorPeerAccessNotEnabled);
}
API cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
API cudaDeviceSynchronize(void) {
  sim_called_from(__builtin_return_address(0));
  RETURN(sim_device_synchronize("cudaDeviceSynchronize"));
}
API cudaDeviceGetCacheConfig(enum cudaFuncCache *config) { *config = cudaFuncCachePreferNone; return cudaSuccess; }
API cudaProfilerStart(void) { return cudaSuccess; }
API cudaProfilerStop(void) { return cudaSuccess; }

/* ---- errors --------------------------------------------------------------------------------- */

API cudaGetLastError(void) { return (cudaError_t)sim_last_error(1); }
API cudaPeekAtLastError(void) { return (cudaError_t)sim_last_error(0); }
SIM_EXPORT const char *CUDARTAPI cudaGetErrorName(cudaError_t error) { return sim_error_name(error); }
SIM_EXPORT const char *CUDARTAPI cudaGetErrorString(cudaError_t error) { return sim_error_text(error); }

/* ---- memory --------------------------------------------------------------------------------- */

static int allocation(const char *api, size_t bytes, int error) {
  sim_report(&(sim_event){.api = api, .bytes = bytes, .event_class = SIM_EVENT_ALLOC, .blocking = 1,
                          .capturing = sim_capture_error(error), .result = error});
  return error;
}
static int allocate(const char *api, void **out, size_t bytes) {
  int error = sim_capture_unsafe();
  return allocation(api, bytes, error ? error : sim_malloc(out, bytes, sim_current_device));
}
static int give_back(const char *api, int (*how)(void *), void *pointer) {
  int error = sim_capture_unsafe();
  return allocation(api, 0, error ? error : how(pointer));
}

API cudaMalloc(void **out, size_t bytes) { RETURN(allocate("cudaMalloc", out, bytes)); }
API cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
  RETURN(sim_stream_of(stream) ? sim_malloc(out, bytes, sim_current_device) : cudaErrorInvalidResourceHandle);
}
API cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) {
  size_t total;
  if (!pitch || width > SIZE_MAX - 511) RETURN(cudaErrorInvalidValue);
  *pitch = (width + 511) & ~(size_t)511;
  if (__builtin_mul_overflow(*pitch, height, &total)) RETURN(cudaErrorMemoryAllocation);
  RETURN(allocate("cudaMallocPitch", out, total));
}
API cudaFree(void *pointer) { RETURN(give_back("cudaFree", sim_free, pointer)); }
API cudaFreeAsync(void *pointer, cudaStream_t stream) {
  RETURN(sim_stream_of(stream) ? sim_free(pointer) : cudaErrorInvalidResourceHandle);
}
static int allocate_host(const char *api, void **out, size_t bytes) {
  int error = sim_capture_unsafe();
  return allocation(api, bytes, error ? error : sim_host_alloc(out, bytes));
}
API cudaHostAlloc(void **out, size_t bytes, unsigned int flags) {
  const unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (flags & ~known) RETURN(cudaErrorInvalidValue);
  RETURN(allocate_host("cudaHostAlloc", out, bytes));
}
API cudaMallocHost(void **out, size_t bytes) { RETURN(allocate_host("cudaMallocHost", out, bytes)); }
API cudaFreeHost(void *pointer) { RETURN(give_back("cudaFreeHost", sim_host_free, pointer)); }
API cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  int error = sim_capture_unsafe();
  RETURN(allocation("cudaHostRegister", bytes, error ? error : sim_host_register(pointer, bytes, flags)));
}
API cudaHostUnregister(void *pointer) { RETURN(give_back("cudaHostUnregister", sim_host_unregister, pointer)); }
API cudaHostGetDevicePointer(void **out, void *host, unsigned int flags) {
  (void)flags;
  int kind = sim_classify(host, NULL, NULL, NULL);
  if (kind != SIM_PINNED && kind != SIM_REGISTERED) RETURN(cudaErrorInvalidValue);
  *out = host;
  return cudaSuccess;
}
API cudaHostGetFlags(unsigned int *flags, void *host) {
  int kind = sim_classify(host, NULL, NULL, NULL);
  if (kind != SIM_PINNED && kind != SIM_REGISTERED) RETURN(cudaErrorInvalidValue);
  *flags = cudaHostAllocMapped;
  return cudaSuccess;
}
API cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  int error = sim_ready();
  if (error) RETURN(error);
  if (!free_bytes || !total) RETURN(cudaErrorInvalidValue);
  *total = sim_profiles[sim_current_device].memory_bytes;
  *free_bytes = *total - sim_used(sim_current_device);
  return cudaSuccess;
}
API cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
  int device, error = sim_ready();
  if (error) RETURN(error);
  if (!out) RETURN(cudaErrorInvalidValue);
  memset(out, 0, sizeof *out);
  int kind = sim_classify(pointer, &device, NULL, NULL);
  out->device = device < 0 ? cudaInvalidDeviceId : device;
  if (kind == SIM_DEVICE) {
    out->type = cudaMemoryTypeDevice;
    out->devicePointer = (void *)pointer;
  } else if (kind == SIM_PINNED || kind == SIM_REGISTERED) {
    out->type = cudaMemoryTypeHost;
    out->hostPointer = out->devicePointer = (void *)pointer;
  } else {
    out->type = cudaMemoryTypeUnregistered;
    if (kind == SIM_PAGEABLE) out->hostPointer = (void *)pointer;
  }
  return cudaSuccess;
}

ALIAS(cudaMallocAsync, _ptsz) ALIAS(cudaFreeAsync, _ptsz)

/* The face continues in runtime_copies.c and runtime_streams.c. */
