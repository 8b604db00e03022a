// The functions of the chosen Neuron runtime that the torch extension calls. Python (native/runtime.py) opens and
// checks the library and hands over the addresses: the extension reaches device memory and launches in no other way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../nrt/kernel_abi.h"

struct nrt_tensor;

namespace neuron {

// nrt_vnc_memory_stats_t; a newer runtime fills as much of it as there is.
struct MemoryStats {
  size_t bytes_used = 0, bytes_limit = 0;
};

struct RuntimeApi {
  int (*tensor_allocate)(int placement, int vnc, size_t size, const char* name, nrt_tensor** tensor) = nullptr;
  void (*tensor_free)(nrt_tensor** tensor) = nullptr;
  void* (*tensor_get_va)(const nrt_tensor* tensor) = nullptr;
  const char* (*status_as_str)(int status) = nullptr;
  int (*vnc_memory_stats)(uint32_t vnc, MemoryStats* stats, size_t size_in, size_t* size_out) = nullptr;
  int device_count = 0;
};

// Filled once by `attach_runtime` before the first tensor is made; constant from then on.
RuntimeApi& runtime_api();

}  // namespace neuron
