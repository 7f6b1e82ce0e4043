/* Whether a program asked for a call to CUDA that c10_cuda, PyTorch's library, makes.
 *
 * The library holds PyTorch's allocator, which waits on its own and under a lock.  The waits that a
 * program asks for come from functions that are exported, or from those of the device guard, through
 * which torch.Stream, torch.Event and torch.accelerator reach CUDA.
 */
#ifndef GPUINVARIANTS_ASKED_FOR_H
#define GPUINVARIANTS_ASKED_FOR_H

#include <dlfcn.h>
#include <string.h>

#define CUDA_DEVICE_TYPE 1 /* c10::DeviceType */
#define MOST_METHODS 32

void *_Unwind_FindEnclosingFunction(void *address); /* of libgcc: the start of the function around it */

/* Whether an address of c10_cuda is in a virtual function of its device guard. */
static int in_device_guard(const void *address) {
  void *c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!c10) return 0;
  void *const *const *const *registry =
      (void *const *const *const *)dlsym(c10, "_ZN3c104impl26device_guard_impl_registryE");
  dlclose(c10); /* it stays: torch has loaded it */
  if (!registry || !registry[CUDA_DEVICE_TYPE]) return 0;
  const void *function = _Unwind_FindEnclosingFunction((char *)address - 1);
  void *const *methods = *registry[CUDA_DEVICE_TYPE];
  for (int i = 0; function && i < MOST_METHODS && methods[i]; i++)
    if (methods[i] == function) return 1;
  return 0;
}

/* For an address inside c10_cuda, and what dladdr says of it. */
static int asked_for(const void *address, const Dl_info *info) {
  if (info->dli_sname) return strstr(info->dli_sname, "ynchronize") && !strstr(info->dli_sname, "Allocator");
  return in_device_guard(address);
}

#endif
