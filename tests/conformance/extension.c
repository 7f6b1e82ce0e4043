/* Stands for a compiled extension that waits and copies by itself, out of sight of torch. */
#include <pthread.h>
#include <stdlib.h>

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int direction, void *stream);
int cudaStreamSynchronize(void *stream);
int cudaDeviceSynchronize(void);

int wait_for(void *stream) { return cudaStreamSynchronize(stream); }

int upload(void *device, size_t bytes, void *stream) {
  void *host = calloc(1, bytes);
  int error = cudaMemcpyAsync(device, host, bytes, 1, stream);
  if (!error) error = cudaStreamSynchronize(stream);
  free(host);
  return error;
}

static void *waiting(void *unused) {
  cudaDeviceSynchronize();
  return unused;
}
/* A thread that Python knows nothing of. */
int wait_in_a_thread(void) {
  pthread_t thread;
  return pthread_create(&thread, NULL, waiting, NULL) || pthread_join(thread, NULL);
}
