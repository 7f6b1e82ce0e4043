#ifndef GPUINVARIANTS_NATIVE_THREADS_H
#define GPUINVARIANTS_NATIVE_THREADS_H

#include <stdint.h>

#include "native_event.h"

/* Keep a call for later, if Python does not know the thread that makes it; whether it does not. */
int native_thread_keeps(const gi_event *event, uint64_t key);

#endif
