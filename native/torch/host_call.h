// Running ATen's CPU kernels on device memory, without copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "recorder.h"

namespace neuron {

// Dispatches straight to backend kernels: no autograd, no autocast, no Python modes, whatever the caller has active.
struct BackendOnlyGuard {
  BackendOnlyGuard();
  c10::impl::ForceDispatchKeyGuard guard;
};

// Runs `f`, in which the host's allocator may find no memory: it says so in a plain RuntimeError.
template <typename F>
void naming_lack_of_memory(const F& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    const std::string what = e.what_without_backtrace();
    if (what.find("DefaultCPUAllocator: can't allocate memory") == std::string::npos) throw;
    C10_THROW_ERROR(OutOfMemoryError, "neuron out of memory: " + what);
  }
}

// A CPU tensor over the memory of a device tensor; it keeps the device storage alive. The caller must have run the
// window.
at::Tensor host_alias(const at::Tensor& t);

// Runs a recorded host op. Its results go to the memory, or become the memory, of the node's outputs.
void run_host_call(Recorder& recorder, Window& window, const Node& node);

// Runs the window, then an op on the host at once, replacing the arguments on `stack` by its results as device tensors.
// `variant`: the op's, if it is one of the table.
void run_now(const c10::OperatorHandle& op, torch::jit::Stack* stack, int device, FlushCause cause,
             const OpVariant* variant = nullptr);

// The device of the first device tensor among the arguments, or the current device.
int device_of(const torch::jit::Stack& stack, size_t n);

}  // namespace neuron
