/* The functions of CPython that are used here, under its own names: filled in by Python, so that neither its
 * headers nor a library of it is needed to build.  Objects are opaque but for their head. */
#ifndef GPUINVARIANTS_PYTHON_H
#define GPUINVARIANTS_PYTHON_H

#include <stddef.h>

typedef struct { /* in the order of recorders/native.py */
  int (*Py_IsInitialized)(void);
  int (*PyGILState_Check)(void);
  int (*PyGILState_Ensure)(void);
  void (*PyGILState_Release)(int state);
  void *(*PyGILState_GetThisThreadState)(void); /* NULL on a thread that Python does not know */
  void *(*PyThreadState_Get)(void);
  void *(*PyEval_GetFrame)(void); /* borrowed; NULL on a thread that Python did not start */
  void *(*PyFrame_GetBack)(void *frame);
  void *(*PyFrame_GetCode)(void *frame);
  int (*PyFrame_GetLasti)(void *frame);
  void (*Py_IncRef)(void *object);
  void (*Py_DecRef)(void *object);
  void *(*PyObject_CallFunction)(void *callable, const char *format, ...);
  void (*PyErr_Fetch)(void **type, void **value, void **trace);
  void (*PyErr_Restore)(void *type, void *value, void *trace);
  void (*PyErr_WriteUnraisable)(void *object);
  int (*Py_AddPendingCall)(int (*function)(void *), void *argument);
  int (*PyContextVar_Get)(void *variable, void *otherwise, void **value);
  void *(*PyType_FromSpec)(void *specification);
  void *(*PyType_GenericAlloc)(void *type, ptrdiff_t items);
  void *(*PyMethod_New)(void *function, void *self);
  void *(*PyObject_GetAttr)(void *object, void *name);
  void *(*PyObject_Vectorcall)(void *callable, void *const *arguments, size_t count, void *keywords);
  void *(*PyVectorcall_Call)(void *callable, void *arguments, void *keywords);
  ptrdiff_t (*PyTuple_Size)(void *tuple);
} python_functions;

extern python_functions python;

#endif
