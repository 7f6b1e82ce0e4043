/* The face of libnvidia-ml: enough for PyTorch's and vLLM's questions about the simulated devices.
 * The other names (nvml_names.txt) are generated as stubs that answer NVML_ERROR_NOT_SUPPORTED: PyTorch
 * takes a name that it does not find for a broken installation. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "sim.h"

/* From NVML's public reference: codes and layouts that the calls below use. */
enum { NVML_OK = 0, NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7 };
typedef void *device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_device, pci_subsystem; char id[32]; } pci_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; } process_t;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } process_v2_t;

#define API SIM_EXPORT int
static int handles[SIM_MAX_DEVICES];
static int initialised;

static int index_of(device_t handle) {
  long index = (int *)handle - handles;
  return index >= 0 && index < sim_device_count ? (int)index : -1;
}
#define DEVICE(handle)                                   \
  int device = index_of(handle);                         \
  if (!initialised) return NVML_UNINITIALIZED;           \
  if (device < 0) return NVML_INVALID_ARGUMENT

API nvmlInit_v2(void) { __atomic_add_fetch(&initialised, 1, __ATOMIC_RELAXED); return NVML_OK; }
API nvmlInit(void) { return nvmlInit_v2(); }
API nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
API nvmlShutdown(void) {
  if (!initialised) return NVML_UNINITIALIZED;
  __atomic_sub_fetch(&initialised, 1, __ATOMIC_RELAXED);
  return NVML_OK;
}
SIM_EXPORT const char *nvmlErrorString(int error) {
  switch (error) {
    case NVML_OK: return "Success";
    case NVML_UNINITIALIZED: return "Uninitialized";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
  }
}
API nvmlSystemGetDriverVersion(char *out, unsigned length) {
  if (!initialised) return NVML_UNINITIALIZED;
  snprintf(out, length, "%d.0", sim_driver_version / 1000 == 12 ? 550 : 580);
  return NVML_OK;
}
API nvmlSystemGetCudaDriverVersion(int *version) { *version = sim_driver_version; return NVML_OK; }
API nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }
API nvmlSystemGetNVMLVersion(char *out, unsigned length) { return nvmlSystemGetDriverVersion(out, length); }
API nvmlDeviceGetCount_v2(unsigned *count) {
  if (!initialised) return NVML_UNINITIALIZED;
  *count = (unsigned)sim_device_count;
  return NVML_OK;
}
API nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
API nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
  if (!initialised) return NVML_UNINITIALIZED;
  if (index >= (unsigned)sim_device_count) return NVML_INVALID_ARGUMENT;
  *out = &handles[index];
  return NVML_OK;
}
API nvmlDeviceGetHandleByIndex(unsigned index, device_t *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
API nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) {
  for (int i = 0; i < sim_device_count; i++)
    if (!strcmp(uuid, sim_profiles[i].uuid)) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, out);
  return NVML_NOT_FOUND;
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *out) {
  unsigned domain, number, device;
  if (sscanf(bus, "%x:%x:%x", &domain, &number, &device) != 3) return NVML_INVALID_ARGUMENT;
  return number ? nvmlDeviceGetHandleByIndex_v2(number - 1, out) : NVML_NOT_FOUND;
}
API nvmlDeviceGetIndex(device_t handle, unsigned *index) {
  DEVICE(handle);
  *index = (unsigned)device;
  return NVML_OK;
}
API nvmlDeviceGetMinorNumber(device_t handle, unsigned *minor) { return nvmlDeviceGetIndex(handle, minor); }
API nvmlDeviceGetName(device_t handle, char *out, unsigned length) {
  DEVICE(handle);
  snprintf(out, length, "%s", sim_profiles[device].name);
  return NVML_OK;
}
API nvmlDeviceGetUUID(device_t handle, char *out, unsigned length) {
  DEVICE(handle);
  snprintf(out, length, "%s", sim_profiles[device].uuid);
  return NVML_OK;
}
API nvmlDeviceGetCudaComputeCapability(device_t handle, int *major, int *minor) {
  DEVICE(handle);
  *major = sim_profiles[device].major;
  *minor = sim_profiles[device].minor;
  return NVML_OK;
}
API nvmlDeviceGetMemoryInfo(device_t handle, memory_t *out) {
  DEVICE(handle);
  out->total = sim_profiles[device].memory_bytes;
  out->used = sim_used(device);
  out->free = out->total - out->used;
  return NVML_OK;
}
API nvmlDeviceGetMemoryInfo_v2(device_t handle, memory_v2_t *out) {
  DEVICE(handle);
  out->total = sim_profiles[device].memory_bytes;
  out->used = sim_used(device);
  out->free = out->total - out->used;
  out->reserved = 0;
  return NVML_OK;
}
API nvmlDeviceGetPciInfo_v3(device_t handle, pci_t *out) {
  DEVICE(handle);
  memset(out, 0, sizeof *out);
  out->bus = (unsigned)device + 1;
  snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus & 0xffu);
  snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", out->bus);
  return NVML_OK;
}
API nvmlDeviceGetPciInfo(device_t handle, pci_t *out) { return nvmlDeviceGetPciInfo_v3(handle, out); }
API nvmlDeviceGetHandleByPciBusId(const char *bus, device_t *out) { return nvmlDeviceGetHandleByPciBusId_v2(bus, out); }
API nvmlDeviceGetPciInfo_v2(device_t handle, pci_t *out) { return nvmlDeviceGetPciInfo_v3(handle, out); }
API nvmlDeviceGetUtilizationRates(device_t handle, utilization_t *out) {
  DEVICE(handle);
  memset(out, 0, sizeof *out);
  return NVML_OK;
}
/* This process alone uses a simulated device. */
API nvmlDeviceGetComputeRunningProcesses_v3(device_t handle, unsigned *count, process_v2_t *out) {
  DEVICE(handle);
  unsigned room = *count;
  *count = 1;
  if (!room || !out) return NVML_INSUFFICIENT_SIZE;
  *out = (process_v2_t){(unsigned)getpid(), sim_used(device), ~0u, ~0u};
  return NVML_OK;
}
API nvmlDeviceGetComputeRunningProcesses_v2(device_t handle, unsigned *count, process_v2_t *out) {
  return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, out);
}
API nvmlDeviceGetComputeRunningProcesses(device_t handle, unsigned *count, process_t *out) {
  process_v2_t one;
  int error = nvmlDeviceGetComputeRunningProcesses_v3(handle, count, out ? &one : NULL);
  if (!error) *out = (process_t){one.pid, one.used};
  return error;
}
API nvmlDeviceGetMigMode(device_t handle, unsigned *current, unsigned *pending) {
  DEVICE(handle);
  *current = *pending = 0;
  return NVML_OK;
}
/* Every pair of simulated devices is one NVLink hop apart, as the boards with several of them are. */
API nvmlDeviceGetP2PStatus(device_t first, device_t second, int capability, int *status) {
  (void)capability;
  if (index_of(first) < 0 || index_of(second) < 0) return NVML_INVALID_ARGUMENT;
  *status = 0;
  return NVML_OK;
}
API nvmlDeviceGetNvLinkState(device_t handle, unsigned link, unsigned *active) {
  DEVICE(handle);
  (void)link;
  *active = sim_device_count > 1;
  return NVML_OK;
}
