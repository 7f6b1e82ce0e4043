/* Kernels, errors and the names of calls that are not simulated. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <driver_types.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "sim_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int last_error;

/* ---- calls that are not simulated: each name once ------------------------------------------ */

#define UNSUPPORTED_ROOM 512
static char *unsupported[UNSUPPORTED_ROOM];
static int unsupported_count;

/* What a recorder of a real card tells, and so can not be told here; the last ones lead to any of it. */
#define POLICED(api, event_class) {#api, event_class},
#define SYNC(domain, id, api, ...) POLICED(api, SIM_EVENT_SYNC)
#define ALLOC(domain, id, api, ...) POLICED(api, SIM_EVENT_ALLOC)
#define LAUNCH(domain, id, api, ...) POLICED(api, SIM_EVENT_LAUNCH)
#define FILL(domain, id, api, ...) POLICED(api, SIM_EVENT_COPY_STALL)
#define COPY(domain, id, api, ...) POLICED(api, SIM_EVENT_COPY_STALL)
#define AREA(domain, id, api, ...) POLICED(api, SIM_EVENT_COPY_STALL)
#define BATCH(domain, id, api, ...) POLICED(api, SIM_EVENT_COPY_STALL)
#define BATCH_3D(domain, id, api, ...) POLICED(api, SIM_EVENT_COPY_STALL)
#define ANY (SIM_EVENT_SYNC | SIM_EVENT_COPY_STALL | SIM_EVENT_ALLOC | SIM_EVENT_LAUNCH)
static const struct {
  const char *name; /* without the suffixes of versions and of per-thread streams */
  int event_class;
} policed[] = {
#include "cupti_apis.h"
    {"cuGetExportTable", ANY}, /* asked for by a CUDA runtime that is linked into a library */
    {"cudaGetExportTable", ANY},
    {"cuStreamBeginCaptureToGraph", ANY}, /* what it would have refused is not refused */
};

static int policed_as(const char *name) {
  name += strspn(name, "_");
  size_t length = strcspn(name, "_ ");
  for (size_t i = 0; i < sizeof policed / sizeof *policed; i++)
    if (!strncmp(policed[i].name, name, length) && !policed[i].name[length]) return policed[i].event_class;
  return 0;
}

int sim_unsupported(const char *name, int error) {
  int event_class = policed_as(name);
  if (event_class)
    sim_report(&(sim_event){.api = name, .result = error, .event_class = event_class | SIM_EVENT_NOT_SIMULATED});
  pthread_mutex_lock(&lock);
  int known = unsupported_count == UNSUPPORTED_ROOM;
  for (int i = 0; i < unsupported_count && !known; i++) known = !strcmp(unsupported[i], name);
  if (!known) unsupported[unsupported_count++] = strdup(name);
  pthread_mutex_unlock(&lock);
  return error;
}

SIM_EXPORT int sim_unsupported_count(void) { return unsupported_count; }
SIM_EXPORT const char *sim_unsupported_name(int index) {
  return index >= 0 && index < unsupported_count ? unsupported[index] : NULL;
}

/* ---- errors --------------------------------------------------------------------------------- */

SIM_EXPORT int sim_fail(int error) {
  if (error) last_error = error;
  return error;
}

int sim_last_error(int clear) {
  int error = last_error;
  if (clear) last_error = cudaSuccess;
  return error;
}

