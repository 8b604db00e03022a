// The tunables the extension needs, filled from adaptive/params.py. Read on the hot path, so plain memory.
#pragma once

#include <cstdint>

namespace neuron {

enum class Mode : uint8_t { kAdaptive = 0, kPerOp = 1, kStepwise = 2 };

struct Params {
  Mode mode = Mode::kAdaptive;
  int64_t max_ops = 256;
  int64_t min_ops = 32;
  int64_t max_bytes = 64 << 20;
  int64_t hot_after = 2;
  int64_t trace_bytes = 64 << 20;
  int64_t parallel_grain = 32768;
};

inline Params& params() {
  static Params p;
  return p;
}

}  // namespace neuron
