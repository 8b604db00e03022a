// torch.optim's fused ops: one node a parameter, with all the tensors it changes (adaptive/updates.py says how).

#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>

#include "fallback.h"
#include "hash.h"
#include "recorder.h"
#include "tensor_ops.h"

namespace neuron {
namespace {

using at::Tensor;
using c10::IValue;

constexpr const char* kOps[] = {
    "_fused_adam_", "_fused_adam_.tensor_lr", "_fused_adamw_",   "_fused_adamw_.tensor_lr",
    "_fused_sgd_",  "_fused_sgd_.tensor_lr",  "_fused_adagrad_", "_fused_adagrad_.tensor_lr",
};

// Whether every element has its own place. ATen's own test knows dense tensors only.
bool separate(const Tensor& t) {
  if (t.is_contiguous()) return true;
  c10::SmallVector<std::pair<int64_t, int64_t>, kMaxRank> dims;  // (stride, size)
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1) dims.emplace_back(t.stride(d), t.size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 0;  // of the dims so far
  for (const auto& [stride, size] : dims) {
    if (stride <= extent) return false;
    extent += (size - 1) * stride;
  }
  return true;
}

class FusedOptimizer final : public c10::OperatorKernel {
 public:
  explicit FusedOptimizer(const c10::OperatorHandle& op) : n_args_(op.schema().arguments().size()) {
    row_.name = op.schema().name().substr(6);  // without "aten::"
    row_.kind = OpKind::kMap;
    row_.id = hash_text("update " + row_.name);
    for (const auto& arg : op.schema().arguments()) {
      const std::string& n = arg.name();
      const bool state = n != "state_steps" && n != "lr" && n != "grad_scale" && n != "found_inf";
      args_.push_back({n, state, n == "grads", n == "momentum_buffer_list", n == "weight_decay"});
      if (n == "momentum") momentum_ = args_.size() - 1;
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const IValue* values = stack->data() + stack->size() - n_args_;
    const auto params = values[0].toListRef();
    if (!recordable(values)) return run_fallback(op, stack);
    Call call(row_.id);
    for (size_t i = 0; i < params.size(); ++i) record(values, i);
    call.finish();
    torch::jit::drop(*stack, n_args_);
  }

 private:
  struct Arg {
    std::string name;
    bool state, is_grad, is_buffer, is_decay;  // state: a tensor of the parameter's sizes
  };

  // The tensor of parameter `i`, or of all; undefined where there is none.
  static const Tensor& tensor(const IValue& v, size_t i) {
    static const Tensor none;
    if (v.isTensor()) return v.toTensor();
    if (!v.isList()) return none;
    const auto list = v.toListRef();
    return list.empty() ? none : list[i].toTensor();
  }

  // SGD without momentum has no use for its buffers.
  bool present(const IValue* values, size_t a, size_t i) const {
    return tensor(values[a], i).defined() && !(args_[a].is_buffer && values[momentum_].toDouble() == 0.0);
  }

  bool written(const IValue* values, size_t a) const {
    if (!args_[a].state) return false;
    return !args_[a].is_grad || !values[n_args_ - 2].isNone();  // a gradient is only changed by grad_scale
  }

  bool recordable(const IValue* values) const {
    const auto params = values[0].toListRef();
    for (size_t a = 0; a < n_args_; ++a) {
      if (!values[a].isList()) continue;
      const size_t n = values[a].toListRef().size();
      TORCH_CHECK(n == params.size() || (a > 1 && n == 0), row_.name, ": ", args_[a].name, " has ", n,
                  " tensors, need ", params.size());
    }
    for (size_t i = 0; i < params.size(); ++i) {
      const Tensor& param = params[i].toTensor();
      if (!c10::isFloatingType(param.scalar_type()) || !mapped(param)) return false;
      for (size_t a = 0; a < n_args_; ++a) {
        const Tensor& t = tensor(values[a], i);
        if (!t.defined()) continue;
        if (!args_[a].state && t.numel() == 1 && (t.device().is_cpu() || t.device() == param.device())) continue;
        if (!mapped(t) || t.device() != param.device() || !args_[a].state || t.sizes() != param.sizes()) return false;
        if (written(values, a) && !writable(values, a, i)) return false;
      }
    }
    return true;
  }

  // Whether a tensor can be changed point by point while the others are read.
  bool writable(const IValue* values, size_t a, size_t i) const {
    const Tensor& out = tensor(values[a], i);
    if (!separate(out)) return false;
    for (size_t b = 0; b < n_args_; ++b) {
      const Tensor& t = tensor(values[b], i);
      if (b == a || !t.defined() || !t.is_alias_of(out)) continue;
      if (at::get_overlap_status(out, t) != at::MemOverlapStatus::No) return false;
    }
    return true;
  }

  void record(const IValue* values, size_t i) const {
    const Tensor& param = tensor(values[0], i);
    if (param.numel() == 0) return;
    Recording r(recorder(param.device().index()), row_);
    for (size_t a = 0; a < n_args_; ++a) {
      const IValue& v = values[a];
      if (v.isBool()) {
        r.attr(int64_t{v.toBool()});
      } else if (v.isDouble()) {
        if (args_[a].is_decay) r.attr(int64_t{v.toDouble() != 0.0});
        r.scalar(v.toDouble());
      } else if (!present(values, a, i)) {
        r.absent();
      } else if (const Tensor& t = tensor(v, i); t.device().type() == kNeuron) {
        r.input(t.unsafeGetTensorImpl());
      } else {
        r.scalar(t.item().toDouble());  // of the host: read at the call, as every number
      }
    }
    for (size_t a = 0; a < n_args_; ++a) {
      if (written(values, a) && present(values, a, i)) r.output(tensor(values[a], i).unsafeGetTensorImpl(), false);
    }
    const auto compute = at::toOpMathType(param.scalar_type());
    r.finish(compute, compute);
  }

  OpRow row_;
  const size_t n_args_;
  std::vector<Arg> args_;
  size_t momentum_ = 0;
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : kOps) {
    const std::string full = std::string("aten::") + name;
    const size_t dot = full.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        full.substr(0, dot).c_str(), dot == std::string::npos ? "" : full.substr(dot + 1).c_str());
    m.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<FusedOptimizer>(op)));
  }
}

}  // namespace neuron
