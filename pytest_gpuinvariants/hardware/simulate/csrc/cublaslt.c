/* The face of libcublasLt: one algorithm for every product, and its launch.  Descriptors are accepted
 * unread: what sets or destroys one is generated as a success (see build.py). */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define API SIM_EXPORT cublasStatus_t CUBLASWINAPI

static int descriptor; /* a descriptor is an address that nothing is read from */
#define CREATES(name, ...)                                   \
  API name(__VA_ARGS__) {                                    \
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;            \
    *(void **)out = &descriptor;                             \
    return CUBLAS_STATUS_SUCCESS;                            \
  }
#pragma GCC diagnostic ignored "-Wunused-parameter"
CREATES(cublasLtCreate, cublasLtHandle_t *out)
CREATES(cublasLtMatmulDescCreate, cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
CREATES(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t *out)
CREATES(cublasLtMatrixTransformDescCreate, cublasLtMatrixTransformDesc_t *out, cudaDataType scale)
CREATES(cublasLtMatrixLayoutCreate, cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t columns,
        int64_t leading)

SIM_EXPORT size_t CUBLASWINAPI cublasLtGetVersion(void) { return CUBLAS_VERSION; }

API cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                   cublasLtMatmulPreference_t preference, int wanted,
                                   cublasLtMatmulHeuristicResult_t results[], int *count) {
  if (wanted < 1 || !results || !count) return CUBLAS_STATUS_INVALID_VALUE;
  memset(results, 0, sizeof *results);
  results->wavesCount = 1;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                            const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result) {
  memset(result, 0, sizeof *result);
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                         cublasLtMatmulAlgoConfigAttributes_t attribute, void *out, size_t bytes,
                                         size_t *written) {
  if (out) memset(out, 0, bytes);
  if (written) *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *A,
                   cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta, const void *C,
                   cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                   void *workspace, size_t bytes, cudaStream_t stream) {
  static const sim_shape one = {{1, 1, 1}, {1, 1, 1}, 0};
  static void *kernel;
  if (!kernel) kernel = sim_kernel_new("cublasLtMatmul", "libcublasLt");
  return sim_launch("cublasLtMatmul", kernel, stream, &one) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
