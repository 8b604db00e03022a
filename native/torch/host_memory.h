// Where ATen's CPU kernels get their memory from while they work for the device: the device's own pool.
//
// Their results become device tensors, and the C library would map, fault in and unmap big ones each time.
#pragma once

#include <c10/core/Storage.h>

namespace neuron {

// While it lives, CPU tensors that this thread makes take their memory from the pool of `device`.
class HostMemoryGuard {
 public:
  explicit HostMemoryGuard(int device);
  ~HostMemoryGuard();
  HostMemoryGuard(const HostMemoryGuard&) = delete;

 private:
  int before_;
};

// The memory of a CPU operator's result as memory of the device on which its guard was: its block, if it has one to
// itself, else adopted.
c10::DataPtr take_over(const c10::Storage& cpu_storage, int device);

// Puts the device's pool in front of torch's CPU allocator. Called when the extension is loaded.
void install_host_memory();

}  // namespace neuron
