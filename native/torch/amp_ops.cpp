// torch.amp.GradScaler's ops. What they find stays on the device.

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/any.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "hash.h"
#include "record_boxed.h"
#include "recorder.h"

namespace neuron {
namespace {

using at::Tensor;
using c10::ScalarType;

// A reduction that ATen has no op for: whether any element is infinite or NaN (adaptive/lowering.py).
const OpRow& non_finite() {
  static const OpRow row{"non_finite", OpKind::kReduction, 0, hash_text("reduction non_finite")};
  return row;
}

Tensor any_not_finite(const Tensor& t) {
  Tensor found = new_contiguous_tensor({}, ScalarType::Bool, t.device().index());
  Recording r(recorder(t.device().index()), non_finite());
  r.input(t.unsafeGetTensorImpl());
  r.attr(static_cast<int64_t>((uint64_t{1} << t.dim()) - 1));
  r.attr(int64_t{0});  // keepdim
  r.output(found.unsafeGetTensorImpl(), true);
  r.finish(t.scalar_type(), ScalarType::Bool);
  return found;
}

void unscale(at::TensorList scaled_grads, Tensor& found_inf, const Tensor& inv_scale) {
  if (scaled_grads.empty()) return;
  TORCH_CHECK(inv_scale.numel() == 1, "inv_scale must be a 1-element tensor.");
  TORCH_CHECK(found_inf.numel() == 1, "found_inf must be a 1-element tensor.");
  TORCH_CHECK(inv_scale.scalar_type() == ScalarType::Float, "inv_scale must be a float tensor.");
  TORCH_CHECK(found_inf.scalar_type() == ScalarType::Float, "found_inf must be a float tensor.");
  Call call(hash_text("_amp_foreach_non_finite_check_and_unscale_"));
  std::vector<Tensor> found;
  const Tensor factor = inv_scale.reshape({});
  for (const Tensor& grad : scaled_grads) {
    TORCH_CHECK(grad.device() == scaled_grads[0].device(), "scaled_grads must be on the same device.");
    TORCH_CHECK(grad.layout() == at::kStrided, "one of scaled_grads was not a strided tensor.");
    TORCH_CHECK(c10::isFloatingType(grad.scalar_type()), "scaled_grads must be float tensors.");
    found.push_back(grad.dim() <= kMaxRank ? any_not_finite(grad) : at::isfinite(grad).logical_not().any());
    at::Tensor(grad).mul_(factor);
  }
  found_inf.masked_fill_(at::any(at::stack(found)), 1.0);
  call.finish();
}

Tensor& update_scale(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth, double backoff,
                     int64_t interval) {
  TORCH_CHECK(growth_tracker.numel() == 1, "growth_tracker must be a 1-element tensor.");
  TORCH_CHECK(scale.numel() == 1, "current_scale must be a 1-element tensor.");
  TORCH_CHECK(found_inf.numel() == 1, "found_inf must be a 1-element tensor.");
  TORCH_CHECK(growth_tracker.scalar_type() == ScalarType::Int, "growth_tracker must be an int tensor.");
  TORCH_CHECK(scale.scalar_type() == ScalarType::Float, "current_scale must be a float tensor.");
  TORCH_CHECK(found_inf.scalar_type() == ScalarType::Float, "found_inf must be a float tensor.");
  Call call(hash_text("_amp_update_scale_"));
  const Tensor found = found_inf.ne(0).reshape(scale.sizes());
  const Tensor steps = growth_tracker.add(1).reshape(scale.sizes());
  const Tensor due = steps.eq(interval);
  const Tensor grown = scale.mul(growth);
  const Tensor up = at::where(due.logical_and(at::isfinite(grown)), grown, scale);
  scale.copy_(at::where(found, scale.mul(backoff), up));
  growth_tracker.copy_(steps.masked_fill(found.logical_or(due), 0).reshape(growth_tracker.sizes()));
  call.finish();
  return scale;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_amp_foreach_non_finite_check_and_unscale_", &unscale);
  m.impl("_amp_update_scale_", &update_scale);
}

}  // namespace neuron
