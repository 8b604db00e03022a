// _foreach_*: one op over lists of tensors.
#pragma once

#include <torch/library.h>

namespace neuron {

// Registers a kernel for every _foreach_ op of torch. Called after the rows of the op table are made.
void register_foreach(torch::Library& library);

}  // namespace neuron
