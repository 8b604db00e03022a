// A strip: launches that share their rows, run a few rows at a time, so that what one writes the next still finds in
// cache.
//
// Every launch of a strip walks the rows outermost, and touches memory that another one writes in the same row only. So
// the order of rows and the threads they run on change nothing.
#pragma once

#include <vector>

#include "launch.h"

namespace neuron {

// Runs the launches of a strip in order. Returns the first launch that met a data error, or null.
const BoundLaunch* run_strip(const std::vector<Launch>& launches, const Frame& frame);

}  // namespace neuron
