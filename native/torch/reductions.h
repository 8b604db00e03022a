// How reductions that torch's meta functions do not describe are checked and inferred, and those that are row programs
// are recorded: moments (var, std and both with their means) and logsumexp.
#pragma once

#include "record_compiled.h"

namespace neuron {

// Dims of a tensor of rank `rank` as a mask, from an op's `dim` argument; none given means all.
uint64_t reduced_dims(const c10::IValue& dim, int64_t rank);

// A reduction's result in which the reduced dims are of size one.
at::Tensor with_reduced_dims(const at::Tensor& result, c10::IntArrayRef sizes, uint64_t reduced);

// Refuses dtypes, and warns, in torch's words, where there are no degrees of freedom.
void check_moments(const OpVariant& variant, const torch::jit::Stack& args, const at::Tensor& written);

bool infer_moments(Inference& inference, const torch::jit::Stack& args);
bool infer_two_moments(Inference& inference, const torch::jit::Stack& args);
bool infer_logsumexp(Inference& inference, const torch::jit::Stack& args);
bool infer_nansum(Inference& inference, const torch::jit::Stack& args);
bool infer_count_nonzero(Inference& inference, const torch::jit::Stack& args);

// Inputs: x. Attributes: the mask of the reduced dims. Scalar, of moments: what the squares' sum is divided by.
RowCall arrange_moments(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);
RowCall arrange_logsumexp(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);

}  // namespace neuron
