// Unboxed kernels of the common pointwise schemas: the fast path of recording.
#pragma once

#include <torch/library.h>

#include <optional>

#include "op_table.h"

namespace neuron {

// A kernel for the variant's schema, or nothing if the general recorder has to take it.
std::optional<torch::CppFunction> unboxed_map_kernel(const OpVariant& variant);

}  // namespace neuron
