/* The face of libcublas: handles and their settings.  The real library would reach the driver through a
 * private table.  Every other call that takes a handle is generated as a recorded launch (see build.py);
 * what is left answers CUBLAS_STATUS_NOT_SUPPORTED. */
#include <cublas_api.h>
#include <stdlib.h>

#include "sim.h"

#define API SIM_EXPORT cublasStatus_t CUBLASWINAPI

typedef struct {
  cudaStream_t stream;
  cublasPointerMode_t pointers;
  cublasAtomicsMode_t atomics;
  cublasMath_t math;
  int sm_count_target;
} blas;

static blas *of(cublasHandle_t handle) { return sim_handle_is(handle, SIM_BLAS) ? (blas *)handle : NULL; }

/* What a generated stub calls; `kernel` is the stub's own, made at its first use. */
int sim_cublas_launch(const char *name, void **kernel, void *handle); /* for the generated file alone */
int sim_cublas_launch(const char *name, void **kernel, void *handle) {
  static const sim_shape one = {{1, 1, 1}, {1, 1, 1}, 0};
  blas *is = of(handle);
  if (!is) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!*kernel) *kernel = sim_kernel_new(name, "libcublas");
  return sim_launch(name, *kernel, is->stream, &one) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

API cublasCreate_v2(cublasHandle_t *out) {
  if (!out) return CUBLAS_STATUS_INVALID_VALUE;
  if (sim_ready()) return CUBLAS_STATUS_NOT_INITIALIZED;
  blas *made = calloc(1, sizeof *made);
  sim_handle_add(made, SIM_BLAS);
  *out = (cublasHandle_t)made;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasDestroy_v2(cublasHandle_t handle) {
  if (!sim_handle_remove(handle, SIM_BLAS)) return CUBLAS_STATUS_NOT_INITIALIZED;
  sim_retire(handle);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasGetVersion_v2(cublasHandle_t handle, int *version) {
  (void)handle;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasGetProperty(libraryPropertyType type, int *value) {
  *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
  return CUBLAS_STATUS_SUCCESS;
}
SIM_EXPORT const char *CUBLASWINAPI cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "not supported (by the simulated cuBLAS)";
    default: return "unknown";
  }
}
/* Device work of this library needs no memory of its own. */
API cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
  (void)workspace; (void)bytes;
  return of(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

#define SETTING(set, get, type, field)                                           \
  API set(cublasHandle_t handle, type value) {                                   \
    if (!of(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;                       \
    of(handle)->field = value;                                                   \
    return CUBLAS_STATUS_SUCCESS;                                                \
  }                                                                              \
  API get(cublasHandle_t handle, type *value) {                                  \
    if (!of(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;                       \
    *value = of(handle)->field;                                                  \
    return CUBLAS_STATUS_SUCCESS;                                                \
  }
SETTING(cublasSetStream_v2, cublasGetStream_v2, cudaStream_t, stream)
SETTING(cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasPointerMode_t, pointers)
SETTING(cublasSetAtomicsMode, cublasGetAtomicsMode, cublasAtomicsMode_t, atomics)
SETTING(cublasSetMathMode, cublasGetMathMode, cublasMath_t, math)
SETTING(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_count_target)
