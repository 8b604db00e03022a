// Up into Python on a miss, and back down with a plan.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace neuron {

// `planner` is an object with plan_op(trace), plan_window(trace, seen, number, sights), ready(signature),
// supports(name, kind, dtype), known_plans(), note_failure(trace, reason).
void set_planner(pybind11::object planner);

}  // namespace neuron
