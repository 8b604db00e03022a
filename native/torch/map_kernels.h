// Unboxed kernels of the common pointwise schemas: the fast path of recording.
#pragma once

#include <torch/library.h>

#include <optional>

#include "op_table.h"

namespace neuron {

// A variant's kernels: beneath autograd, and in its place where no gradient is asked for.
struct MapKernels {
  torch::CppFunction device, autograd;
};

// Kernels for the variant's schema, or nothing if the general recorder has to take it.
std::optional<MapKernels> unboxed_map_kernels(const OpVariant& variant);

}  // namespace neuron
