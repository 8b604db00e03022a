// What makes, fills and copies tensors, for the kernels of single ops.
#pragma once

#include <ATen/core/Tensor.h>

#include "op_table.h"

namespace neuron {

// A compiled op that is recorded by a kernel of its own, not through the op table.
OpRow map_row(const char* name);

// Whether kernels are compiled for this tensor.
bool mapped(const at::Tensor& t);

// Writes host values into a device tensor of the same sizes, at once.
void upload(const at::Tensor& dst, const at::Tensor& src);

}  // namespace neuron
