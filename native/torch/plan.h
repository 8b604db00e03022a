// A plan: how a trace runs. Kernel launches and host ops in order, with where each pointer, size, stride and scalar
// comes from in the window at hand. Made by adaptive/planner.py, immutable afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../nrt/kernel_abi.h"
#include "window.h"

namespace neuron {

inline constexpr int kMaxLoopDims = kMaxRank + 1;  // a reduction over nothing has a loop of one point more
inline constexpr int kMaxAccesses = 64;
inline constexpr int kMaxScalars = 128;

enum class KernelKind : uint8_t { kMap, kInner, kOuter };

// Where one pointer of a kernel comes from: an operand of the window, and for each loop dimension the dimension of the
// operand whose stride it moves by (-1: it does not move).
struct AccessSource {
  uint32_t operand;
  int8_t dims[kMaxLoopDims];
};

struct Launch {
  nrtx_kernel_fn fn = nullptr;
  KernelKind kind = KernelKind::kMap;
  uint8_t n_reduced = 0;                        // reduced loop dims
  uint32_t iteration = 0;                       // operand whose sizes are the iteration space
  std::vector<std::vector<uint8_t>> loop_dims;  // loop dim -> dims of the iteration space it merges, outermost first
  std::vector<AccessSource> accesses;
  std::vector<uint32_t> scalars;  // indices into Window::scalars
  int64_t acc_bytes = 0;          // reductions: bytes of one chunk's accumulators
  int64_t block = 0;              // outer reductions: columns an item
  std::vector<uint32_t> nodes;    // trace node of each value of the kernel: what a data error's number leads back to
  int64_t cost = 4;               // work at a point, in quarters of a float32 addition (adaptive/cost.py)
  uint32_t n_ops = 0;             // trace nodes this kernel computes
};

struct Step {
  int32_t host_node = -1;  // >= 0: run this node's host op
  Launch launch;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<uint64_t> words;  // the trace it was made for
  std::string label;
  uint64_t runs = 0;
};

// Runs one kernel over the window's tensors. Returns 0, or 1 + the number of the value that met a data error.
int run_launch(const Launch& launch, const Window& window, size_t first_node);

}  // namespace neuron
