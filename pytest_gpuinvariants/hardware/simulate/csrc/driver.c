/* The face of libcuda: what PyTorch, Triton, vLLM's operators and plain driver-API programs call.
 * The other names of cuda.h are generated as stubs that answer CUDA_ERROR_NOT_SUPPORTED. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_face.h"

static int contexts[SIM_MAX_DEVICES]; /* a context is the address of its device's slot */
static _Thread_local CUcontext current_context;

static CUcontext context_of(int device) { return (CUcontext)&contexts[device]; }
CUresult device_of(CUcontext context, int *device) {
  long index = (int *)context - contexts;
  if (!context || index < 0 || index >= sim_device_count) return CUDA_ERROR_INVALID_CONTEXT;
  *device = (int)index;
  return CUDA_SUCCESS;
}

API cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : drv(sim_ready()); }
API cuDriverGetVersion(int *version) { *version = sim_driver_version; return CUDA_SUCCESS; }
API cuDeviceGetCount(int *count) {
  if (!sim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  *count = sim_device_count;
  return CUDA_SUCCESS;
}
API cuDeviceGet(CUdevice *device, int ordinal) {
  if (ordinal < 0 || ordinal >= sim_device_count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
static CUresult check(CUdevice device) { return device < 0 || device >= sim_device_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
API cuDeviceGetName(char *name, int length, CUdevice device) {
  if (check(device)) return check(device);
  snprintf(name, (size_t)length, "%s", sim_profiles[device].name);
  return CUDA_SUCCESS;
}
API cuDeviceGetUuid(CUuuid *out, CUdevice device) {
  if (check(device)) return check(device);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  sim_uuid_bytes(device, (unsigned char *)out->bytes);
  return CUDA_SUCCESS;
}
API cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  if (check(device)) return check(device);
  *bytes = sim_profiles[device].memory_bytes;
  return CUDA_SUCCESS;
}
API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return drv(sim_attribute((int)attribute, device, value));
}
API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  if (check(device) || check(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}
API cuGetErrorName(CUresult error, const char **name) { *name = sim_driver_error_name((int)error); return CUDA_SUCCESS; }
API cuGetErrorString(CUresult error, const char **text) { *text = sim_error_text((int)error); return CUDA_SUCCESS; }

#if CUDA_VERSION >= 12090
/* There is no log of the driver's, so nobody is ever called back. */
API cuLogsRegisterCallback(CUlogsCallback function, void *data, CUlogsCallbackHandle *out) {
  (void)function; (void)data;
  static int handle;
  if (out) *out = (CUlogsCallbackHandle)&handle;
  return CUDA_SUCCESS;
}
API cuLogsUnregisterCallback(CUlogsCallbackHandle handle) { (void)handle; return CUDA_SUCCESS; }
#endif

/* ---- contexts --------------------------------------------------------------------------------- */

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  if (check(device)) return check(device);
  *context = context_of(device);
  return drv(sim_ready());
}
API cuDevicePrimaryCtxRelease(CUdevice device) { return check(device); }
API cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  if (check(device)) return check(device);
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
API cuCtxGetCurrent(CUcontext *context) {
  *context = current_context ? current_context : context_of(sim_current_device);
  return CUDA_SUCCESS;
}
API cuCtxSetCurrent(CUcontext context) {
  int device;
  CUresult error = context ? device_of(context, &device) : CUDA_SUCCESS;
  if (error) return error;
  if (context) sim_current_device = device;
  current_context = context;
  return CUDA_SUCCESS;
}
/* A stack of one thread's contexts, below the current one. */
static _Thread_local CUcontext stacked[16];
static _Thread_local int stack_depth;
API cuCtxPushCurrent(CUcontext context) {
  int device;
  CUresult error = device_of(context, &device);
  if (error) return error;
  if (stack_depth == 16) return CUDA_ERROR_INVALID_VALUE;
  cuCtxGetCurrent(&stacked[stack_depth++]);
  return cuCtxSetCurrent(context);
}
API cuCtxPopCurrent(CUcontext *context) {
  if (!stack_depth) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) cuCtxGetCurrent(context);
  return cuCtxSetCurrent(stacked[--stack_depth]);
}
API cuCtxGetDevice(CUdevice *device) { *device = sim_current_device; return CUDA_SUCCESS; }
API cuCtxSynchronize(void) { return drv(sim_device_synchronize("cuCtxSynchronize")); }
#if CUDA_VERSION >= 13000
API cuCtxSynchronize_v2(CUcontext context) {
  int device, before = sim_current_device;
  CUresult error = device_of(context, &device);
  if (error) return error;
  sim_current_device = device;
  error = drv(sim_device_synchronize("cuCtxSynchronize"));
  sim_current_device = before;
  return error;
}
#endif

/* ---- memory ----------------------------------------------------------------------------------- */

static CUresult allocation(const char *api, size_t bytes, int error) {
  sim_report(&(sim_event){.api = api, .bytes = bytes, .event_class = SIM_EVENT_ALLOC, .blocking = 1,
                          .capturing = sim_capture_error(error), .result = error});
  return drv(error);
}
API cuMemAlloc(CUdeviceptr *out, size_t bytes) {
  int error = bytes ? sim_capture_unsafe() : CUDA_ERROR_INVALID_VALUE;
  return allocation("cuMemAlloc", bytes, error ? error : sim_malloc((void **)out, bytes, sim_current_device));
}
static CUresult give_back(const char *api, int (*how)(void *), void *pointer) {
  int error = sim_capture_unsafe();
  return allocation(api, 0, error ? error : how(pointer));
}
API cuMemFree(CUdeviceptr pointer) { return give_back("cuMemFree", sim_free, (void *)pointer); }
static CUresult host(const char *api, void **out, size_t bytes) {
  int error = sim_capture_unsafe();
  return allocation(api, bytes, error ? error : sim_host_alloc(out, bytes));
}
API cuMemAllocHost(void **out, size_t bytes) { return host("cuMemAllocHost", out, bytes); }
API cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
  return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : host("cuMemHostAlloc", out, bytes);
}
API cuMemFreeHost(void *pointer) { return give_back("cuMemFreeHost", sim_host_free, pointer); }
API cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  int error = sim_capture_unsafe();
  return allocation("cuMemHostRegister", bytes, error ? error : sim_host_register(pointer, bytes, flags));
}
API cuMemHostUnregister(void *pointer) { return give_back("cuMemHostUnregister", sim_host_unregister, pointer); }
API cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
  void *start;
  size_t bytes;
  if (sim_classify((void *)pointer, NULL, &start, &bytes) != SIM_DEVICE) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = (CUdeviceptr)start;
  if (size) *size = bytes;
  return CUDA_SUCCESS;
}
API cuMemGetInfo(size_t *free_bytes, size_t *total) {
  *total = sim_profiles[sim_current_device].memory_bytes;
  *free_bytes = *total - sim_used(sim_current_device);
  return CUDA_SUCCESS;
}
API cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  int device;
  void *base;
  size_t bytes;
  int kind = sim_classify((void *)pointer, &device, &base, &bytes);
  if (kind != SIM_DEVICE && kind != SIM_PINNED && kind != SIM_REGISTERED) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = context_of(device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)out = kind == SIM_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = pointer; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (kind == SIM_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      *(void **)out = (void *)pointer;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = device; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = (CUdeviceptr)base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = bytes; break;
    default: return drv(sim_unsupported("cuPointerGetAttribute (this attribute)", CUDA_ERROR_NOT_SUPPORTED));
  }
  return CUDA_SUCCESS;
}

