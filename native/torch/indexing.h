// Indexing: ops that look elements of a table up, recorded as gathers of fused kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "infer.h"

namespace neuron {

// RowHooks::compose of the ops of these names. Undefined where a host op has to do it: no dtype or rank that is
// compiled, index tensors of the host, nothing to look up.
at::Tensor compose_embedding(const Inference& inference, const torch::jit::Stack& args, int device);
at::Tensor compose_gather(const Inference& inference, const torch::jit::Stack& args, int device);
at::Tensor compose_index(const Inference& inference, const torch::jit::Stack& args, int device);
at::Tensor compose_index_select(const Inference& inference, const torch::jit::Stack& args, int device);
at::Tensor compose_take(const Inference& inference, const torch::jit::Stack& args, int device);

// Of a loss: what a table of scores or weights holds at the targets, which are its indices along `dim` and have one
// element there. A target that is no class is an error of the loss.
at::Tensor at_targets(const at::Tensor& table, int64_t dim, const at::Tensor& target);

}  // namespace neuron
