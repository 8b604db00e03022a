// A plan: how a trace runs. Kernel launches and host ops, in order, with where each pointer, size, stride and scalar
// comes from in the window at hand. Made by adaptive/planner.py, immutable afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strip.h"

namespace neuron {

struct Step {
  int32_t host_node = -1;  // >= 0: run this node's host op
  Strip strip;             // else: one launch, or several
  // Operands whose storage no later step uses and that are dead then: their memory can be used for the next steps.
  std::vector<uint32_t> last_uses;
  uint32_t batch = 1;  // this many steps, from this one on, are launches that do not depend on each other
};

struct Plan {
  std::vector<Step> steps;
  std::vector<Temporary> temporaries;
};

}  // namespace neuron
