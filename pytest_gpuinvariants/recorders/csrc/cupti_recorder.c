/* Calls of the CUDA runtime and driver API, as CUPTI reports them, filtered before any Python runs.
 *
 * CUPTI is subscribed only between start and stop.  Its callback runs on the calling thread, before
 * and after each call that was asked for.  Before the call only the depth is counted, so that what
 * a runtime call does in the driver is not told a second time; after it the call is judged by where
 * its memory lies, and only what can concern a rule reaches the listener.
 *
 * No header of CUDA or CUPTI is needed, only the numbers and layouts of cupti_apis.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "cupti.h"
#include "native_event.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- CUPTI and the driver, as far as they are used --------------------------------------------- */

enum { DRIVER = 1, RUNTIME = 2 }; /* CUPTI's callback domains */
enum { ENTER = 0, EXIT = 1 };
enum { NOT_OPEN = -1 }; /* beside CUPTI's own results */

typedef struct { /* CUpti_CallbackData */
  int32_t site;
  const char *function;
  const uint64_t *parameters;
  const int32_t *result;
  const char *symbol; /* the kernel's name, at a launch */
  void *context;
  uint32_t context_id;
  uint64_t *correlation_data;
  uint32_t correlation_id;
} callback_data;
typedef void (*callback)(void *user, int32_t domain, uint32_t id, const callback_data *data);
typedef struct { /* CUpti_SubscriberParams */
  size_t size;
  const char *name;
  char *holder;
  size_t holder_size;
} subscriber_options;

static struct {
  int (*subscribe)(void **subscriber, callback function, void *user);
  int (*subscribe_v2)(void **subscriber, callback function, void *user, subscriber_options *options);
  int (*enable)(uint32_t on, void *subscriber, int32_t domain, uint32_t id);
  int (*unsubscribe)(void *subscriber);
} cupti;
static struct {
  int (*pointer_attributes)(unsigned count, const int *attributes, void **out, uint64_t pointer);
  int (*is_capturing)(uint64_t stream, int *status);
  int (*current_device)(int *device);
} cuda;

/* ---- the table of calls -------------------------------------------------------------------------- */

enum { NONE = -1, ARRAY = -2 };
enum { SIMPLE, RUNTIME_3D, RUNTIME_3D_PEER, DRIVER_2D, DRIVER_3D, MANY, MANY_3D }; /* layouts */
typedef struct {
  const char *api; /* NULL: not recorded */
  int event_class; /* of a copy: COPY_STALL, until its memory is known */
  int blocking, layout;
  int to, from;    /* slots of the operands; of a fill `from` is NONE, of a launch the function's slot */
  int stream, direction;
  int config;      /* of a launch: the slot of the structure that holds the stream */
  int element, width, height, depth; /* bytes: element x the product of these slots */
} call;

