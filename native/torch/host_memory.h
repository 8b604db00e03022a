// Where ATen's CPU kernels get their memory from while they work for the device: the device's own pool.
//
// Their results become device tensors, and the C library would map, fault in and unmap big ones each time.
#pragma once

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

// Puts the device's pool in front of torch's CPU allocator. Called when the extension is loaded.
void install_host_memory();

}  // namespace neuron
