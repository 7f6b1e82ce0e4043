/* The Python frames that a call comes from, as part of its key.
 *
 * Of each frame that Python is asked for it makes an object, which takes longer than all else that is
 * done for a call that has been told before.  Debuggers and profilers therefore read a thread's frames
 * where CPython keeps them, and so does this, under CPython's own names: of a version whose layout is
 * given, and if the frames of the thread that opens this are found to lie so.  Else Python is asked.
 */
#include "frames.h"

#include "python.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_FRAMES 200

typedef struct { /* offsets in bytes, in the order of recorders/frame_layout.py */
  uint32_t cframe, current_frame;       /* PyThreadState, _PyCFrame */
  uint32_t f_frame;                     /* PyFrameObject */
  uint32_t f_code, previous, prev_instr; /* _PyInterpreterFrame */
} frame_layout;

static const void *outermost; /* code below which frames do not matter: what runs the test */
static frame_layout layout;
static int known; /* whether frames are laid out so */

static uintptr_t word(const void *start, uint32_t offset) { return *(const uintptr_t *)((const char *)start + offset); }
static const void *follow(const void *start, uint32_t offset) { return (const void *)word(start, offset); }

static const void *innermost_of(const frame_layout *from) {
  return follow(follow(python.PyThreadState_Get(), from->cframe), from->current_frame);
}

static uint64_t key_of_read_frames(uint64_t key) {
  const void *frame = innermost_of(&layout);
  for (int i = 0; frame && i < MOST_FRAMES; i++) {
    key = mixed(key, word(frame, layout.prev_instr)); /* an address within the frame's code */
    frame = follow(frame, layout.f_code) == outermost ? NULL : follow(frame, layout.previous);
  }
  return key;
}

static uint64_t key_of_asked_frames(uint64_t key) {
  void *frame = python.PyEval_GetFrame();
  if (frame) python.Py_IncRef(frame);
  for (int i = 0; frame && i < MOST_FRAMES; i++) {
    void *code = python.PyFrame_GetCode(frame);
    python.Py_DecRef(code); /* its frame keeps it */
    key = mixed(mixed(key, (uint64_t)(uintptr_t)code), (uint64_t)(uint32_t)python.PyFrame_GetLasti(frame));
    void *back = code == outermost ? NULL : python.PyFrame_GetBack(frame);
    python.Py_DecRef(frame);
    frame = back;
  }
  if (frame) python.Py_DecRef(frame);
  return key;
}

uint64_t key_of_frames(uint64_t key) { return known ? key_of_read_frames(key) : key_of_asked_frames(key); }

/* Whether this thread's frames, read so, are those that Python tells of, at the same instructions. */
static int is_layout(const frame_layout *offered) {
  void *frame = python.PyEval_GetFrame();
  uintptr_t instructions = 0; /* where they start in any code */
  int same = frame != NULL;
  if (!same) return 0;
  const void *read = innermost_of(offered);
  python.Py_IncRef(frame);
  while (frame) {
    const void *wanted = follow(frame, offered->f_frame);
    if (read && read != wanted) read = follow(read, offered->previous); /* a frame that Python keeps to itself */
    void *code = python.PyFrame_GetCode(frame);
    same = read == wanted && follow(read, offered->f_code) == code;
    if (same) {
      uintptr_t start = word(read, offered->prev_instr) - (uintptr_t)code - (uintptr_t)python.PyFrame_GetLasti(frame);
      if (!instructions) instructions = start;
      same = start == instructions;
    }
    void *back = same ? python.PyFrame_GetBack(frame) : NULL;
    read = back ? follow(read, offered->previous) : NULL;
    python.Py_DecRef(code);
    python.Py_DecRef(frame);
    frame = back;
  }
  return same;
}

/* Walk no further than a frame of the code `stop_at`.  `offered`: how frames are laid out, or NULL; whether it was
 * found so. */
EXPORT int gi_frames_open(const void *stop_at, const frame_layout *offered) {
  outermost = stop_at;
  known = offered && is_layout(offered);
  if (known) layout = *offered;
  return known;
}
