/* Copies and fills: checked as the driver checks them, then done at once. */
#define _GNU_SOURCE
#include <driver_types.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sim.h"
#include "sim_internal.h"

static int on_device(int kind) { return kind == SIM_DEVICE; }

/* Memory that a program may have unmapped is reached through the kernel, which answers EFAULT where a
 * load or a store would fault. */
static int untrusted(int kind) { return kind == SIM_PAGEABLE || kind == SIM_REGISTERED; }
static int move(char *destination, int to_kind, const char *source, int from_kind, size_t bytes) {
  const size_t most = (size_t)1 << 30; /* one system call takes less than 2 GiB */
  while (bytes) {
    size_t part = bytes < most ? bytes : most;
    struct iovec to = {destination, part}, from = {(void *)source, part};
    ssize_t moved;
    if (untrusted(from_kind)) moved = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    else if (untrusted(to_kind)) moved = process_vm_writev(getpid(), &from, 1, &to, 1, 0);
    else {
      memmove(destination, source, part);
      moved = (ssize_t)part;
    }
    if (moved < 0 && (errno == EPERM || errno == ENOSYS)) { /* forbidden here, as in some containers */
      if (!sim_mapped(destination, part) || !sim_mapped(source, part)) return cudaErrorInvalidValue;
      memmove(destination, source, part);
      moved = (ssize_t)part;
    }
    if (moved <= 0) return cudaErrorInvalidValue;
    destination += moved;
    source += moved;
    bytes -= (size_t)moved;
  }
  return cudaSuccess;
}

/* Only pageable memory contradicts a direction: with unified addressing the driver knows the place of
 * any other pointer and goes by that, as an H200 confirms. */
