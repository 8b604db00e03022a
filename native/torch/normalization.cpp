#include "normalization.h"

#include <ATen/ops/add.h>

#include <algorithm>

namespace neuron {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

Tensor tensor(const IValue& v) { return v.isTensor() ? v.toTensor() : Tensor(); }

uint64_t all_dims(const Tensor& t) { return (uint64_t{1} << t.dim()) - 1; }

// A tensor of some dims of a space (those in `dims`), as one that broadcasts to it.
Tensor spread(const Tensor& t, c10::IntArrayRef space, uint64_t dims) {
  if (!t.defined()) return t;
  std::vector<int64_t> sizes(space.begin(), space.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!(dims >> d & 1)) sizes[d] = 1;
  }
  return t.view(sizes);
}

// A tensor with its channels split into groups.
Tensor split_channels(const Tensor& t, int64_t groups) {
  if (!t.defined()) return t;
  std::vector<int64_t> sizes = t.sizes().vec(), strides = t.strides().vec();
  const int64_t each = sizes[1] / groups;
  sizes[1] = groups;
  sizes.insert(sizes.begin() + 2, each);
  strides.insert(strides.begin() + 2, strides[1]);
  strides[1] *= each;
  return t.as_strided(sizes, strides);
}

// Dims of the input: those that the statistics reduce, those that the parameters have.
struct Space {
  uint64_t reduced, parameters;
};

Space layer_norm_space(const Tensor& x, size_t normalized) {
  const uint64_t last = all_dims(x) & ~((uint64_t{1} << (x.dim() - static_cast<int64_t>(normalized))) - 1);
  return {last, last};
}
Space group_norm_space(const Tensor& x) { return {all_dims(x) & ~uint64_t{3}, 6}; }
Space batch_norm_space(const Tensor& x) { return {all_dims(x) & ~uint64_t{2}, 2}; }

RowCall forward(const Space& space, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  const uint64_t kept = all_dims(x) & ~space.reduced;
  RowCall call;
  call.inputs = {x, spread(weight, x.sizes(), space.parameters), spread(bias, x.sizes(), space.parameters)};
  call.scalars = {eps};
  call.attrs = {static_cast<int64_t>(space.reduced)};
  call.results = {y, spread(mean, x.sizes(), kept), spread(rstd, x.sizes(), kept)};
  return call;
}

RowCall backward(const Space& space, const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                 const Tensor& weight, bool constant_statistics, const std::vector<Tensor>& outs) {
  const uint64_t kept = all_dims(x) & ~space.reduced;
  RowCall call;
  call.inputs = {grad, x, spread(mean, x.sizes(), kept), spread(rstd, x.sizes(), kept),
                 spread(weight, x.sizes(), space.parameters)};
  call.attrs = {static_cast<int64_t>(space.reduced), static_cast<int64_t>(all_dims(x) & ~space.parameters),
                int64_t{constant_statistics}};
  call.results = {outs[0], spread(outs[1], x.sizes(), space.parameters), spread(outs[2], x.sizes(), space.parameters)};
  return call;
}

}  // namespace

RowCall arrange_layer_norm(const Stack& args, const std::vector<Tensor>& outs) {
  const Tensor x = args[0].toTensor();
  return forward(layer_norm_space(x, args[1].toListRef().size()), x, tensor(args[2]), tensor(args[3]),
                 args[4].toDouble(), outs[0], outs[1], outs[2]);
}

RowCall arrange_layer_norm_backward(const Stack& args, const std::vector<Tensor>& outs) {
  const Tensor x = args[1].toTensor();
  return backward(layer_norm_space(x, args[2].toListRef().size()), args[0].toTensor(), x, args[3].toTensor(),
                  args[4].toTensor(), tensor(args[5]), false, outs);
}

RowCall arrange_group_norm(const Stack& args, const std::vector<Tensor>& outs) {
  const int64_t groups = args[6].toInt();
  const Tensor x = split_channels(args[0].toTensor(), groups);
  return forward(group_norm_space(x), x, tensor(args[1]), tensor(args[2]), args[7].toDouble(),
                 split_channels(outs[0], groups), outs[1], outs[2]);
}

RowCall arrange_group_norm_backward(const Stack& args, const std::vector<Tensor>& outs) {
  const int64_t groups = args[8].toInt();
  const Tensor x = split_channels(args[1].toTensor(), groups);
  return backward(group_norm_space(x), split_channels(args[0].toTensor(), groups), x, args[2].toTensor(),
                  args[3].toTensor(), tensor(args[4]), false, {split_channels(outs[0], groups), outs[1], outs[2]});
}

RowCall arrange_batch_norm(const Stack& args, const std::vector<Tensor>& outs) {
  const Tensor x = args[0].toTensor();
  const Tensor mean = spread(tensor(args[3]), x.sizes(), 2), var = spread(tensor(args[4]), x.sizes(), 2);
  const double momentum = args[6].toDouble(), eps = args[7].toDouble();
  if (!args[5].toBool()) {
    RowCall call;
    call.inputs = {x, spread(tensor(args[1]), x.sizes(), 2), spread(tensor(args[2]), x.sizes(), 2), mean, var};
    call.scalars = {eps};
    call.attrs = {0};  // nothing is reduced: the statistics are given
    call.results = {outs[0]};
    return call;
  }
  RowCall call = forward(batch_norm_space(x), x, tensor(args[1]), tensor(args[2]), eps, outs[0], outs[1], outs[2]);
  // Training moves the running statistics, the variance as that of a sample.
  const double n = static_cast<double>(x.numel() / std::max<int64_t>(x.size(1), 1));
  call.inputs.insert(call.inputs.end(), {mean, var});
  call.scalars.insert(call.scalars.end(), {momentum, n / (n - 1)});
  call.written = {mean, var};
  return call;
}

RowCall arrange_batch_norm_backward(const Stack& args, const std::vector<Tensor>& outs) {
  const Tensor x = args[1].toTensor();
  const bool training = args[7].toBool();
  const Tensor mean = tensor(args[training ? 5 : 3]);
  const Tensor rstd = training ? tensor(args[6]) : at::add(tensor(args[4]), args[8].toDouble()).rsqrt();
  return backward(batch_norm_space(x), args[0].toTensor(), x, mean, rstd, tensor(args[2]), !training, outs);
}

}  // namespace neuron
