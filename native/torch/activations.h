// How activation functions of several tensors are inferred, and recorded as row programs.
#pragma once

#include "record_compiled.h"

namespace neuron {

// The buffer, which only the CPU's own backward needs, stays without elements.
bool infer_log_sigmoid(Inference& inference, const torch::jit::Stack& args);
RowCall arrange_log_sigmoid(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);
bool infer_log_sigmoid_backward(Inference& inference, const torch::jit::Stack& args);
RowCall arrange_log_sigmoid_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);

// Inputs: the halves of the tensor, the gradient before them. Results of the backward: the halves of the gradient.
RowCall arrange_glu(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);
bool infer_glu_backward(Inference& inference, const torch::jit::Stack& args);
RowCall arrange_glu_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& results);

bool infer_prelu_backward(Inference& inference, const torch::jit::Stack& args);

}  // namespace neuron
