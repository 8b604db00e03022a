#include "activations.h"

#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>

namespace neuron {
namespace {

using at::Tensor;
using torch::jit::Stack;

Tensor half(const Tensor& t, int64_t dim, int which) {
  const int64_t d = c10::maybe_wrap_dim(dim, t.dim()), n = t.size(d) / 2;
  return t.narrow(d, which * n, n);
}

}  // namespace

bool infer_log_sigmoid(Inference& inference, const Stack& args) {
  const Tensor self = args[0].toTensor();
  inference.results = {contiguous_meta(self.sizes().vec(), self.scalar_type()), {true, self.scalar_type(), {0}, {1}}};
  return true;
}

RowCall arrange_log_sigmoid(const Stack& args, const std::vector<Tensor>& results) {
  RowCall call;
  call.inputs = {args[0].toTensor()};
  call.results = {results[0]};
  return call;
}

bool infer_log_sigmoid_backward(Inference& inference, const Stack& args) {
  const Tensor grad = args[0].toTensor();
  inference.results = {broadcast_meta({grad, args[1].toTensor()}, grad.scalar_type())};
  return true;
}

RowCall arrange_log_sigmoid_backward(const Stack& args, const std::vector<Tensor>& results) {
  RowCall call;
  call.inputs = {args[0].toTensor(), args[1].toTensor()};
  call.results = results;
  return call;
}

RowCall arrange_glu(const Stack& args, const std::vector<Tensor>& results) {
  const Tensor self = args[0].toTensor();
  RowCall call;
  call.inputs = {half(self, args[1].toInt(), 0), half(self, args[1].toInt(), 1)};
  call.results = results;
  return call;
}

bool infer_glu_backward(Inference& inference, const Stack& args) {
  const Tensor self = args[1].toTensor();
  TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
  const int64_t d = c10::maybe_wrap_dim(args[2].toInt(), self.dim());
  TORCH_CHECK(self.size(d) % 2 == 0, "Halving dimension must be even, but dimension ", d, " is size ", self.size(d));
  inference.results = {contiguous_meta(self.sizes().vec(), self.scalar_type())};
  return true;
}

RowCall arrange_glu_backward(const Stack& args, const std::vector<Tensor>& results) {
  const Tensor self = args[1].toTensor();
  const int64_t dim = args[2].toInt();
  RowCall call;
  call.inputs = {args[0].toTensor(), half(self, dim, 0), half(self, dim, 1)};
  call.results = {half(results[0], dim, 0), half(results[0], dim, 1)};
  return call;
}

bool infer_prelu_backward(Inference& inference, const Stack& args) {
  const Tensor grad = args[0].toTensor(), self = args[1].toTensor(), weight = args[2].toTensor();
  inference.results = {broadcast_meta({self, weight, grad}, self.scalar_type()),
                       broadcast_meta({self, weight, grad}, weight.scalar_type())};
  return true;
}

}  // namespace neuron
