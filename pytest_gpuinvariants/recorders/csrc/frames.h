/* Keys: numbers that tell apart what they were mixed from. */
#ifndef GPUINVARIANTS_FRAMES_H
#define GPUINVARIANTS_FRAMES_H

#include <stdint.h>

static inline uint64_t mixed(uint64_t key, uint64_t value) {
  key = (key ^ value) * 0x9e3779b97f4a7c15u;
  return key ^ (key >> 29);
}

/* `key`, mixed with the Python frames of the calling thread, which holds the GIL. */
uint64_t key_of_frames(uint64_t key);

#endif
