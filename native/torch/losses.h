// How losses are recorded as row programs.
#pragma once

#include "record_compiled.h"

namespace neuron {

// nll_loss_backward and nll_loss2d_backward: targets, and gradients a target, get a dim of size one where the classes
// are.
RowCall arrange_nll_loss_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);

}  // namespace neuron
