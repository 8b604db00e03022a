#include "losses.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/result_type.h>

namespace neuron {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace {

Tensor tensor(const IValue& v) { return v.isTensor() ? v.toTensor() : Tensor(); }

// The arguments from the input on: (input, target, reduction[, threshold]) or (input, target, weight, reduction).
struct Arguments {
  Tensor input, target, weight;
  int64_t reduction;
  std::vector<double> thresholds;
  bool weighted;

  Arguments(const Stack& args, size_t first)
      : input(args[first].toTensor()), target(args[first + 1].toTensor()), weighted(!args[first + 2].isInt()) {
    if (weighted) weight = tensor(args[first + 2]);
    reduction = args[first + 2 + weighted].toInt();
    if (args.size() > first + 3 + weighted) thresholds = {args[first + 3].toDouble()};
  }
};

}  // namespace

void check_huber_loss(const OpVariant&, const Stack& args, const Tensor&) {
  TORCH_CHECK(args[3].toDouble() > 0, "huber_loss does not support non-positive values for delta.");
}

namespace {

bool infer_as(Inference& inference, const Arguments& a, c10::ScalarType dtype) {
  inference.results = {broadcast_meta({a.input, a.target, a.weight}, dtype)};
  if (a.reduction != at::Reduction::None) inference.results = {{true, dtype, {}, {}}};
  return true;
}

}  // namespace

bool infer_loss(Inference& inference, const Stack& args) {
  const Arguments a(args, 0);
  return infer_as(inference, a, a.weighted ? a.input.scalar_type() : at::result_type(a.input, a.target));
}

bool infer_huber_loss(Inference& inference, const Stack& args) {
  const Arguments a(args, 0);
  return infer_as(inference, a, a.input.scalar_type());
}

RowCall arrange_loss(const Stack& args, const std::vector<Tensor>& results) {
  const Arguments a(args, 0);
  std::vector<int64_t> sizes = at::infer_size(a.input.sizes(), a.target.sizes());
  if (a.weight.defined()) sizes = at::infer_size(sizes, a.weight.sizes());
  RowCall call;
  call.inputs = {a.input.expand(sizes), a.target.expand(sizes)};
  if (a.weighted) call.inputs.push_back(a.weight.defined() ? a.weight.expand(sizes) : a.weight);
  call.scalars = a.thresholds;
  call.attrs = {a.reduction};
  const bool each = a.reduction == at::Reduction::None;
  call.results = {each ? results[0] : results[0].view(std::vector<int64_t>(sizes.size(), 1))};
  return call;
}

bool infer_loss_backward(Inference& inference, const Stack& args) {
  const Tensor input = args[1].toTensor();
  inference.results = {contiguous_meta(input.sizes().vec(), input.scalar_type())};
  return true;
}

RowCall arrange_loss_backward(const Stack& args, const std::vector<Tensor>& results) {
  const Arguments a(args, 1);
  RowCall call;
  call.inputs = {args[0].toTensor(), a.input, a.target};
  if (a.weighted) call.inputs.push_back(a.weight);
  call.scalars = {a.reduction == at::Reduction::Mean ? 1.0 / static_cast<double>(a.input.numel()) : 1.0};
  call.scalars.insert(call.scalars.end(), a.thresholds.begin(), a.thresholds.end());
  call.results = results;
  return call;
}

RowCall arrange_nll_loss_backward(const Stack& args, const std::vector<Tensor>& results) {
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