static int check_direction(int direction, int destination, int source) {
  if (direction < cudaMemcpyHostToHost || direction > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  int to_device = direction == cudaMemcpyHostToDevice || direction == cudaMemcpyDeviceToDevice;
  int from_device = direction == cudaMemcpyDeviceToHost || direction == cudaMemcpyDeviceToDevice;
  int mixed = (to_device && destination == SIM_PAGEABLE) || (from_device && source == SIM_PAGEABLE);
  return mixed ? cudaErrorInvalidValue : cudaSuccess;
}

typedef struct {
  int kind;
  void *base;
  size_t bytes;
} place;
static place place_of(const void *pointer) {
  place found;
  found.kind = sim_classify(pointer, NULL, &found.base, &found.bytes);
  return found;
}

/* The last byte, exclusive, that an operand of this shape reaches from its start; 0 when that overflows. */
static size_t reach(size_t bytes, size_t rows, size_t pitch, size_t slices, size_t slice) {
  size_t down, across, total;
  if (__builtin_mul_overflow(rows - 1, pitch, &down) || __builtin_mul_overflow(slices - 1, slice, &across) ||
      __builtin_add_overflow(down, across, &total) || __builtin_add_overflow(total, bytes, &total))
    return 0;
  return total;
}

static int check_operand(const void *pointer, size_t span, place at) {
  if (!pointer || at.kind == SIM_WILD || !span) return cudaErrorInvalidValue;
  if (at.kind == SIM_PAGEABLE) return cudaSuccess; /* the copy itself finds an unmapped page */
  size_t offset = (size_t)((const char *)pointer - (char *)at.base);
  return span > at.bytes - offset ? cudaErrorInvalidValue : cudaSuccess;
}

static int check_copy(const sim_copy *copy, place to, place from) {
  int error = check_operand(
      copy->destination, reach(copy->bytes, copy->rows, copy->destination_pitch, copy->slices, copy->destination_slice), to);
  if (!error)
    error = check_operand(copy->source,
                          reach(copy->bytes, copy->rows, copy->source_pitch, copy->slices, copy->source_slice), from);
  return error ? error : check_direction(copy->direction, to.kind, from.kind);
}

static int carry_out(const sim_copy *copy, place to, place from) {
  int error = cudaSuccess;
  for (size_t slice = 0; slice < copy->slices; slice++)
    for (size_t row = 0; row < copy->rows; row++) {
      char *target = (char *)copy->destination + slice * copy->destination_slice + row * copy->destination_pitch;
      const char *origin = (const char *)copy->source + slice * copy->source_slice + row * copy->source_pitch;
      error = move(sim_shadow(target), to.kind, sim_shadow(origin), from.kind, copy->bytes);
      if (error) return error;
    }
  return error;
}

int sim_copy_now(const sim_copy *copy) {
  sim_hold();
  place to = place_of(copy->destination), from = place_of(copy->source);
  int error = check_copy(copy, to, from);
  if (!error) error = carry_out(copy, to, from);
  sim_release();
  return error;
}

int sim_run_copy(const sim_copy *copy) {
  int error = sim_ready();
  if (error) return error;
  sim_stream *stream;
  error = sim_stream_enter(copy->stream, &stream);
  if (!stream) return error;
  if (!copy->bytes || !copy->rows || !copy->slices) return error;

  if (!error && copy->uncapturable) error = sim_capture_refuse(stream);
  int capturing = sim_stream_status(stream);
  sim_hold();
  place to = place_of(copy->destination), from = place_of(copy->source);
  if (!error) error = check_copy(copy, to, from);
  if (!error && !sim_stream_add(stream, &(sim_node){.what = SIM_NODE_COPY, .as.copy = *copy}))
    error = carry_out(copy, to, from);
  sim_release();

  int between_devices = on_device(to.kind) && on_device(from.kind);
  int host_to_host = !on_device(to.kind) && !on_device(from.kind);
  int pageable = to.kind == SIM_PAGEABLE || from.kind == SIM_PAGEABLE;
  int refused = sim_capture_error(error); /* by a capture: told, however clean the copy */
  int stalls = refused || (!between_devices && (copy->blocking || pageable || host_to_host));
  sim_report(&(sim_event){.api = copy->api,
                          .bytes = copy->bytes * copy->rows * copy->slices,
                          .rows = copy->rows * copy->slices,
                          .stream = (uint64_t)copy->stream,
                          .event_class = stalls ? SIM_EVENT_COPY_STALL : SIM_EVENT_COPY_ASYNC,
                          .destination = to.kind,
                          .source = from.kind,
                          .blocking = copy->blocking,
                          .capturing = capturing || refused,
                          .result = error});
  return error;
}

int sim_copy_linear(const char *api, void *destination, const void *source, size_t bytes, int direction,
                    int blocking, void *stream) {
  sim_copy copy = {.api = api, .destination = destination, .source = source, .bytes = bytes, .rows = 1,
                   .slices = 1, .direction = direction, .blocking = blocking, .stream = stream};
  return sim_run_copy(&copy);
}

/* ---- batches -------------------------------------------------------------------------------------- */

static int check_batch(const void *copies, size_t count, const void *stream, size_t *failed) {
  if (failed) *failed = SIZE_MAX; /* none of its copies */
  return !copies || !count || (uintptr_t)stream <= 1 ? cudaErrorInvalidValue : cudaSuccess;
}

/* One copy of a batch: a capture refuses the whole, which is told once, as the first of them. */
static int run_in_batch(const sim_copy *copy, size_t index, size_t *failed) {
  int error = sim_run_copy(copy);
  if (error && !sim_capture_error(error) && failed) *failed = index;
  return error;
}

int sim_copy_batch(const char *api, void *const *to, const void *const *from, const size_t *sizes, size_t count,
                   size_t *failed, void *stream) {
  int error = check_batch(to, count, stream, failed);
  if (!from || !sizes) error = cudaErrorInvalidValue;
  for (size_t i = 0; i < count && !error; i++) {
    sim_copy copy = {.api = api, .destination = to[i], .source = from[i], .bytes = sizes[i], .rows = 1, .slices = 1,
                     .direction = cudaMemcpyDefault, .uncapturable = 1, .stream = stream};
    error = run_in_batch(&copy, i, failed);
  }
  return error;
}

int sim_copy_batch_3d(const char *api, const char *of_array, size_t count, const sim_operation *operations,
                      unsigned long long flags, size_t *failed, void *stream) {
  enum { POINTER = 1, ARRAY = 2 };
  int error = check_batch(operations, count, stream, failed);
  if (flags) error = cudaErrorInvalidValue;
  for (size_t i = 0; i < count && !error; i++) {
    const sim_operation *is = &operations[i];
    const sim_operand *to = &is->destination, *from = &is->source;
    if (to->type == ARRAY || from->type == ARRAY) return sim_unsupported(of_array, cudaErrorNotSupported);
    if (to->type != POINTER || from->type != POINTER) return cudaErrorInvalidValue;
    if (!is->width || !is->height || !is->depth) return cudaErrorInvalidValue;
    size_t to_row = to->row ? to->row : is->width, from_row = from->row ? from->row : is->width;
    size_t to_layer = to->layer ? to->layer : is->height, from_layer = from->layer ? from->layer : is->height;
    if (to_row < is->width || from_row < is->width || to_layer < is->height || from_layer < is->height)
      return cudaErrorInvalidValue;
    sim_copy copy = {.api = api, .destination = to->pointer, .source = from->pointer,
                     .bytes = is->width, .rows = is->height, .slices = is->depth,
                     .destination_pitch = to_row, .destination_slice = to_row * to_layer,
                     .source_pitch = from_row, .source_slice = from_row * from_layer,
                     .direction = cudaMemcpyDefault, .uncapturable = 1, .stream = stream};
    error = run_in_batch(&copy, i, failed);
  }
  return error;
}

/* ---- fills ---------------------------------------------------------------------------------------- */

static int check_fill(const sim_filling *fill, place at) {
  size_t row;
  if (__builtin_mul_overflow(fill->element, fill->width, &row)) return cudaErrorInvalidValue;
  if (at.kind == SIM_PAGEABLE || (uintptr_t)fill->destination % fill->element) return cudaErrorInvalidValue;
  int pitched = fill->rows > 1 || fill->slices > 1; /* else the pitch is not used */
  if (pitched && (fill->pitch < row || fill->pitch % fill->element)) return cudaErrorInvalidValue;
  return check_operand(fill->destination, reach(row, fill->rows, fill->pitch, fill->slices, fill->slice), at);
}

static int pour(const sim_filling *fill, place at) {
  char pattern[4096];
  for (size_t i = 0; i < sizeof pattern; i += fill->element) memcpy(pattern + i, &fill->value, fill->element);
  for (size_t i = 0; i < fill->rows * fill->slices; i++) {
    size_t slice = i / fill->rows, row = i % fill->rows;
    char *to = sim_shadow((char *)fill->destination + slice * fill->slice + row * fill->pitch);
    for (size_t left = fill->element * fill->width; left;) {
      size_t part = left < sizeof pattern ? left : sizeof pattern;
      int error = move(to, at.kind, pattern, SIM_DEVICE, part);
      if (error) return error;
      to += part;
      left -= part;
    }
  }
  return cudaSuccess;
}

int sim_fill_now(const sim_filling *fill) {
  sim_hold();
  place at = place_of(fill->destination);
  int error = check_fill(fill, at);
  if (!error) error = pour(fill, at);
  sim_release();
  return error;
}

int sim_fill(const char *api, const sim_filling *fill, int blocking, void *stream_handle) {
  int error = sim_ready();
  if (error) return error;
  sim_stream *stream;
  error = sim_stream_enter(stream_handle, &stream);
  if (!stream) return error;
  if (!fill->width || !fill->rows || !fill->slices) return error;
  int capturing = sim_stream_status(stream);
  sim_hold();
  place at = place_of(fill->destination);
  if (!error) error = check_fill(fill, at);
  if (!error && !sim_stream_add(stream, &(sim_node){.what = SIM_NODE_FILL, .as.fill = *fill})) error = pour(fill, at);
  sim_release();
  int refused = sim_capture_error(error);
  /* A fill of host memory is synchronous; one of device memory is not, whatever its name. */
  sim_report(&(sim_event){.api = api,
                          .bytes = fill->element * fill->width * fill->rows * fill->slices,
                          .rows = fill->rows * fill->slices,
                          .stream = (uint64_t)stream_handle,
                          .event_class = refused || (at.kind != SIM_DEVICE && blocking) ? SIM_EVENT_COPY_STALL : SIM_EVENT_COPY_ASYNC,
                          .destination = at.kind,
                          .source = at.kind,
                          .blocking = blocking,
                          .capturing = capturing || refused,
                          .result = error});
  return error;
}
