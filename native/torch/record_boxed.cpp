#include "record_boxed.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>

#include <cmath>

#include "autograd_key.h"
#include "fallback.h"
#include "first_use.h"
#include "generator.h"
#include "host_call.h"
#include "infer.h"
#include "nested.h"
#include "origin.h"
#include "record_compiled.h"
#include "recorder.h"

namespace neuron {
namespace {

using c10::IValue;
using c10::ScalarType;

bool is_number_tensor(const at::Tensor& t) {
  return t.dim() == 0 && t.device().is_cpu() && t.layout() == c10::kStrided;
}

// Checks the devices of an op's tensors and returns the device to record on.
class Devices {
 public:
  void see(const at::Tensor& t, bool numbers_allowed) {
    if (!t.defined()) return;
    if (t.device().type() != kNeuron) {
      if (!(numbers_allowed && is_number_tensor(t))) other_ = t.device();
      return;
    }
    if (device_ < 0)
      device_ = t.device().index();
    else if (device_ != t.device().index())
      other_ = t.device();
    if (t.dim() > kMaxRank || t.layout() != c10::kStrided || t.is_conj() || t.is_neg()) recordable_ = false;
    if (!compiled_dtype(t.scalar_type())) compiled_ = false;
  }
  void check() const {
    TORCH_CHECK(!other_ || device_ < 0,
                "Expected all tensors to be on the same device, but found at least two devices, neuron:", device_,
                " and ", other_->str(), "!");
  }
  int device() const { return device_ < 0 ? current_device() : device_; }
  bool recordable() const { return recordable_ && device_ >= 0; }
  bool compiled() const { return compiled_; }

 private:
  int device_ = -1;
  bool recordable_ = true, compiled_ = true;
  std::optional<c10::Device> other_;
};

bool complex_number(const IValue& v) {
  return v.isComplexDouble() || (v.isTensor() && v.toTensor().defined() && is_number_tensor(v.toTensor()) &&
                                 c10::isComplexType(v.toTensor().scalar_type()));
}

// ---- host ----

// Takes the tensors out of an op's arguments: operands of the node, and places to put aliases in when it runs.
std::unique_ptr<HostCall> take_arguments(const OpVariant& variant, torch::jit::Stack& args, Recording& r, int device) {
  auto call = std::make_unique<HostCall>();
  call->variant = &variant;
  for (uint32_t i = 0; i < args.size(); ++i) {
    IValue& v = args[i];
    const auto take = [&](const at::Tensor& t, int32_t element) {
      call->tensors.push_back({i, element, r.host_input(t.unsafeGetTensorImpl())});
    };
    if (v.isTensor() && v.toTensor().defined() && v.toTensor().device().type() == kNeuron) {
      take(v.toTensor(), -1);
      call->stack.emplace_back();
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      int32_t k = 0;
      for (const at::Tensor& t : v.toTensorVector()) {
        if (t.device().type() == kNeuron) take(t, k);
        list.push_back(t.device().type() == kNeuron ? at::Tensor() : t);
        ++k;
      }
      call->stack.emplace_back(std::move(list));
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      int32_t k = 0;
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector()) {
        const bool ours = t && t->defined() && t->device().type() == kNeuron;
        if (ours) take(*t, k);
        list.push_back(ours ? std::nullopt : t);
        ++k;
      }
      call->stack.emplace_back(std::move(list));
    } else if (v.isTensor() && v.toTensor().defined() && is_number_tensor(v.toTensor())) {
      call->stack.emplace_back(v.toTensor().clone());  // host inputs are read at the call
    } else if (v.isGenerator()) {
      call->stack.emplace_back(host_generator(v.toGenerator(), device));
    } else {
      call->stack.push_back(v);
    }
  }
  if (variant.row->is(kRandom)) {
    const auto& arguments = variant.handle.schema().arguments();
    for (size_t i = 0; i < args.size(); ++i) {
      if (arguments[i].name() == "generator" && args[i].isNone()) call->stack[i] = host_generator(std::nullopt, device);
    }
  }
  return call;
}

void record_host(const OpVariant& variant, torch::jit::Stack& args, const Inference* inference, int device,
                 torch::jit::Stack* results) {
  const bool in_place = variant.kind == VariantKind::kInPlace;
  std::vector<at::Tensor> outs;
  if (in_place) {
    at::assert_no_internal_overlap(args[0].toTensor());
    outs.push_back(args[0].toTensor());
  } else {
    for (const ResultMeta& m : inference->results) outs.push_back(m.defined ? fresh_result(m, device) : at::Tensor());
  }
  Recording r(recorder(device), *variant.row);
  auto call = take_arguments(variant, args, r, device);
  ScalarType dtype = ScalarType::Float;
  for (const at::Tensor& out : outs) {
    if (!out.defined()) continue;
    r.output(out.unsafeGetTensorImpl(), !in_place);
    dtype = out.scalar_type();
  }
  r.host(std::move(call));
  r.finish(dtype, dtype);
  for (at::Tensor& out : outs) results->emplace_back(std::move(out));
}

void run_host_now(const OpVariant& variant, torch::jit::Stack* stack, int device, FlushCause cause) {
  ++stats().host_ops;
  const std::string name = variant.handle.schema().name();
  const auto located = [&](const char* what) {
    const std::string where = describe(current_origin());
    return std::string(what) + "\n  [neuron." + name.substr(name.find(':') + 2) + "]" +
           (where.empty() ? "" : " called at " + where);
  };
  try {
    run_now(variant.handle, stack, device, cause, &variant);
  } catch (const c10::NotImplementedError& e) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, located(e.what_without_backtrace()));
  } catch (const c10::IndexError& e) {
    TORCH_CHECK_INDEX(false, located(e.what_without_backtrace()));
  } catch (const c10::ValueError& e) {
    TORCH_CHECK_VALUE(false, located(e.what_without_backtrace()));
  } catch (const c10::TypeError& e) {
    TORCH_CHECK_TYPE(false, located(e.what_without_backtrace()));
  } catch (const c10::OutOfMemoryError& e) {
    C10_THROW_ERROR(OutOfMemoryError, located(e.what_without_backtrace()));
  } catch (const c10::LinAlgError& e) {
    TORCH_CHECK_LINALG(false, located(e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, located(e.what_without_backtrace()));
  }
}

