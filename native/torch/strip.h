// A strip: launches that share their rows, run a few rows at a time, so that what one writes the next still finds in
// cache.
//
// Every launch of a strip walks the rows outermost, and touches memory that another one writes in the same row only. So
// the order of rows and the threads they run on change nothing.
#pragma once

#include <vector>

#include "launch.h"

namespace neuron {

// An access to scratch: memory number `number` of the strip.
struct ScratchAccess {
  uint32_t launch, access, number;
};

struct Strip {
  std::vector<Launch> launches;
  // Values at every point, rows outermost, that only the strip's launches touch: each thread keeps those of the rows at
  // hand in its own scratch memory, and they never go to where they would be.
  std::vector<ScratchAccess> scratch;
  uint32_t scratches = 0;
};

// Runs the launches of a strip in order. Returns the first launch that met a data error, or null.
const BoundLaunch* run_strip(const Strip& strip, Frame& frame);

}  // namespace neuron
