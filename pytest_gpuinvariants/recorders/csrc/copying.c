/* Stand-ins for Tensor's copying methods, which do nothing but remember the operands while they run.
 *
 * Written in C because they run in every copy while a region is armed; a Python function in their
 * place would cost more than all of the rest. */
#include <stdint.h>

#include "python.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct copying_object copying_object;
typedef void *(*vectorcall)(copying_object *self, void *const *arguments, size_t count, void *keywords);
struct copying_object {
  intptr_t references; /* the head of every object */
  void *type;
  vectorcall call;
  void *original;
};

typedef struct under_way {
  void *const *arguments;
  size_t count;
  const struct under_way *outer;
} under_way;
static _Thread_local const under_way *innermost;

static void *call(copying_object *self, void *const *arguments, size_t count, void *keywords) {
  const size_t flag = (size_t)1 << (8 * sizeof(size_t) - 1); /* the caller lends the slot before the arguments */
  size_t named = keywords ? (size_t)python.PyTuple_Size(keywords) : 0; /* their values come after the others */
  under_way here = {arguments, (count & ~flag) + named, innermost};
  innermost = &here;
  void *result = python.PyObject_Vectorcall(self->original, arguments, count & ~flag, keywords);
  innermost = here.outer;
  return result;
}

static void *bind(void *self, void *object, void *type) {
  (void)type;
  if (object) return python.PyMethod_New(self, object);
  python.Py_IncRef(self);
  return self;
}

/* To whoever looks, it is the method itself: name, documentation, class. */
static void *attribute(copying_object *self, void *name) { return python.PyObject_GetAttr(self->original, name); }

/* ---- the type: numbers and layouts of CPython's stable ABI ------------------------------------------- */

enum { TP_CALL = 50, TP_DESCR_GET = 54, TP_GETATTRO = 58, TP_MEMBERS = 72 };
enum { METHOD_DESCRIPTOR = 1 << 17, HAVE_VECTORCALL = 1 << 11 };
enum { SSIZE_MEMBER = 19, READ_ONLY = 1 };
typedef struct {
  const char *name;
  int type;
  ptrdiff_t offset;
  int flags;
  const char *doc;
} member;
typedef struct {
  int slot;
  void *function;
} type_slot;
typedef struct {
  const char *name;
  int size, item_size;
  unsigned flags;
  type_slot *slots;
} type_specification;

static void *make_type(void) {
  static member members[] = {
      {"__vectorcalloffset__", SSIZE_MEMBER, offsetof(copying_object, call), READ_ONLY, NULL},
      {NULL, 0, 0, 0, NULL},
  };
  type_slot slots[] = {
      {TP_CALL, *(void **)&python.PyVectorcall_Call},
      {TP_DESCR_GET, (void *)(uintptr_t)bind},
      {TP_GETATTRO, (void *)(uintptr_t)attribute},
      {TP_MEMBERS, members},
      {0, NULL},
  };
  type_specification specification = {"pytest_gpuinvariants.copying", sizeof(copying_object), 0,
                                      METHOD_DESCRIPTOR | HAVE_VECTORCALL, slots};
  return python.PyType_FromSpec(&specification);
}

/* A stand-in for a method, as a new reference; NULL with Python's error set.  It and the method live for ever. */
EXPORT void *gi_copying(void *original) {
  static void *type;
  if (!type && !(type = make_type())) return NULL;
  copying_object *made = python.PyType_GenericAlloc(type, 0);
  if (!made) return NULL;
  python.Py_IncRef(made);
  python.Py_IncRef(original);
  made->original = original;
  made->call = call;
  return made;
}

/* The operands of the copying method that this thread is in, borrowed: how many, and each. */
EXPORT size_t gi_operands(void) { return innermost ? innermost->count : 0; }
EXPORT void *gi_operand(size_t index) {
  void *operand = innermost->arguments[index];
  python.Py_IncRef(operand);
  return operand;
}
