#include "foreach_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "hash.h"
#include "op_table.h"
#include "operands.h"
#include "recorder.h"

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;
using c10::IValue;

// ATen makes these of other ops than their names say.
std::string element_op(std::string name) {
  name = name.substr(std::string("aten::_foreach_").size());
  if (name.back() == '_') name.pop_back();
  if (name == "maximum") return "clamp_min";
  if (name == "minimum") return "clamp_max";
  return name;
}

// One call is one op of the window, however many tensors it has. Lists of alike tensors are recorded here; others, and
// ops without a row, go through ATen's own loop.
class Foreach final : public c10::OperatorKernel {
 public:
  explicit Foreach(const c10::OperatorHandle& op)
      : aten_(op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)),
        id_(hash_text(op.schema().name())),
        row_(op_row(element_op(op.schema().name()))),
        in_place_(op.schema().name().back() == '_'),
        n_args_(op.schema().arguments().size()) {
    if (row_ && (row_->kind != OpKind::kMap || row_->hooks.check)) row_ = nullptr;
    bool alpha = false;
    for (const auto& arg : op.schema().arguments()) {
      const std::string type = arg.type()->str();
      const bool known = type == "Tensor[]" || type == "Tensor" || type == "Scalar" || type == "Scalar[]";
      if (!known || arg.is_out()) row_ = nullptr;
      alpha |= arg.name() == "alpha";
    }
    // pow of a number and tensors, and factors in a tensor of the host.
    const std::string& overload = op.schema().overload_name();
    if (overload == "ScalarAndTensor" || (overload == "Tensor" && n_args_ > 3)) row_ = nullptr;
    absent_alpha_ = row_ && !alpha && (row_->name == "add" || row_->name == "sub");
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    Call call(id_);
    const IValue* args = stack->data() + stack->size() - n_args_;
    if (row_ && alike(args)) {
      c10::List<Tensor> results;
      record(args, results);
      torch::jit::drop(*stack, n_args_);
      if (!in_place_) stack->emplace_back(std::move(results));
    } else {
      aten_.callBoxed(op, keys, stack);
    }
    call.finish();
  }

 private:
  // Whether each op takes tensors of one geometry and dtype, and numbers as they are.
  bool alike(const IValue* args) const {
    const auto selves = args[0].toListRef();
    if (selves.empty()) return false;
    for (size_t a = 1; a < n_args_; ++a) {
      if (args[a].isList() && args[a].toListRef().size() != selves.size()) return false;
    }
    for (size_t i = 0; i < selves.size(); ++i) {
      const Tensor& self = selves[i].toTensor();
      if (!plain(*row_, self) || !dense(self)) return false;
      for (size_t a = 1; a < n_args_; ++a) {
        const IValue& v = args[a].isList() ? args[a].toListRef()[i] : args[a];
        if (v.isTensor() ? !joins(self, v.toTensor(), args[a].isList()) : !takes(self, v.toScalar())) return false;
      }
    }
    return true;
  }

  bool joins(const Tensor& self, const Tensor& other, bool element) const {
    if (!plain(*row_, other) || other.scalar_type() != self.scalar_type() || other.device() != self.device())
      return false;
    if (in_place_ && !safe_in_place(self, other)) return false;
    if (element || other.dim() != 0) return other.sizes() == self.sizes() && other.strides() == self.strides();
    return self.is_contiguous();
  }

  bool takes(const Tensor& self, const Scalar& number) const {
    return number_for(self, number) && takes_number(*row_, self.scalar_type(), number);
  }

  void record(const IValue* args, c10::List<Tensor>& results) const {
    const auto selves = args[0].toListRef();
    if (!in_place_) results.reserve(selves.size());
    for (size_t i = 0; i < selves.size(); ++i) {
      const Tensor& self = selves[i].toTensor();
      const Tensor out = in_place_ ? self : like(self, self.scalar_type());
      Recording r(recorder(self.device().index()), *row_);
      r.input(self.unsafeGetTensorImpl());
      for (size_t a = 1; a < n_args_; ++a) {
        const IValue& v = args[a].isList() ? args[a].toListRef()[i] : args[a];
        if (v.isTensor()) {
          r.input(v.toTensor().unsafeGetTensorImpl());
        } else if (const Scalar number = v.toScalar(); row_alpha(a) && one(number)) {
          r.absent();
        } else {
          r.scalar(number);
        }
      }
      if (absent_alpha_) r.absent();
      r.output(out.unsafeGetTensorImpl(), !in_place_);
      r.finish(self.scalar_type(), self.scalar_type());
      if (!in_place_) results.push_back(out);
    }
  }

  // add and sub: their third argument.
  bool row_alpha(size_t a) const { return a == 2 && (row_->name == "add" || row_->name == "sub"); }

  c10::SafeKernelFunction aten_;
  const uint64_t id_;
  const OpRow* row_;
  const bool in_place_;
  const size_t n_args_;
  bool absent_alpha_ = false;
};

}  // namespace

void register_foreach(torch::Library& library) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) continue;
    library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Foreach>(*op)));
  }
}

}  // namespace neuron
