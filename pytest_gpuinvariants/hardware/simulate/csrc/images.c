/* Which image of a kernel a card would take, by NVIDIA's rules of binary compatibility
 * (https://docs.nvidia.com/cuda/blackwell-compatibility-guide): an image of the same major version and no
 * higher minor one, the highest of these; else the newest PTX that is no newer than the card.
 *
 * The wrapper is CUDA's, from fatbinary_section.h, which not every wheel has.  What it points to is declared
 * nowhere; it was read off nvcc 13.0's output, and where something else is found nothing is claimed. */
#include <stdint.h>
#include <string.h>

#include "sim.h"

typedef struct {
  int magic, version;
  const void *container;
  void *prelinked;
} wrapping;

typedef struct {
  uint32_t magic;
  uint16_t version, header_size;
  uint64_t size; /* of what follows the header */
} container;

enum { WRAPPER_MAGIC = 0x466243B1, PTX = 1, ELF = 2 };
static const uint32_t container_magic = 0xBA55ED50;
enum { FOR_THIS_MINOR_ONLY = 1 << 20 }; /* compiled for sm_90a or the like */

typedef struct {
  uint16_t kind, version;
  uint32_t header_size;
  uint64_t payload_size;
  uint32_t unknown[3];
  uint32_t architecture; /* 90 for 9.0 */
  uint32_t unknown_too[2];
  uint64_t flags;
} entry;

static int fits(const entry *image, int card) {
  int for_it = (int)image->architecture;
  if (image->flags & FOR_THIS_MINOR_ONLY) return for_it == card;
  return image->kind == PTX ? for_it <= card : for_it / 10 == card / 10 && for_it <= card;
}

int sim_image_for(const void *wrapper, int card, int *binary, int *ptx) {
  const wrapping *wrapped = wrapper;
  if (!wrapped || wrapped->magic != WRAPPER_MAGIC || wrapped->version != 1 || !wrapped->container) return 0;
  container head;
  memcpy(&head, wrapped->container, sizeof head);
  if (head.magic != container_magic || head.version != 1) return 0;
  int best[ELF + 1] = {0};
  const char *at = (const char *)wrapped->container + head.header_size, *end = at + head.size;
  while (at + sizeof(entry) <= end) {
    entry image;
    memcpy(&image, at, sizeof image);
    if (image.header_size < sizeof image) return 0;
    if ((image.kind == PTX || image.kind == ELF) && fits(&image, card) && (int)image.architecture > best[image.kind])
      best[image.kind] = (int)image.architecture;
    at += image.header_size + image.payload_size;
  }
  if (!best[ELF] && !best[PTX]) return 0;
  *ptx = best[ELF] ? best[ELF] : best[PTX];
  *binary = best[ELF] ? best[ELF] : card;
  return 1;
}
