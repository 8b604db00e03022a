// Movement: ops that place elements elsewhere, recorded as copies and fills of views.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace neuron {

struct Inference;

// RowHooks::compose of `cat`: a copy a tensor.
at::Tensor compose_cat(const Inference& inference, const torch::jit::Stack& args, int device);

}  // namespace neuron
