// Factories: tensors whose values are given by a rule. arange is computed on the device, the others on the host.

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "generator.h"
#include "host_call.h"
#include "recorder.h"
#include "tensor_ops.h"

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;
using c10::IValue;
using c10::ScalarType;

const OpRow kArange = map_row("arange");

// Gives `out` the size of a factory's result, with torch's warning.
void take_size(const Tensor& out, c10::IntArrayRef sizes) {
  if (out.sizes() == sizes) return;
  if (out.numel() != 0) {
    TORCH_WARN("An output with one or more elements was resized since it had shape ", out.sizes(),
               ", which does not match the required output shape ", sizes, ".");
  }
  out.resize_(sizes);
}

// Values known at the call: made on the host, uploaded.
void host_factory(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Tensor out = stack->back().toTensor();
  TORCH_CHECK(out.device().type() == kNeuron, "Expected a '", out.device().type(),
              "' device type for generator but found 'neuron'");
  Tensor host = at::empty({0}, out.options().device(c10::kCPU));
  stack->back() = host;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    IValue& v = (*stack)[stack->size() - arguments.size() + i];
    if (v.isGenerator() || (v.isNone() && arguments[i].name() == "generator"))
      v = host_generator(v.toOptional<at::Generator>(), out.device().index());
  }
  {
    const BackendOnlyGuard guard;
    naming_lack_of_memory([&] { op.callBoxed(stack); });
  }
  stack->pop_back();
  take_size(out, host.sizes());
  at::assert_no_internal_overlap(out);
  upload(out, host);
  stack->emplace_back(std::move(out));
}

int64_t arange_size(ScalarType dtype, const Scalar& start, const Scalar& end, const Scalar& step) {
  return dtype == ScalarType::Long ? at::native::compute_arange_size<int64_t>(start, end, step)
                                   : at::native::compute_arange_size<float>(start, end, step);
}

// What the elements are computed in: int64, and for floats as ATen's CPU kernel.
ScalarType arange_compute(ScalarType dtype) {
  if (c10::isIntegralType(dtype, false)) return ScalarType::Long;
  return c10::isReducedFloatingType(dtype) ? ScalarType::Float : ScalarType::Double;
}

Tensor& arange(const Scalar& start, const Scalar& end, const Scalar& step, Tensor& out) {
  const ScalarType dtype = out.scalar_type();
  if (!mapped(out) || dtype == ScalarType::Bool) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::arange", "start_out");
    torch::jit::Stack stack{start, end, step, out};
    host_factory(op, &stack);
    return out;
  }
  const int64_t n = arange_size(dtype, start, end, step);
  if (out.numel() != n) take_size(out, {n});
  at::assert_no_internal_overlap(out);
  const ScalarType compute = arange_compute(dtype);
  const bool whole = compute == ScalarType::Long;
  Recording r(recorder(out.device().index()), kArange);
  for (const Scalar& s : {start, step}) {
    if (whole)
      r.scalar(s.toLong());
    else
      r.scalar(s.toDouble());
  }
  r.overwritten(out.unsafeGetTensorImpl());
  r.finish(compute, dtype);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("arange.start_out", &arange);
  for (const char* name :
       {"linspace.out", "logspace.out", "range.out", "eye.out", "eye.m_out", "randperm.generator_out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&host_factory>());
  }
}

}  // namespace neuron
