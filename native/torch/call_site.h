// Where in Python this thread is, without the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

namespace neuron {

// A frame of this thread: its code object (borrowed) and the offset of the instruction it is at, in bytes.
struct CallSite {
  PyCodeObject* code = nullptr;
  int offset = 0;
};

// Walks this thread's Python frames from the innermost outwards until `stop(site)` is true. Needs no GIL: the frames of
// a thread stand still while it is in C code. Gives the last frame seen; an empty site if there is none.
template <typename Stop>
CallSite walk_frames(const Stop& stop);

}  // namespace neuron

// The frame layout is CPython's own and differs by version.
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
#define NEURON_READS_FRAMES 1
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#define NEURON_BUILD_CORE 1
#endif
#include <internal/pycore_frame.h>
#ifdef NEURON_BUILD_CORE
#undef Py_BUILD_CORE
#endif

namespace neuron {
template <typename Stop>
CallSite walk_frames(const Stop& stop) {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (!thread || !thread->cframe) return {};
  for (_PyInterpreterFrame* f = thread->cframe->current_frame; f; f = f->previous) {
    const CallSite site{f->f_code, static_cast<int>(_PyInterpreterFrame_LASTI(f) * sizeof(_Py_CODEUNIT))};
    if (stop(site)) return site;
  }
  return {};
}
}  // namespace neuron

#else
#define NEURON_READS_FRAMES 0
#include <frameobject.h>

namespace neuron {
// Other versions: through the public interface, with the GIL.
template <typename Stop>
CallSite walk_frames(const Stop& stop) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  CallSite found;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const CallSite site{code, PyFrame_GetLasti(frame)};
    Py_DECREF(code);  // the frame keeps it
    const bool done = stop(site);
    if (done) found = site;
    PyFrameObject* back = done ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  PyGILState_Release(gil);
  return found;
}
}  // namespace neuron
#endif
