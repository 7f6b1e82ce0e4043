/* Shared by the files of libcuda's face. */
#ifndef GPUINVARIANTS_DRIVER_FACE_H
#define GPUINVARIANTS_DRIVER_FACE_H

#include <cuda.h>

#include "sim.h"

#define API SIM_EXPORT CUresult CUDAAPI
/* Per-thread default stream forms: the simulator tells the two default streams apart by no event. */
#define ALIAS(name, suffix) extern SIM_EXPORT __typeof__(name) name##suffix __attribute__((alias(#name)));

/* The core speaks the runtime's numbers; the two enumerations differ in a few. */
static inline CUresult drv(int error) {
  switch (error) {
    case 101: return CUDA_ERROR_INVALID_DEVICE;
    case 9:                                    /* the runtime alone tells configuration, */
    case 12:                                   /* pitch */
    case 21: return CUDA_ERROR_INVALID_VALUE;  /* and direction apart */
    case 98: return CUDA_ERROR_NOT_FOUND;      /* invalid device function */
    default: return (CUresult)error;           /* from 400 on, and the common low ones, they agree */
  }
}

/* The device of a context, unless that is none. */
CUresult device_of(CUcontext context, int *device);

#endif
