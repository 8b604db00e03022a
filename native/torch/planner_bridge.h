// Up into Python on a miss, and back down with a plan.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace neuron {

// `planner` is an object with plan_op(trace), plan_window(trace, seen), supports(name, dtype), known_plans().
void set_planner(pybind11::object planner);

}  // namespace neuron
