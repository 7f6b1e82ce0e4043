/* A CUPTI and a driver for one test process: calls are made up, memory lies where its address says. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
  int32_t site;
  const char *function;
  const void *parameters;
  const int32_t *result;
  const char *symbol;
  void *context;
  uint32_t context_id;
  uint64_t *correlation_data;
  uint32_t correlation_id;
} data;
typedef void (*callback)(void *user, int32_t domain, uint32_t id, const data *data);
typedef struct {
  size_t size;
  const char *name;
  char *holder;
  size_t holder_size;
} options;

static callback subscribed;
static void *with;
static const char *held;
static int refusal;
static char enabled[3][2048];
static int questions, subscriptions, initialized;
static uint64_t current_context;
static int current_device = 3;

int cuptiSubscribe_v2(void **subscriber, callback function, void *user, options *options) {
  if (held) {
    snprintf(options->holder, options->holder_size, "%s", held);
    return 39;
  }
  if (refusal) return refusal;
  if (subscribed) return 39;
  subscribed = function;
  with = user;
  subscriptions++;
  *subscriber = &subscribed;
  return 0;
}
int cuptiSubscribe(void **subscriber, callback function, void *user) {
  return cuptiSubscribe_v2(subscriber, function, user, NULL);
}
int cuptiEnableCallback(uint32_t on, void *subscriber, int32_t domain, uint32_t id) {
  if (subscriber != &subscribed || domain < 1 || domain > 2) return 1;
  enabled[domain][id] = (char)on;
  return 0;
}
int cuptiUnsubscribe(void *subscriber) {
  if (subscriber != &subscribed || !subscribed) return 1;
  subscribed = NULL;
  memset(enabled, 0, sizeof enabled);
  return 0;
}

/* Addresses: 0x1... is pageable, 0x2... pinned, 0x3... device memory; streams: 7 is being captured. */
int cuPointerGetAttributes(unsigned count, const int *attributes, unsigned **out, uint64_t pointer) {
  questions++;
  if (count != 1 || attributes[0] != 2) return 1;
  uint64_t kind = pointer >> 12;
  out[0][0] = kind == 2 ? 1 : kind == 3 ? 2 : 0;
  return 0;
}
int cuStreamIsCapturing(uint64_t stream, int *status) {
  *status = stream == 7;
  return 0;
}
int cuCtxGetDevice(int *device) {
  *device = current_device;
  return 0;
}
int cuDeviceGetCount(int *count) {
  *count = 1;
  return initialized ? 0 : 3;
}

void fake_current(uint64_t context, int device) {
  current_context = context;
  current_device = device;
}
void fake_hold(const char *name) { held = name; }
void fake_refuse(int error) { refusal = error; }
void fake_initialize(int state) { initialized = state; }
int fake_questions(void) { return questions; }
int fake_subscriptions(void) { return subscriptions; }
int fake_is_subscribed(void) { return subscribed != NULL; }
int fake_is_enabled(int domain, int id) { return enabled[domain][id]; }

/* One half of a call, if anyone listens to it: site 0 before, 1 after. */
int fake_fire(int site, int domain, int id, const char *function, const void *parameters, int result,
              const char *symbol) {
  if (!subscribed || !enabled[domain][id]) return 0;
  data now = {.site = site, .function = function, .parameters = parameters, .symbol = symbol,
              .context = (void *)current_context};
  if (site) now.result = &result;
  subscribed(with, domain, (uint32_t)id, &now);
  return 1;
}

/* So many calls without a return to Python. */
void fake_repeat(int domain, int id, const void *parameters, int times) {
  for (int i = 0; i < times; i++)
    for (int site = 0; site < 2; site++) fake_fire(site, domain, id, "function", parameters, 0, "kernel");
}