/* ---- streams and events -------------------------------------------------------------------------- */

API cuStreamCreate(CUstream *out, unsigned int flags) { return drv(sim_stream_create((void **)out, flags, 0)); }
API cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
  return drv(sim_stream_create((void **)out, flags, priority));
}
API cuStreamDestroy(CUstream stream) { return drv(sim_stream_destroy(stream)); }
API cuStreamSynchronize(CUstream stream) { return drv(sim_stream_synchronize("cuStreamSynchronize", stream)); }
API cuStreamQuery(CUstream stream) { return drv(sim_stream_query(stream)); }
API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return drv(sim_stream_wait(stream, event, flags & CU_EVENT_WAIT_EXTERNAL));
}
API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  sim_stream *stream = sim_stream_of(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  *status = (CUstreamCaptureStatus)sim_stream_status(stream);
  return CUDA_SUCCESS;
}
/* The function runs on the calling thread, where a driver would use one of its own. */
API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
  sim_stream *stream;
  int error = sim_stream_enter(handle, &stream);
  if (!error && !function) error = CUDA_ERROR_INVALID_VALUE;
  if (!error && !sim_stream_add(stream, &(sim_node){.what = SIM_NODE_HOST, .as.host = {function, data}})) function(data);
  return drv(error);
}
API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return drv(sim_capture_begin(stream, (int)mode, NULL));
}
#undef cuStreamBeginCapture /* as of CUDA 10.0: without a mode */
API cuStreamBeginCapture(CUstream stream) { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }
API cuStreamEndCapture(CUstream stream, CUgraph *graph) { return drv(sim_capture_end(stream, (void **)graph)); }
API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  int value = (int)*mode;
  sim_exchange_capture_mode(&value);
  *mode = (CUstreamCaptureMode)value;
  return CUDA_SUCCESS;
}
API cuEventCreate(CUevent *out, unsigned int flags) { return drv(sim_event_create((void **)out, flags)); }
API cuEventDestroy(CUevent event) { return drv(sim_event_destroy(event)); }
API cuEventRecord(CUevent event, CUstream stream) { return drv(sim_event_record(event, stream, 0)); }
API cuEventSynchronize(CUevent event) { return drv(sim_event_synchronize("cuEventSynchronize", event)); }
API cuEventQuery(CUevent event) { return drv(sim_event_query(event)); }
API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  return drv(sim_event_elapsed(milliseconds, start, end));
}

/* ---- modules and kernels -------------------------------------------------------------------------- */

