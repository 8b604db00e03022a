// The Python module `adaptive_eager.native._C`.

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "allocator.h"
#include "collectives.h"
#include "device.h"
#include "fallback.h"
#include "fork.h"
#include "generator.h"
#include "host_memory.h"
#include "op_table.h"
#include "origin.h"
#include "planner_bridge.h"
#include "recorder.h"
#include "runtime_api.h"

namespace py = pybind11;

namespace neuron {
namespace {

// `addresses`: function name -> address, from the runtime that Python opened and checked. Once a process.
void attach_runtime(const std::map<std::string, uintptr_t>& addresses, int devices) {
  RuntimeApi& api = runtime_api();
  TORCH_CHECK(!api.tensor_allocate, "the neuron runtime is attached already");
  const auto take = [&](auto& fn, const char* name) {
    fn = reinterpret_cast<std::remove_reference_t<decltype(fn)>>(addresses.at(name));
  };
  take(api.tensor_allocate, "nrt_tensor_allocate");
  take(api.tensor_free, "nrt_tensor_free");
  take(api.tensor_get_va, "nrt_tensor_get_va");
  take(api.status_as_str, "nrt_get_status_as_str");
  take(api.vnc_memory_stats, "nrt_get_vnc_memory_stats");
  api.device_count = devices;
  register_hooks();
  // What is made at its first use is made now: a fork while another thread makes it would hang the child.
  for (int d = 0; d < devices; ++d) {
    memory_stats(d);
    recorder(d);
    default_generator(d);
  }
  fallback_counts();
  install_host_memory();
  register_op_table();
  register_collectives();
}

void flush_all(FlushCause cause) {
  py::gil_scoped_release no_gil;
  for (int d = 0; d < device_count(); ++d) recorder(d).flush(cause);
}

// synchronize(device); -1: the current one. Not through pybind11, which costs as much as recording an op.
PyObject* synchronize(PyObject*, PyObject* number) {
  HANDLE_TH_ERRORS
  const long device = PyLong_AsLong(number);
  if (device == -1 && PyErr_Occurred()) throw python_error();
  struct NoGil {
    PyThreadState* const state = PyEval_SaveThread();
    ~NoGil() { PyEval_RestoreThread(state); }
  } no_gil;
  recorder(device < 0 ? current_device() : static_cast<int>(device)).flush(FlushCause::kSynchronize);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef g_direct[] = {{"synchronize", &synchronize, METH_O, nullptr}, {}};

py::dict stats_dict() {
  const Stats& s = stats();
  py::dict d;
  d["ops_recorded"] = s.ops_recorded;
  d["windows"] = s.windows;
  d["plans_hit"] = s.plans_hit;
  d["plans_new"] = s.plans_new;
  d["launches"] = s.launches;
  d["fused_ops"] = s.fused_ops;
  d["host_ops"] = s.host_ops;
  py::dict causes;
  for (size_t i = 0; i < kFlushCauseNames.size(); ++i) {
    if (s.flush_causes[i]) causes[kFlushCauseNames[i]] = s.flush_causes[i];
  }
  d["flush_causes"] = causes;
  return d;
}

// Fork: no lock may be held by another thread at the moment of the fork.
void before_fork() {
  py::gil_scoped_release no_gil;
  for (int d = 0; d < device_count(); ++d) {
    recorder(d).flush(FlushCause::kFork);
    recorder(d).execution_mutex().lock();
    recorder(d).window_mutex().lock();
  }
  lock_for_fork();
}

void after_fork(bool child) {
  unlock_after_fork();
  for (int d = 0; d < device_count(); ++d) {
    recorder(d).window_mutex().unlock();
    recorder(d).execution_mutex().unlock();
  }
  if (child) mark_forked_child();
}

}  // namespace
}  // namespace neuron

PYBIND11_MODULE(_C, m) {
  using namespace neuron;
  m.def("attach_runtime", &attach_runtime);
  m.def("set_planner", &set_planner);
  m.def("defer_interrupt", &defer_interrupt);
  m.def("set_library_folders", &set_library_folders);
  m.def("flush", [] { flush_all(FlushCause::kUser); });
  PyModule_AddFunctions(m.ptr(), g_direct);
  m.def("set_mode", [](int mode) {
    TORCH_CHECK(mode >= 0 && mode <= 2, "no such mode: ", mode);
    if (static_cast<Mode>(mode) == params().mode) return;
    flush_all(FlushCause::kModeChange);
    params().mode = static_cast<Mode>(mode);
  });
  m.def("mode", [] { return static_cast<int>(params().mode); });
  m.def("set_param", [](const std::string& name, int64_t value) {
    Params& p = params();
    if (name == "max_ops")
      p.max_ops = value;
    else if (name == "min_ops")
      p.min_ops = value;
    else if (name == "max_bytes")
      p.max_bytes = value;
    else if (name == "hot_after")
      p.hot_after = value;
    else if (name == "trace_bytes")
      p.trace_bytes = value;
    else if (name == "parallel_grain")
      p.parallel_grain = value;
    else
      TORCH_CHECK(false, "the extension has no parameter ", name);
  });
  m.def("stats", &stats_dict);
  m.def("reset_stats", [] { stats() = Stats{}; });
  m.def("plans", [](int device) { return recorder(device).plans(); });
  m.def("clear_plans", [] {
    py::gil_scoped_release no_gil;
    for (int d = 0; d < device_count(); ++d) recorder(d).clear_plans();
  });
  m.def("set_fallback_policy", [](int policy) { set_fallback_policy(static_cast<FallbackPolicy>(policy)); });
  m.def("fallback_counts", &fallback_counts);
  m.def("clear_fallback_counts", &clear_fallback_counts);
  m.def("op_table", [] {
    py::list rows;
    for (const OpTableEntry& e : op_table_entries()) rows.append(py::make_tuple(e.name, e.kind, e.schema));
    return rows;
  });
  m.def("default_generator", [](int device) { return default_generator(device); });
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_device);
  m.def("memory_stats", &memory_stats);
  m.def("memory_info", &memory_info);
  m.def("reset_peak_stats", &reset_peak_stats);
  m.def("empty_cache", [](int device) {
    recorder(device).flush(FlushCause::kSynchronize);
    empty_cache(device);
  });
  m.def("in_forked_child", &in_forked_child);
  m.def("before_fork", &before_fork);
  m.def("after_fork", &after_fork);
}