#define ERROR(runtime, driver, text) {cudaError##runtime, "cudaError" #runtime, "CUDA_ERROR_" driver, text}
static const struct {
  int code;
  const char *name, *driver_name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    ERROR(InvalidValue, "INVALID_VALUE", "invalid argument"),
    ERROR(MemoryAllocation, "OUT_OF_MEMORY", "out of memory"),
    ERROR(InitializationError, "NOT_INITIALIZED", "initialization error"),
    ERROR(InvalidConfiguration, "INVALID_VALUE", "invalid configuration argument"),
    ERROR(InvalidPitchValue, "INVALID_VALUE", "invalid pitch argument"),
    ERROR(InvalidMemcpyDirection, "INVALID_VALUE", "invalid copy direction for memcpy"),
    ERROR(InvalidDeviceFunction, "NOT_FOUND", "invalid device function"),
    ERROR(NoDevice, "NO_DEVICE", "no CUDA-capable device is detected"),
    ERROR(InvalidDevice, "INVALID_DEVICE", "invalid device ordinal"),
    ERROR(DeviceUninitialized, "INVALID_CONTEXT", "invalid device context"),
    ERROR(PeerAccessUnsupported, "PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"),
    ERROR(InvalidResourceHandle, "INVALID_HANDLE", "invalid resource handle"),
    ERROR(IllegalState, "ILLEGAL_STATE", "the operation cannot be performed in the present state"),
    ERROR(SymbolNotFound, "NOT_FOUND", "named symbol not found"),
    ERROR(NotReady, "NOT_READY", "device not ready"),
    ERROR(PeerAccessAlreadyEnabled, "PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"),
    ERROR(PeerAccessNotEnabled, "PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"),
    ERROR(HostMemoryAlreadyRegistered, "HOST_MEMORY_ALREADY_REGISTERED",
          "part or all of the requested memory range is already mapped"),
    ERROR(HostMemoryNotRegistered, "HOST_MEMORY_NOT_REGISTERED",
          "pointer does not correspond to a registered memory region"),
    ERROR(NotSupported, "NOT_SUPPORTED", "operation not supported (by the simulated CUDA runtime)"),
    ERROR(StreamCaptureUnsupported, "STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"),
    ERROR(StreamCaptureInvalidated, "STREAM_CAPTURE_INVALIDATED",
          "operation failed due to a previous error during capture"),
    ERROR(StreamCaptureMerge, "STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"),
    ERROR(StreamCaptureUnmatched, "STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"),
    ERROR(StreamCaptureUnjoined, "STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"),
    ERROR(StreamCaptureIsolation, "STREAM_CAPTURE_ISOLATION",
          "dependency created on uncaptured work in another stream"),
    ERROR(StreamCaptureImplicit, "STREAM_CAPTURE_IMPLICIT",
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(CapturedEvent, "CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(StreamCaptureWrongThread, "STREAM_CAPTURE_WRONG_THREAD",
          "attempt to terminate a thread-local capture sequence from another thread"),
};
#define ERRORS (sizeof errors / sizeof *errors)

const char *sim_error_name(int error) {
  for (size_t i = 0; i < ERRORS; i++)
    if (errors[i].code == error) return errors[i].name;
  return "cudaErrorUnknown";
}

const char *sim_driver_error_name(int error) {
  for (size_t i = 0; i < ERRORS; i++)
    if (errors[i].code == error) return errors[i].driver_name;
  return "CUDA_ERROR_UNKNOWN";
}

const char *sim_error_text(int error) {
  for (size_t i = 0; i < ERRORS; i++)
    if (errors[i].code == error) return errors[i].text;
  return "unrecognized error code";
}

/* ---- kernels: the host stub's address to its name -------------------------------------------- */

typedef struct {
  const void *function;
  sim_kernel kernel;
} registration;
static registration *registrations;
static size_t registration_room, registration_used;
static uint64_t launches;

static registration *registration_at(registration *table, size_t room, const void *function) {
  size_t i = sim_hash(function) & (room - 1);
  while (table[i].function && table[i].function != function) i = (i + 1) & (room - 1);
  return &table[i];
}

static void register_kernel(const void *function, sim_kernel kernel) {
  pthread_mutex_lock(&lock);
  if (registration_used * 2 >= registration_room) {
    size_t room = registration_room ? registration_room * 2 : 1u << 16;
    registration *grown = calloc(room, sizeof *grown);
    for (size_t i = 0; i < registration_room; i++)
      if (registrations[i].function) *registration_at(grown, room, registrations[i].function) = registrations[i];
    free(registrations);
    registrations = grown;
    registration_room = room;
  }
  registration *at = registration_at(registrations, registration_room, function);
  if (!at->function) registration_used++;
  *at = (registration){function, kernel};
  pthread_mutex_unlock(&lock);
}

static int from_torch(const char *library) {
  const char *file = strrchr(library, '/');
  file = file ? file + 1 : library;
  return !strncmp(file, "libtorch", 8) || !strncmp(file, "libc10", 6) || !strncmp(file, "libcublas", 9);
}

/* The name is a literal of the library that registers it and lives as long as its functions. */
void sim_kernel_register(const void *function, const char *name, const void *images) {
  register_kernel(function, (sim_kernel){.name = name, .images = images});
}

void *sim_kernel_new(const char *name, const char *library) {
  sim_kernel kernel = {.name = strdup(name), .library = strdup(library), .torch = from_torch(library)};
  void *handle = calloc(1, 16);
  register_kernel(handle, kernel);
  sim_handle_add(handle, SIM_KERNEL);
  return handle;
}

const char *sim_library_of(const void *address) {
  Dl_info info;
  return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

int sim_kernel_of(const void *function, sim_kernel *out) {
  pthread_mutex_lock(&lock);
  registration *at = registration_room ? registration_at(registrations, registration_room, function) : NULL;
  sim_kernel *kernel = at && at->function ? &at->kernel : NULL;
  if (kernel && !kernel->library) { /* looked up at the first launch: start-up registers thousands */
    kernel->library = sim_library_of(function);
    kernel->torch = from_torch(kernel->library);
  }
  if (kernel && out) *out = *kernel;
  pthread_mutex_unlock(&lock);
  return kernel != NULL;
}

SIM_EXPORT uint64_t sim_launch_count(void) { return __atomic_load_n(&launches, __ATOMIC_RELAXED); }

int sim_not_a_kernel(void) {
  return sim_driver_version >= 13000 ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction;
}

static int check_shape(const sim_shape *shape) {
  uint64_t threads = (uint64_t)shape->block[0] * shape->block[1] * shape->block[2];
  uint64_t blocks = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
  if (!threads || threads > 1024 || shape->block[2] > 64) return cudaErrorInvalidConfiguration;
  if (!blocks || shape->grid[0] > 0x7fffffff || shape->grid[1] > 65535 || shape->grid[2] > 65535)
    return cudaErrorInvalidConfiguration;
  size_t shared = (size_t)sim_profiles[sim_current_device].shared_per_block_optin;
  return shape->shared > shared ? cudaErrorInvalidValue : cudaSuccess;
}

static int refusing;
void sim_refuse(int on) { __atomic_store_n(&refusing, on, __ATOMIC_RELAXED); }

/* What a card answers to code for another architecture; torch's own kernels are the true card's. */
static int check_refused(const sim_kernel *kernel) {
  int refused = __atomic_load_n(&refusing, __ATOMIC_RELAXED) && (!kernel->torch || strstr(kernel->library, "libcublas"));
  return refused ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

int sim_launch(const char *api, const void *function, void *stream_handle, const sim_shape *shape) {
  int error = sim_ready();
  if (error) return error;
  sim_stream *stream;
  error = sim_stream_enter(stream_handle, &stream);
  if (!stream) return error;
  sim_kernel kernel;
  if (!error && stream->device != sim_current_device) error = cudaErrorInvalidResourceHandle;
  if (!sim_kernel_of(function, &kernel)) return error ? error : sim_not_a_kernel();
  if (!error) error = check_shape(shape);
  if (!error) error = check_refused(&kernel);
  int capturing = sim_stream_status(stream);
  if (!error) {
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    sim_stream_add(stream, &(sim_node){.what = SIM_NODE_KERNEL});
  }
  sim_report(&(sim_event){.api = api, .kernel = kernel.name, .library = kernel.library,
                          .stream = (uint64_t)stream_handle, .result = error,
                          .capturing = capturing || sim_capture_error(error),
                          .event_class = kernel.torch ? SIM_EVENT_TORCH_LAUNCH : SIM_EVENT_LAUNCH});
  return error;
}

void sim_log_fork(int stage) { sim_fork_lock(&lock, stage); }
