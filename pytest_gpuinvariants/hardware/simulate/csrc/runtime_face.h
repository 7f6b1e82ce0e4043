/* Shared by the files of libcudart's face. */
#ifndef GPUINVARIANTS_RUNTIME_FACE_H
#define GPUINVARIANTS_RUNTIME_FACE_H

#include <cuda_runtime_api.h>

#include "sim.h"

#define API SIM_EXPORT cudaError_t CUDARTAPI
#define RETURN(expression) return (cudaError_t)sim_fail(expression)
/* Per-thread default stream forms: the simulator tells the two default streams apart by no event. */
#define ALIAS(name, suffix) extern SIM_EXPORT __typeof__(name) name##suffix __attribute__((alias(#name)));

#endif
