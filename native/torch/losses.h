// How losses are checked, inferred, and recorded as row programs.
#pragma once

#include "record_compiled.h"

namespace neuron {

// mse_loss, smooth_l1_loss, huber_loss, binary_cross_entropy. Inputs: input, target and weight, all of their common
// shape; scalar: the threshold; attribute: the reduction. The result of all points has as many dims as they, of size
// one.
void check_huber_loss(const OpVariant& variant, const torch::jit::Stack& args, const at::Tensor& written);
bool infer_loss(Inference& inference, const torch::jit::Stack& args);
// huber_loss has its input's dtype, whatever the target's.
bool infer_huber_loss(Inference& inference, const torch::jit::Stack& args);
RowCall arrange_loss(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);

// Their gradients, laid out contiguously. Inputs: the gradient first; first scalar: what it is multiplied by.
bool infer_loss_backward(Inference& inference, const torch::jit::Stack& args);
RowCall arrange_loss_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);

// nll_loss_forward and nll_loss2d_forward, of what the inputs are at the targets, which other ops look up. Targets get
// a dim of size one where the classes are. Inputs: the input and the weight at each target, and the targets.
void check_nll_loss(const OpVariant& variant, const torch::jit::Stack& args, const at::Tensor& written);
bool infer_nll_loss2d(Inference& inference, const torch::jit::Stack& args);
RowCall arrange_nll_loss(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);

// nll_loss_backward and nll_loss2d_backward: targets, and gradients a target, get a dim of size one where the classes
// are.
RowCall arrange_nll_loss_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);

}  // namespace neuron
