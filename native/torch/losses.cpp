#include "losses.h"

namespace neuron {

using at::Tensor;

RowCall arrange_nll_loss_backward(const torch::jit::Stack& args, const std::vector<Tensor>& results) {
  const Tensor input = args[1].toTensor(), target = args[2].toTensor();
  const int64_t classes = input.dim() == 1 ? 0 : 1;
  const bool each = args[4].toInt() == 0;
  Tensor weight = args[3].isTensor() ? args[3].toTensor() : Tensor();
  if (weight.defined()) {
    std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
    sizes[static_cast<size_t>(classes)] = weight.numel();
    weight = weight.view(sizes);
  }
  const Tensor grad = args[0].toTensor();
  RowCall call;
  call.inputs = {each ? grad.unsqueeze(classes) : grad, target.unsqueeze(classes), weight, args[6].toTensor()};
  call.scalars = {static_cast<double>(args[5].toInt())};
  call.attrs = {classes - input.dim(), args[4].toInt()};
  call.results = results;
  return call;
}

}  // namespace neuron
