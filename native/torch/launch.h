// A launch: one kernel over the tensors of a window.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <vector>

#include "../nrt/kernel_abi.h"
#include "frame.h"

namespace neuron {

inline constexpr int kMaxLoopDims = kMaxRank + 1;  // a reduction over nothing has a loop of one point more
inline constexpr int kMaxAccesses = 64;
inline constexpr int kMaxScalars = 128;

enum class KernelKind : uint8_t { kMap, kTile, kInner, kOuter };

// Where one pointer of a kernel comes from: an operand of the window, and for each loop dimension the dimension of the
// operand whose stride it moves by (-1: it does not move).
struct AccessSource {
  uint32_t operand;
  uint8_t itemsize;  // bytes an element
  int8_t dims[kMaxLoopDims];
};

struct Launch {
  nrtx_kernel_fn fn = nullptr;
  KernelKind kind = KernelKind::kMap;
  uint8_t n_reduced = 0;                        // reduced loop dims
  uint32_t iteration = 0;                       // operand whose sizes are the iteration space
  std::vector<std::vector<uint8_t>> loop_dims;  // loop dim -> dims of the iteration space it merges, outermost first
  std::vector<AccessSource> accesses;
  std::vector<ScalarSource> scalars;
  int64_t acc_bytes = 0;        // reductions: bytes of one chunk's accumulators
  int64_t block = 0;            // outer reductions: columns an item; tiles: points along each dim
  std::vector<uint32_t> nodes;  // trace node of each value of the kernel: what a data error's number leads back to
  int64_t cost = 4;             // work at a point, in quarters of a float32 addition (adaptive/cost.py)
  uint32_t n_ops = 0;           // trace nodes this kernel computes
};

// A launch with the sizes, strides, pointers and scalars of a run.
struct BoundLaunch {
  const Launch* launch = nullptr;
  nrtx_kernel_args args{};
  int64_t points = 0;  // of the iteration space
  int64_t items = 0;   // what the kernel is called for: points of a map, kept points of an inner reduction, ...
  int64_t work = 0;    // of an item, in quarters of an addition
  int64_t error = 0;   // 0, or what met a data error: see kernel_abi.h
  int64_t sizes[kMaxLoopDims];
  char* ptrs[kMaxAccesses];
  int64_t strides[kMaxAccesses * kMaxLoopDims];
  uint64_t scalars[kMaxScalars];

  // After an error: the trace node that met it, which of its indices was wrong, and what that was.
  uint32_t failed_node() const { return launch->nodes[(error & 0xFFFF) - 1]; }
  uint32_t wrong_index() const { return error >> 16 & 0xF; }
  int64_t wrong_value() const { return error >> 20; }

  // Not to be moved afterwards: the arguments point into it.
  void bind(const Launch& launch, Frame& frame);
  // A reduction of few items whose chunks are worth a thread each: phases 1 and 2 of a kernel, not phase 0.
  bool in_chunks() const;
  // Runs all items, on one thread or more.
  void run(int device);

 private:
  void shape_tiles();
  void shape_reduction();
};

// `n` launches of this thread, to be bound. Kept from run to run, as they are big: runs do not nest in a thread.
BoundLaunch* bound_launches(size_t n);

// Runs items on one thread, or on all if their work is worth it. `work_each` is in quarters of an addition.
void split_items(int64_t items, int64_t work_each, c10::function_ref<void(int64_t, int64_t)> body);

}  // namespace neuron
