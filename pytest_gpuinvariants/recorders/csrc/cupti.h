/* Between the parts of the CUPTI recorder. */
#ifndef GPUINVARIANTS_CUPTI_H
#define GPUINVARIANTS_CUPTI_H

#include <stdint.h>

/* A kernel, by what its launch names: the address of its host stub, or a handle. */
typedef struct {
  const char *name, *library;
  int torch; /* launched by torch's own libraries, or by those that torch is built on */
} kernel;

/* What is known of the kernel that the calling thread is launching, until it launches another. */
const kernel *kernel_of(uint64_t key, const char *symbol);
void kernels_prepare(void); /* loads what finding the caller needs, outside of any CUDA call */

#endif
