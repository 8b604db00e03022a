// A launch group: consecutive launches of a plan that do not depend on each other, run as one piece of work. Small
// tensors do not each pay for waking the threads, and large ones share them.
#pragma once

#include "plan.h"

namespace neuron {

// Runs `n` steps, each a strip of one launch. Returns the first launch that met a data error, or null.
const BoundLaunch* run_launch_group(const Step* steps, size_t n, Frame& frame);

}  // namespace neuron
