#include <Python.h>
#include <frameobject.h>
#include <torch/csrc/utils/pybind.h>

#include <fstream>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "origin.h"

namespace neuron {
namespace {

std::vector<std::string>& library_folders() {
  static std::vector<std::string> folders;
  return folders;
}

bool is_library(const char* file) {
  if (file[0] == '<' && std::string_view(file).starts_with("<frozen")) return true;
  for (const auto& folder : library_folders()) {
    if (std::string_view(file).starts_with(folder)) return true;
  }
  return false;
}

const Origin* intern(const char* file, int line, const char* function) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int>, Origin> origins;
  std::lock_guard<std::mutex> lock(mutex);
  return &origins.try_emplace({file, line}, Origin{file, line, function}).first->second;
}

}  // namespace

void set_library_folders(std::vector<std::string> folders) { library_folders() = std::move(folders); }

const Origin* capture_origin() {
  if (!Py_IsInitialized()) return nullptr;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const int collecting = PyGC_Disable();  // a finaliser could record ops, and the window is locked
  const Origin* origin = nullptr;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file && !is_library(file)) {
      const char* function = PyUnicode_AsUTF8(code->co_name);
      origin = intern(file, PyFrame_GetLineNumber(frame), function ? function : "?");
    }
    Py_DECREF(code);
    PyFrameObject* back = origin ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  if (PyErr_Occurred()) PyErr_Clear();
  if (collecting) PyGC_Enable();
  PyGILState_Release(gil);
  return origin;
}

void warn_at(const Origin* origin, const std::string& message) {
  pybind11::gil_scoped_acquire gil;
  const int failed = origin ? PyErr_WarnExplicit(PyExc_UserWarning, message.c_str(), origin->file.c_str(), origin->line,
                                                 nullptr, nullptr)
                            : PyErr_WarnEx(PyExc_UserWarning, message.c_str(), 1);
  if (failed) throw pybind11::error_already_set();
}

std::string describe(const Origin* origin) {
  if (!origin) return {};
  std::string text = origin->file + ":" + std::to_string(origin->line) + ", in " + origin->function;
  std::ifstream in(origin->file);
  std::string line;
  for (int i = 0; i < origin->line && std::getline(in, line); ++i) {
  }
  if (in) {
    const size_t start = line.find_first_not_of(" \t");
    if (start != std::string::npos) text += ": " + line.substr(start);
  }
  return text;
}

}  // namespace neuron
