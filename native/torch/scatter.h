// Scatters: sums of slices at indices, in an order that no number of threads changes.
#pragma once

#include <ATen/core/stack.h>

namespace neuron {

struct OpVariant;

// RowHooks::run of the ops of these names.
bool run_embedding_backward(const OpVariant& variant, torch::jit::Stack& stack);
bool run_index_add(const OpVariant& variant, torch::jit::Stack& stack);
bool run_put(const OpVariant& variant, torch::jit::Stack& stack);
bool run_index_put(const OpVariant& variant, torch::jit::Stack& stack);

}  // namespace neuron
