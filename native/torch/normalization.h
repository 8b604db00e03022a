// How the normalisations are recorded: as row programs over a view of the input whose normalised dims are whole.
//
// layer norm: the last dims. group norm: channels are split into (group, channel of the group); all but the first two
// dims. batch norm: all dims but the channels. Statistics and parameters are viewed so that they broadcast to it.
#pragma once

#include "record_compiled.h"

namespace neuron {

RowCall arrange_layer_norm(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);
RowCall arrange_layer_norm_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);
RowCall arrange_group_norm(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);
RowCall arrange_group_norm_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);
RowCall arrange_batch_norm(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);
RowCall arrange_batch_norm_backward(const torch::jit::Stack& args, const std::vector<at::Tensor>& outs);

}  // namespace neuron
