#include "losses.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/result_type.h>

#include "indexing.h"

namespace neuron {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace {

Tensor tensor(const IValue& v) { return v.isTensor() ? v.toTensor() : Tensor(); }

// A tensor of one dim as dim `dim` of `rank`.
Tensor along(const Tensor& t, int64_t dim, int64_t rank) {
  std::vector<int64_t> sizes(static_cast<size_t>(rank), 1);
  sizes[static_cast<size_t>(dim)] = t.numel();
  return t.view(sizes);
}

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

// Sizes of what is compared: input, target and weight are broadcast.
std::vector<int64_t> points_of(const Arguments& a) {
  std::vector<int64_t> sizes = at::infer_size(a.input.sizes(), a.target.sizes());
  if (a.weight.defined()) sizes = at::infer_size(sizes, a.weight.sizes());
  return sizes;
}

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
  const std::vector<int64_t> sizes = points_of(a);
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
  const Arguments a(args, 1);
  // Of all points: autograd sums it where the input was broadcast.
  inference.results = {contiguous_meta(points_of(a), a.input.scalar_type())};
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

void check_nll_loss(const OpVariant&, const Stack& args, const Tensor&) {
  const Tensor input = args[0].toTensor(), target = args[1].toTensor(), weight = tensor(args[2]);
  const auto expected = [](const char* wanted, const Tensor& t) {
    TORCH_CHECK(false, "expected scalar type ", wanted, " but found ", t.scalar_type());
  };
  const bool bytes = target.scalar_type() == at::kByte && input.dim() <= 2;
  if (target.scalar_type() != at::kLong && !bytes) expected("Long", target);
  if (weight.defined() && weight.scalar_type() != input.scalar_type()) {
    expected(c10::toString(input.scalar_type()), weight);
  }
}

bool infer_nll_loss2d(Inference& inference, const Stack& args) {
  const Tensor input = args[0].toTensor(), target = args[1].toTensor(), weight = tensor(args[2]);
  const bool fits = input.dim() == 4 && target.dim() == 3 && target.size(0) == input.size(0) &&
                    target.size(1) == input.size(2) && target.size(2) == input.size(3) &&
                    (!weight.defined() || weight.numel() == input.size(1));
  if (!fits) return false;
  const bool each = args[3].toInt() == at::Reduction::None;
  inference.results = {contiguous_meta(each ? target.sizes().vec() : std::vector<int64_t>(), input.scalar_type()),
                       contiguous_meta({}, input.scalar_type())};
  return true;
}

RowCall arrange_nll_loss(const Stack& args, const std::vector<Tensor>& results) {
  const Tensor input = args[0].toTensor(), weight = tensor(args[2]);
  const int64_t classes = input.dim() == 1 ? 0 : 1, reduction = args[3].toInt(), ignored = args[4].toInt();
  std::vector<int64_t> points = input.sizes().vec();
  points[static_cast<size_t>(classes)] = 1;
  const Tensor target = args[1].toTensor().reshape(points);
  // What is ignored need not be a class.
  const Tensor index = target.masked_fill(target.eq(ignored), 0).to(at::kLong);
  RowCall call;
  call.inputs = {at_targets(input, classes, index), weight, target};
  if (weight.defined()) {
    call.inputs[1] = at_targets(along(weight, classes, input.dim()).expand_as(input), classes, index);
  }
  call.scalars = {static_cast<double>(ignored)};
  call.attrs = {reduction};
  const std::vector<int64_t> one(static_cast<size_t>(input.dim()), 1);
  call.results = {reduction == at::Reduction::None ? results[0].view(index.sizes()) : results[0].view(one),
                  results[1].view(one)};
  return call;
}

RowCall arrange_nll_loss_backward(const Stack& args, const std::vector<Tensor>& results) {
  const Tensor input = args[1].toTensor(), target = args[2].toTensor();
  const int64_t classes = input.dim() == 1 ? 0 : 1;
  const bool each = args[4].toInt() == 0;
  Tensor weight = tensor(args[3]);
  if (weight.defined()) weight = along(weight, classes, input.dim());
  const Tensor grad = args[0].toTensor();
  RowCall call;
  call.inputs = {each ? grad.unsqueeze(classes) : grad, target.unsqueeze(classes), weight, args[6].toTensor()};
  call.scalars = {static_cast<double>(args[5].toInt())};
  call.attrs = {classes - input.dim(), args[4].toInt()};
  call.results = results;
  return call;
}

}  // namespace neuron