#define IDS 1024
#define NO_SIZE .element = 0, .width = NONE, .height = NONE, .depth = NONE
static const call calls[][IDS] = {
#define SYNC(domain, id, name, at) \
  [domain][id] = {#name, GI_SYNC, 1, SIMPLE, .to = NONE, .from = NONE, .stream = at, NO_SIZE},
#define ALLOC(domain, id, name, size, rows) \
  [domain][id] = {#name, GI_ALLOC, 1, SIMPLE, .to = NONE, .from = NONE, .stream = NONE, .element = 1, .width = size, \
                  .height = rows, .depth = NONE},
#define LAUNCH(domain, id, name, function, at, in) \
  [domain][id] = {#name, GI_LAUNCH, 0, SIMPLE, .to = NONE, .from = function, .stream = at, .config = in, NO_SIZE},
#define FILL(domain, id, name, blocks, unit, w, h, d, at) \
  [domain][id] = {#name, GI_COPY_STALL, blocks, SIMPLE, .to = 0, .from = NONE, .stream = at, .element = unit, \
                  .direction = NONE, .width = w, .height = h, .depth = d},
#define COPY(domain, id, name, blocks, target, source, w, h, at, kind) \
  [domain][id] = {#name, GI_COPY_STALL, blocks, SIMPLE, .to = target, .from = source, .stream = at, \
                  .direction = kind, .element = 1, .width = w, .height = h, .depth = NONE},
#define AREA(domain, id, name, blocks, shape, at) \
  [domain][id] = {#name, GI_COPY_STALL, blocks, shape, .stream = at},
#define BATCH(domain, id, name, at) [domain][id] = {#name, GI_COPY_STALL, 0, MANY, .stream = at},
#define BATCH_3D(domain, id, name, at) [domain][id] = {#name, GI_COPY_STALL, 0, MANY_3D, .stream = at},
#include "cupti_apis.h"
};

/* ---- state ---------------------------------------------------------------------------------------- */

static void *subscriber;
static gi_listener listener;
static uint32_t wanted;     /* classes; 0 while stopped */
static uint32_t generation; /* of the subscription: a thread may have left the last one inside a call */

static _Thread_local struct {
  uint32_t generation;
  uint32_t thread; /* asked for once: a system call may take longer than all the rest */
  void *context;   /* of the latest event, */
  int device;      /* whose device this is */
  int depth;   /* recorded runtime calls under way */
  int hearing; /* the listener runs: what it calls is no event */
} self;

static int device_of(const callback_data *data) {
  if (data->context && data->context == self.context) return self.device;
  self.context = data->context;
  if (cuda.current_device(&self.device)) self.device = 0;
  return self.device;
}

static void deliver(gi_event *event, const callback_data *data) {
  gi_listener hears = __atomic_load_n(&listener, __ATOMIC_ACQUIRE);
  if (!hears) return; /* stopped just now, by another thread */
  self.hearing = 1;
  event->device = device_of(data);
  event->thread = self.thread;
  hears(event);
  self.hearing = 0;
}

/* ---- memory --------------------------------------------------------------------------------------- */

static int memory_at(uint64_t pointer) {
  enum { MEMORY_TYPE = 2, UNKNOWN = 0, HOST = 1 };
  static const int attribute = MEMORY_TYPE;
  unsigned type = UNKNOWN;
  void *out = &type;
  /* The plural form: of memory that the driver does not know, the singular one makes an error, which takes long. */
  if (cuda.pointer_attributes(1, &attribute, &out, pointer) || type == UNKNOWN) return GI_PAGEABLE;
  return type == HOST ? GI_PINNED : GI_DEVICE;
}

static uint64_t slot(const uint64_t *structure, int index) { return index < 0 ? 0 : structure[index]; }
static uint64_t factor(const uint64_t *structure, int index) { return index < 0 ? 1 : structure[index]; }

typedef struct {
  int to, from; /* kinds of memory */
  uint64_t bytes, rows;
} transfer;

/* One side of a driver's 2D or 3D copy: its memory type, then host, device and array, in four slots. */
static int driver_side(const uint64_t *type) {
  enum { HOST = 1, DEVICE = 2, UNIFIED = 4 };
  switch ((uint32_t)type[0]) {
    case HOST: return memory_at(type[1]);
    case UNIFIED: return memory_at(type[2]);
    default: return GI_DEVICE;
  }
}
/* One side of a runtime's 3D copy: an array, or the pointer beside it. */
static int runtime_side(const uint64_t *structure, int array, int pointer) {
  return structure[array] ? GI_DEVICE : memory_at(structure[pointer]);
}
/* One side of a copy in a 3D batch: 1 is a pointer, 2 an array. */
static int operand(const uint64_t *side) { return (uint32_t)side[0] == 1 ? memory_at(side[1]) : GI_DEVICE; }

/* A copy within a structure.  Of arrays the extent counts elements, whose size is not known here. */
static transfer read_area(int layout, const uint64_t *area) {
  transfer read = {GI_DEVICE, GI_DEVICE, 0, 1};
  int extent = 0, dimensions = 3;
  switch (layout) {
    case RUNTIME_3D:
      read = (transfer){runtime_side(area, 8, 12), runtime_side(area, 0, 4), 0, 1};
      extent = 16;
      break;
    case RUNTIME_3D_PEER:
      read = (transfer){runtime_side(area, 9, 13), runtime_side(area, 0, 4), 0, 1};
      extent = 18;
      break;
    case DRIVER_2D:
      read = (transfer){driver_side(area + 9), driver_side(area + 2), 0, 1};
      extent = 14;
      dimensions = 2;
      break;
    case DRIVER_3D:
      read = (transfer){driver_side(area + 15), driver_side(area + 4), 0, 1};
      extent = 22;
      break;
    case MANY_3D:
      read = (transfer){operand(area + 5), operand(area), 0, 1};
      extent = 10;
      break;
  }
  for (int i = 1; i < dimensions; i++) read.rows *= area[extent + i];
  read.bytes = area[extent] * read.rows;
  return read;
}
enum { OPERATION_SLOTS = 14 }; /* size of one copy in a 3D batch */

/* The direction that a copy declares, a cudaMemcpyKind.  A side on the device by that is not asked about where it can
 * not change the verdict: pageable memory there would make the call fail, and pinned memory is told as the device's. */
enum { UNDECLARED = 0, HOST_TO_DEVICE = 1, DEVICE_TO_DEVICE = 3 };
static int direction_of(const call *made, const uint64_t *parameters) {
  return made->direction == NONE ? UNDECLARED : (int)parameters[made->direction];
}

static transfer read_simple(const call *made, const uint64_t *parameters) {
  transfer read = {GI_DEVICE, GI_DEVICE, 0, factor(parameters, made->height) * factor(parameters, made->depth)};
  read.bytes = (uint64_t)made->element * slot(parameters, made->width) * read.rows;
  int direction = direction_of(made, parameters);
  if (direction == DEVICE_TO_DEVICE) return read;
  if (made->from != ARRAY && made->from != NONE) read.from = memory_at(parameters[made->from]);
  if (direction == HOST_TO_DEVICE && read.from == GI_PAGEABLE) return read;
  if (made->to != ARRAY) read.to = memory_at(parameters[made->to]);
  if (made->from == NONE) read.from = read.to;
  return read;
}

/* ---- judging a call that has returned -------------------------------------------------------------- */

static int refused_by_capture(int result) { return result >= 900 && result <= 908; }

static int capturing(const callback_data *data, uint64_t stream) {
  enum { PER_THREAD = 2 };
  int status = 0;
  if (!stream && strstr(data->function, "_pt")) stream = PER_THREAD;
  return !cuda.is_capturing(stream, &status) && status != 0;
}

/* The structure in which a call's stream lies. */
static const uint64_t *holder_of_stream(const call *made, const uint64_t *parameters) {
  int within = made->event_class == GI_LAUNCH && made->config != NONE;
  return within ? (const uint64_t *)parameters[made->config] : parameters;
}

static gi_event event_of(const call *made, const callback_data *data) {
  int result = data->result ? *data->result : 0;
  gi_event event = {.api = made->api, .event_class = made->event_class, .blocking = made->blocking, .rows = 1,
                    .result = result, .capturing = refused_by_capture(result)};
  event.stream = slot(holder_of_stream(made, data->parameters), made->stream);
  if (!event.capturing && made->stream != NONE) event.capturing = capturing(data, event.stream);
  return event;
}

static void judge_transfer(const call *made, const callback_data *data, transfer moved) {
  int fill = made->layout == SIMPLE && made->from == NONE;
  int refused = refused_by_capture(*data->result);
  int on_device = moved.to == GI_DEVICE && moved.from == GI_DEVICE;
  int on_host = moved.to != GI_DEVICE && moved.from != GI_DEVICE;
  int pageable = moved.to == GI_PAGEABLE || moved.from == GI_PAGEABLE;
  /* A fill of host memory is synchronous; one of device memory is not, whatever its name. */
  int stalls = fill ? on_host && made->blocking : !on_device && (made->blocking || pageable || on_host);
  if (!stalls && !refused) return;
  if (!moved.bytes && !refused) return; /* nothing to wait for */
  gi_event event = event_of(made, data);
  event.bytes = moved.bytes;
  event.rows = moved.rows;
  event.destination = moved.to;
  event.source = moved.from;
  deliver(&event, data);
}

static void judge_copy(const call *made, const callback_data *data) {
  const uint64_t *parameters = data->parameters;
  if (made->layout == SIMPLE) {
    judge_transfer(made, data, read_simple(made, parameters));
  } else if (made->layout == MANY) {
    const uint64_t *to = (const uint64_t *)parameters[0], *from = (const uint64_t *)parameters[1];
    const uint64_t *bytes = (const uint64_t *)parameters[2];
    for (uint64_t i = 0; i < parameters[3]; i++)
      judge_transfer(made, data, (transfer){memory_at(to[i]), memory_at(from[i]), bytes[i], 1});
  } else if (made->layout == MANY_3D) {
    const uint64_t *operations = (const uint64_t *)parameters[1];
    for (uint64_t i = 0; i < parameters[0]; i++)
      judge_transfer(made, data, read_area(MANY_3D, operations + i * OPERATION_SLOTS));
  } else {
    judge_transfer(made, data, read_area(made->layout, (const uint64_t *)parameters[0]));
  }
}

static void judge_launch(const call *made, const callback_data *data) {
  const kernel *launched = kernel_of(slot(data->parameters, made->from), data->symbol);
  if (launched->torch) return;
  gi_event event = event_of(made, data);
  event.kernel = launched->name;
  event.library = launched->library;
  deliver(&event, data);
}

/* Apart from on_call, which most often has nothing to judge and should do as little as it can. */
static __attribute__((noinline)) void judge(const call *made, const callback_data *data) {
  int result = data->result ? *data->result : 0;
  /* A call that failed has neither moved anything nor waited; only what a capture refuses is told. */
  if (result && !refused_by_capture(result)) return;
  if (made->event_class == GI_COPY_STALL) {
    judge_copy(made, data);
  } else if (made->event_class == GI_LAUNCH) {
    judge_launch(made, data);
  } else {
    gi_event event = event_of(made, data);
    event.bytes = (uint64_t)made->element * slot(data->parameters, made->width) * factor(data->parameters, made->height);
    deliver(&event, data);
  }
}

static __attribute__((noinline)) void begin_thread(void) {
  self.generation = generation; /* a process that was forked off subscribes anew */
  self.thread = (uint32_t)gettid();
  self.depth = 0;
  self.context = NULL;
}

static void on_call(void *user, int32_t domain, uint32_t id, const callback_data *data) {
  (void)user;
  int enters = data->site == ENTER;
  if (enters && domain == DRIVER) return; /* only a runtime call has others within it */
  if (self.generation != generation) begin_thread();
  if (self.hearing) return;
  if (domain == RUNTIME) self.depth += enters ? 1 : self.depth > 0 ? -1 : 0;
  if (enters || self.depth) return;
  const call *made = &calls[domain][id]; /* none but these are enabled */
  if (made->event_class & __atomic_load_n(&wanted, __ATOMIC_RELAXED)) judge(made, data);
}

/* ---- for Python ------------------------------------------------------------------------------------ */

/* Take the functions from libcupti and from the driver; 0, or NOT_OPEN with dlerror's text. */
EXPORT int gi_cupti_open(const char *libcupti, const char *libcuda, const char **problem) {
  void *library = dlopen(libcupti, RTLD_NOW | RTLD_LOCAL), *driver = dlopen(libcuda, RTLD_NOW | RTLD_GLOBAL);
  *problem = "";
  if (library && driver) {
    *(void **)&cupti.subscribe = dlsym(library, "cuptiSubscribe");
    *(void **)&cupti.subscribe_v2 = dlsym(library, "cuptiSubscribe_v2"); /* since CUDA 13 */
    *(void **)&cupti.enable = dlsym(library, "cuptiEnableCallback");
    *(void **)&cupti.unsubscribe = dlsym(library, "cuptiUnsubscribe");
    *(void **)&cuda.pointer_attributes = dlsym(driver, "cuPointerGetAttributes");
    *(void **)&cuda.is_capturing = dlsym(driver, "cuStreamIsCapturing");
    *(void **)&cuda.current_device = dlsym(driver, "cuCtxGetDevice");
    kernels_prepare();
    if (cupti.subscribe && cupti.enable && cupti.unsubscribe && cuda.pointer_attributes && cuda.is_capturing &&
        cuda.current_device)
      return 0;
  }
  const char *error = dlerror();
  if (error) *problem = error;
  return NOT_OPEN;
}

EXPORT int gi_cupti_stop(void) {
  __atomic_store_n(&wanted, 0u, __ATOMIC_RELEASE);
  __atomic_store_n(&listener, NULL, __ATOMIC_RELEASE);
  if (!subscriber) return 0;
  int result = cupti.unsubscribe(subscriber);
  subscriber = NULL;
  return result;
}

static int enable_calls(uint32_t classes) {
  /* Runtime calls of these classes are always heard: what they do in the driver is theirs. */
  uint32_t in_runtime = classes & ~GI_LAUNCH ? classes | GI_SYNC | GI_COPY_STALL | GI_ALLOC : classes;
  int any = 0;
  for (int domain = DRIVER; domain <= RUNTIME; domain++)
    for (uint32_t id = 0; id < IDS; id++) {
      const call *made = &calls[domain][id];
      if (!made->api || !(made->event_class & (domain == RUNTIME ? in_runtime : classes))) continue;
      /* An older CUPTI does not know the newest calls, which then can not be made either. */
      any += !cupti.enable(1, subscriber, domain, id);
    }
  return any;
}

/* Hear these classes, too. */
EXPORT void gi_cupti_widen(uint32_t classes) {
  if (!subscriber) return;
  __atomic_or_fetch(&wanted, classes, __ATOMIC_RELEASE);
  enable_calls(wanted);
}

/* Subscribe; CUPTI's result, or NOT_OPEN.  `holder` receives the name of a tool that is in the way. */
EXPORT int gi_cupti_start(gi_listener hears, uint32_t classes, char *holder, size_t holder_size) {
  if (!cupti.enable) return NOT_OPEN;
  if (subscriber) gi_cupti_stop();
  if (holder_size) *holder = 0;
  subscriber_options options = {sizeof options, "pytest-gpuinvariants", holder, holder_size};
  int result = cupti.subscribe_v2 ? cupti.subscribe_v2(&subscriber, on_call, NULL, &options)
                                  : cupti.subscribe(&subscriber, on_call, NULL);
  if (result) {
    subscriber = NULL;
    return result;
  }
  generation++;
  __atomic_store_n(&listener, hears, __ATOMIC_RELEASE);
  __atomic_store_n(&wanted, classes, __ATOMIC_RELEASE);
  if (enable_calls(classes)) return 0;
  gi_cupti_stop();
  return NOT_OPEN;
}