/* An image is accepted unread, whatever its architecture: no kernel of it will run. */
API cuModuleLoadData(CUmodule *out, const void *image) {
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  void *module = malloc(16);
  sim_handle_add(module, SIM_MODULE);
  *out = module;
  return drv(sim_ready());
}
API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, CUjit_option *options, void **values) {
  (void)count; (void)options; (void)values;
  return cuModuleLoadData(out, image);
}
API cuModuleLoadFatBinary(CUmodule *out, const void *image) { return cuModuleLoadData(out, image); }
API cuModuleLoad(CUmodule *out, const char *path) {
  if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
  return access(path, R_OK) ? CUDA_ERROR_FILE_NOT_FOUND : cuModuleLoadData(out, path);
}
API cuModuleUnload(CUmodule module) { return sim_handle_remove(module, SIM_MODULE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
API cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_handle_is(module, SIM_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
  *out = sim_kernel_new(name, "a module loaded through the driver API (Triton, NVRTC or the like)");
  return CUDA_SUCCESS;
}
/* The newer pair, libraries and kernels; a kernel's handle serves as a function's. */
API cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *options, void **values, unsigned int count,
                      CUlibraryOption *library_options, void **library_values, unsigned int library_count) {
  (void)options; (void)values; (void)count; (void)library_options; (void)library_values; (void)library_count;
  return cuModuleLoadData((CUmodule *)out, code);
}
API cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *options, void **values, unsigned int count,
                          CUlibraryOption *library_options, void **library_values, unsigned int library_count) {
  (void)options; (void)values; (void)count; (void)library_options; (void)library_values; (void)library_count;
  return cuModuleLoad((CUmodule *)out, path);
}
API cuLibraryUnload(CUlibrary library) { return cuModuleUnload((CUmodule)library); }
API cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  return cuModuleGetFunction((CUfunction *)out, (CUmodule)library, name);
}
API cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
  if (!sim_kernel_of(kernel, NULL)) return CUDA_ERROR_INVALID_HANDLE;
  *out = (CUfunction)kernel;
  return CUDA_SUCCESS;
}
API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  if (!sim_kernel_of(function, NULL)) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 64; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = sim_profiles[sim_current_device].shared_per_block_optin; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (!sim_kernel_of(function, NULL)) return CUDA_ERROR_INVALID_HANDLE;
  int too_large = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
                  value > sim_profiles[sim_current_device].shared_per_block_optin;
  return too_large ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)config;
  return sim_kernel_of(function, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
API cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, CUstream stream, void **parameters, void **extra) {
  (void)parameters; (void)extra;
  return drv(sim_launch("cuLaunchKernel", function, stream, &(sim_shape){{gx, gy, gz}, {bx, by, bz}, shared}));
}
API cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, CUstream stream, void **parameters) {
  (void)parameters;
  return drv(sim_launch("cuLaunchCooperativeKernel", function, stream, &(sim_shape){{gx, gy, gz}, {bx, by, bz}, shared}));
}
API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  (void)parameters; (void)extra;
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  sim_shape shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                     {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes};
  return drv(sim_launch("cuLaunchKernelEx", function, config->hStream, &shape));
}
ALIAS(cuStreamSynchronize, _ptsz) ALIAS(cuStreamQuery, _ptsz) ALIAS(cuStreamWaitEvent, _ptsz)
ALIAS(cuStreamIsCapturing, _ptsz) ALIAS(cuStreamBeginCapture, _ptsz) ALIAS(cuStreamBeginCapture_v2, _ptsz)
ALIAS(cuStreamEndCapture, _ptsz) ALIAS(cuEventRecord, _ptsz) ALIAS(cuLaunchHostFunc, _ptsz) ALIAS(cuLaunchKernel, _ptsz)
ALIAS(cuLaunchKernelEx, _ptsz) ALIAS(cuLaunchCooperativeKernel, _ptsz)

/* A tensor map is 128 opaque bytes that only a kernel reads. */
API cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                           const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  (void)type; (void)dimensions; (void)strides; (void)box; (void)element_strides; (void)interleave; (void)swizzle;
  (void)promotion; (void)fill;
  if (!map || !rank || rank > 5 || sim_classify(address, NULL, NULL, NULL) == SIM_PAGEABLE) return CUDA_ERROR_INVALID_VALUE;
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

/* ---- entry points ------------------------------------------------------------------------------------ */

/* Whether a call has a second form only since a newer CUDA than the caller's. */
static int newer(const char *symbol, int version) {
  static const char *const since_13[] = {"cuCtxGetDevice", "cuCtxSynchronize", "cuMemcpyBatchAsync",
                                         "cuMemcpy3DBatchAsync"};
  for (size_t i = 0; i < sizeof since_13 / sizeof *since_13; i++)
    if (!strcmp(since_13[i], symbol)) return version < 13000;
  return 0;
}
API cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
  (void)flags;
  static void *self;
  if (!self) self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  char versioned[160];
  snprintf(versioned, sizeof versioned, "%s_v2", symbol);
  *out = self && !newer(symbol, version) ? dlsym(self, versioned) : NULL;
  if (self && !*out) *out = dlsym(self, symbol);
  if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