// Indexing with masks: the result's shape, or the number of elements written, is in the data.
bool data_dependent(const OpVariant& variant, const torch::jit::Stack& args) {
  if (variant.row->kind == OpKind::kHostNow) return true;
  bool masks = false;
  for (const auto& v : args) {
    if (!v.isOptionalTensorList()) continue;
    for_each_tensor(v, [&](const at::Tensor& t) {
      masks |= t.defined() && (t.scalar_type() == ScalarType::Bool || t.scalar_type() == ScalarType::Byte);
    });
  }
  return masks;
}

}  // namespace

bool compiled_dtype(ScalarType t) {
  switch (t) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float:
    case ScalarType::Double:
      return true;
    default:
      return false;
  }
}

void record_boxed(const OpVariant& variant, torch::jit::Stack* stack) {
  const OpRow& row = *variant.row;
  const auto& schema = variant.handle.schema();
  const size_t n = schema.arguments().size();
  const bool compiled_kind = row.kind != OpKind::kHost && row.kind != OpKind::kHostNow;

  Devices devices;
  bool complex = false;
  for (size_t i = stack->size() - n; i < stack->size(); ++i) {
    const IValue& v = (*stack)[i];
    const bool list = v.isOptionalTensorList();
    // Index tensors on the host are allowed, as on other devices: such an op runs at once.
    const bool indices = list && row.is(kHostIndices);
    for_each_tensor(v, [&](const at::Tensor& t) {
      if (!indices || !t.defined() || !t.device().is_cpu()) devices.see(t, !list);
    });
    complex |= complex_number(v);
  }
  devices.check();
  if (!devices.recordable() || complex || (compiled_kind && !devices.compiled())) {
    return run_fallback(variant.handle, stack);
  }
  torch::jit::Stack args(stack->end() - static_cast<int64_t>(n), stack->end());
  const int device = devices.device();
  if (data_dependent(variant, args)) return run_host_now(variant, stack, device, FlushCause::kHostNow);

  at::Tensor written;
  if (variant.kind == VariantKind::kOut) {
    written = args.back().toTensor();
    args.pop_back();
    if (!written.defined() || written.device().type() != kNeuron) return run_fallback(variant.handle, stack);
  } else if (variant.kind == VariantKind::kInPlace) {
    written = args[0].toTensor();
    TORCH_CHECK(written.device().type() == kNeuron,
                "Expected all tensors to be on the same device, but found at least two devices, neuron:", device,
                " and ", written.device().str(), "!");
  }
  if (row.hooks.check) row.hooks.check(variant, args, written);
  std::shared_ptr<const Inference> inference;  // recording may infer other ops
  if (variant.functional) {
    try {
      inference = infer(variant, args);
    } catch (const std::exception&) {
      // The reference meta functions word some errors differently (and are Python): let the CPU kernel speak.
      if (variant.meta || (compiled_kind && row.kind != OpKind::kRowProgram)) throw;
    }
    if (!inference) return run_host_now(variant, stack, device, FlushCause::kHostNow);
  }
  if (compiled_kind) {
    const ScalarType compute = row.kind == OpKind::kMap         ? inference->compute
                               : row.kind == OpKind::kReduction ? args[0].toTensor().scalar_type()
                                                                : inference->results[0].dtype;
    bool compiled = compiled_dtype(compute);
    for (const ResultMeta& m : inference->results) compiled &= !m.defined || compiled_dtype(m.dtype);
    if (row.hooks.more_dims != 0) compiled &= args[0].toTensor().dim() + row.hooks.more_dims <= kMaxRank;
    if (!compiled) return run_fallback(variant.handle, stack);
    if (row.hooks.complete) {
      // The CPU has nothing to add.
    } else if (row.kind == OpKind::kRowProgram) {  // its other arguments have dtypes of their own
      const FirstUse use(variant, args, inference.get());
      if (!use.proven()) {
        if (!cpu_takes(variant, args)) return run_host_now(variant, stack, device, FlushCause::kFirstUse);
        use.taken();
      }
    } else if (!(row.asked >> static_cast<int>(compute) & 1) && !cpu_takes(variant, args)) {
      return run_host_now(variant, stack, device, FlushCause::kFirstUse);
    }
    if (!compiler_supports(row, compute)) return run_fallback(variant.handle, stack);
    std::vector<at::Tensor> outs = record_compiled(variant, args, written, *inference, device);
    torch::jit::drop(*stack, n);
    for (at::Tensor& out : outs) stack->emplace_back(std::move(out));
    return;
  }
  torch::jit::Stack results;
  at::Tensor composed;
  if (row.hooks.compose) composed = row.hooks.compose(*inference, args, device);
  if (composed.defined()) {
    results.emplace_back(std::move(composed));
  } else {
    const FirstUse use(variant, args, inference.get());
    if (!use.proven()) {
      run_host_now(variant, stack, device, FlushCause::kFirstUse);
      return use.ran(*stack);
    }
    record_host(variant, args, inference.get(), device, &results);
  }
  if (variant.kind == VariantKind::kOut) {
    const at::Tensor result = results[0].toTensor();
    const bool resized = at::native::resize_output(written, result.sizes());
    if (resized && variant.meta) {  // structured ops lay the memory out, too
      written.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
    }
    check_cast(result.scalar_type(), written.scalar_type());
    written.copy_(result);
    results[0] = written;
  }
  torch::jit::drop(*stack, n);
  for (auto& v : results) stack->push_back(std::move(v));
}

void BoxedAutogradKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                     torch::jit::Stack* stack) {
  bool asked = !device_is_next(keys);
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    for_each_tensor((*stack)[i], [&asked](const at::Tensor& t) { asked |= differentiated(t); });
  }
  if (asked) return op.redispatchBoxed(derivative_keys(keys), stack);
  const at::AutoDispatchBelowADInplaceOrView guard;
  record_boxed(variant_, stack);
}

}  // namespace neuron
