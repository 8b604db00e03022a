#include "map_kernels.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include "autograd_key.h"
#include "number.h"
#include "operands.h"
#include "record_boxed.h"
#include "recorder.h"

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;
using c10::ScalarType;

// Operands whose result is laid out like `a`: the same geometry, or `b` contiguous and broadcast along leading dims of
// `a`.
bool follows(const Tensor& a, const Tensor& b) {
  const auto as = a.sizes(), bs = b.sizes();
  if (!dense(a)) return false;
  if (as == bs) return a.strides() == b.strides();
  if (bs.size() > as.size() || !a.is_contiguous() || !b.is_contiguous()) return false;
  return as.slice(as.size() - bs.size()) == bs;
}

// The second operand's dtype changes nothing: the same dtype, or a mask beside a float.
bool joins(const OpRow& row, const Tensor& a, const Tensor& b) {
  return b.scalar_type() == a.scalar_type() ||
         (row.is(kMaskOperand) && b.scalar_type() == ScalarType::Bool && c10::isFloatingType(a.scalar_type()));
}

// A number operand: a wrapped Python number, or a 0-dim CPU tensor beside a tensor with dims (neither promotes within
// its category). Not bools, which some ops refuse.
bool number_operand(const Tensor& t, const Tensor& n) {
  if (n.dim() != 0 || !n.device().is_cpu() || n.layout() != c10::kStrided) return false;
  if (!n.unsafeGetTensorImpl()->is_wrapped_number() && t.dim() == 0) return false;
  const ScalarType kind = n.scalar_type();
  if (c10::isFloatingType(t.scalar_type())) return c10::isFloatingType(kind) || c10::isIntegralType(kind, false);
  return c10::isIntegralType(kind, false);
}

// The value of a number operand. Python's numbers are read where they lie: item() would go through the dispatcher.
Scalar value_of(const Tensor& n) {
  if (n.unsafeGetTensorImpl()->is_wrapped_number()) {
    if (n.scalar_type() == ScalarType::Double) return *n.const_data_ptr<double>();
    if (n.scalar_type() == ScalarType::Long) return *n.const_data_ptr<int64_t>();
  }
  return n.item();
}

class Kernel {
 public:
  explicit Kernel(const OpVariant& variant) : variant_(variant), row_(*variant.row) {}

  const OpVariant& variant() const { return variant_; }

 protected:
  ScalarType result_dtype(ScalarType compute) const { return row_.is(kBoolResult) ? ScalarType::Bool : compute; }

  // In-place ops of tensors and a number: every tensor is laid out and typed like `self`.
  bool like_self(const Tensor& self, const Tensor& t) const {
    return plain(row_, t) && t.scalar_type() == self.scalar_type() && t.device() == self.device() && follows(self, t) &&
           safe_in_place(self, t);
  }
  bool number_ok(const Tensor& self, const Scalar& number) const {
    return number_for(self, number) && takes_number(row_, self.scalar_type(), number);
  }

  // Records `out = op(inputs...)`; each input is put in by a callable, in schema order.
  template <typename Inputs>
  void record(const Tensor& out, bool fresh, ScalarType compute, const Inputs& inputs) const {
    Recording r(recorder(out.device().index()), row_);
    inputs(r);
    r.output(out.unsafeGetTensorImpl(), fresh);
    r.finish(compute, result_dtype(compute));
  }

  const OpVariant& variant_;
  const OpRow& row_;
};

// Each op of these kernels records, if its arguments are common ones, and says whether it did. A functional one makes
// its result, an in-place one has it as its first argument.

struct Unary : Kernel {
  using Kernel::Kernel;
  bool operator()(Tensor& out, const Tensor& self) const {
    if (!plain(row_, self) || !dense(self)) return false;
    const ScalarType dtype = self.scalar_type();
    out = like(self, result_dtype(dtype));
    record(out, true, dtype, [&](Recording& r) { r.input(self.unsafeGetTensorImpl()); });
    return true;
  }
};

struct UnaryInPlace : Kernel {
  using Kernel::Kernel;
  bool operator()(Tensor& self) const {
    if (!plain(row_, self) || !dense(self) || row_.is(kBoolResult)) return false;
    record(self, false, self.scalar_type(), [&](Recording& r) { r.input(self.unsafeGetTensorImpl()); });
    return true;
  }
};

// Binary ops with and without alpha share their conditions; `Alpha` adds the number only when it is not one.
template <bool kAlpha>
struct BinaryBase : Kernel {
  using Kernel::Kernel;

  void alpha_arg(Recording& r, const Scalar* alpha) const {
    if constexpr (kAlpha) {
      if (one(*alpha))
        r.absent();
      else
        r.scalar(*alpha);
    }
  }
  bool operands_ok(const Tensor& self, const Tensor& other, const Scalar* alpha) const {
    if (row_.is(kNoBool) && other.scalar_type() == ScalarType::Bool) return false;
    if constexpr (kAlpha) {
      return number_ok(self, *alpha);
    }
    return true;
  }

  bool functional(Tensor& out, const Tensor& a, const Tensor& b, const Scalar* alpha) const {
    if (!plain(row_, a) || !operands_ok(a, b, alpha)) return false;
    const ScalarType dtype = a.scalar_type();
    if (is_neuron(b)) {
      if (!joins(row_, a, b) || a.device() != b.device() || !follows(a, b)) return false;
      out = like(a, result_dtype(dtype));
      record(out, true, dtype, [&](Recording& r) {
        r.input(a.unsafeGetTensorImpl());
        r.input(b.unsafeGetTensorImpl());
        alpha_arg(r, alpha);
      });
    } else {
      if (!number_operand(a, b) || !dense(a)) return false;
      out = like(a, result_dtype(dtype));
      record(out, true, dtype, [&](Recording& r) {
        r.input(a.unsafeGetTensorImpl());
        r.scalar(value_of(b));
        alpha_arg(r, alpha);
      });
    }
    return true;
  }

  bool in_place(const Tensor& a, const Tensor& b, const Scalar* alpha) const {
    if (!plain(row_, a) || !operands_ok(a, b, alpha) || row_.is(kBoolResult)) return false;
    const ScalarType dtype = a.scalar_type();
    if (is_neuron(b)) {
      if (!joins(row_, a, b) || a.device() != b.device() || !follows(a, b) || !safe_in_place(a, b)) return false;
      record(a, false, dtype, [&](Recording& r) {
        r.input(a.unsafeGetTensorImpl());
        r.input(b.unsafeGetTensorImpl());
        alpha_arg(r, alpha);
      });
    } else {
      if (!number_operand(a, b) || !dense(a)) return false;
      record(a, false, dtype, [&](Recording& r) {
        r.input(a.unsafeGetTensorImpl());
        r.scalar(value_of(b));
        alpha_arg(r, alpha);
      });
    }
    return true;
  }
};

struct Binary : BinaryBase<false> {
  using BinaryBase::BinaryBase;
  bool operator()(Tensor& out, const Tensor& a, const Tensor& b) const { return functional(out, a, b, nullptr); }
};

struct BinaryInPlace : BinaryBase<false> {
  using BinaryBase::BinaryBase;
  bool operator()(Tensor& a, const Tensor& b) const { return in_place(a, b, nullptr); }
};

struct BinaryAlpha : BinaryBase<true> {
  using BinaryBase::BinaryBase;
  bool operator()(Tensor& out, const Tensor& a, const Tensor& b, const Scalar& alpha) const {
    return functional(out, a, b, &alpha);
  }
};

struct BinaryAlphaInPlace : BinaryBase<true> {
  using BinaryBase::BinaryBase;
  bool operator()(Tensor& a, const Tensor& b, const Scalar& alpha) const { return in_place(a, b, &alpha); }
};

struct BinaryScalar : Kernel {
  using Kernel::Kernel;
  bool operator()(Tensor& out, const Tensor& self, const Scalar& other) const {
    if (!plain(row_, self) || !dense(self) || !number_ok(self, other)) return false;
    const ScalarType dtype = self.scalar_type();
    out = like(self, result_dtype(dtype));
    record(out, true, dtype, [&](Recording& r) {
      r.input(self.unsafeGetTensorImpl());
      r.scalar(other);
    });
    return true;
  }
};

struct BinaryScalarInPlace : Kernel {
  using Kernel::Kernel;
  bool operator()(Tensor& self, const Scalar& other) const {
    if (!plain(row_, self) || !dense(self) || !number_ok(self, other) || row_.is(kBoolResult)) return false;
    record(self, false, self.scalar_type(), [&](Recording& r) {
      r.input(self.unsafeGetTensorImpl());
      r.scalar(other);
    });
    return true;
  }
};

// lerp_, addcmul_, addcdiv_: the optimizers' ops.
struct LerpInPlace : Kernel {
  using Kernel::Kernel;
  bool operator()(Tensor& self, const Tensor& end, const Scalar& weight) const {
    if (!plain(row_, self) || !like_self(self, end) || !number_ok(self, weight)) return false;
    record(self, false, self.scalar_type(), [&](Recording& r) {
      r.input(self.unsafeGetTensorImpl());
      r.input(end.unsafeGetTensorImpl());
      r.scalar(weight);
    });
    return true;
  }
};

struct TernaryScalarInPlace : Kernel {
  using Kernel::Kernel;
  bool operator()(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) const {
    if (!plain(row_, self) || !like_self(self, a) || !like_self(self, b) || !number_ok(self, value)) return false;
    record(self, false, self.scalar_type(), [&](Recording& r) {
      r.input(self.unsafeGetTensorImpl());
      r.input(a.unsafeGetTensorImpl());
      r.input(b.unsafeGetTensorImpl());
      r.scalar(value);
    });
    return true;
  }
};

// ---- at the dispatcher's keys ----

// The op beneath autograd: what the common case does not take goes to the general recorder.
template <typename K, typename Op = decltype(&K::operator()), VariantKind kind = VariantKind::kFunctional>
struct AtDevice;

template <typename K, typename... Args>
struct AtDevice<K, bool (K::*)(Tensor&, Args...) const, VariantKind::kFunctional> : K {
  using K::K;
  Tensor operator()(Args... args) const {
    Tensor out;
    return K::operator()(out, args...) ? out : general(args...);
  }
  Tensor general(Args... args) const {
    torch::jit::Stack stack{c10::IValue(args)...};
    record_boxed(K::variant(), &stack);
    return std::move(stack.back()).toTensor();
  }
};

template <typename K, typename... Args>
struct AtDevice<K, bool (K::*)(Tensor&, Args...) const, VariantKind::kInPlace> : K {
  using K::K;
  Tensor& operator()(Tensor& self, Args... args) const {
    if (!K::operator()(self, args...)) general(self, args...);
    return self;
  }
  void general(Tensor& self, Args... args) const {
    torch::jit::Stack stack{c10::IValue(self), c10::IValue(args)...};
    record_boxed(K::variant(), &stack);
  }
};

// The op at autograd's key (autograd_key.h).
template <typename K, typename Op = decltype(&K::operator()), VariantKind kind = VariantKind::kFunctional>
struct AtAutograd;

template <typename K, typename... Args>
struct AtAutograd<K, bool (K::*)(Tensor&, Args...) const, VariantKind::kFunctional> {
  explicit AtAutograd(const OpVariant& variant) : device(variant), op(variant.handle.typed<Tensor(Args...)>()) {}
  Tensor operator()(c10::DispatchKeySet keys, Args... args) const {
    if (!device_is_next(keys) || (differentiated(args) || ...)) return op.redispatch(derivative_keys(keys), args...);
    Tensor out;
    if (device.K::operator()(out, args...)) return out;
    const at::AutoDispatchBelowADInplaceOrView guard;
    return device.general(args...);
  }
  AtDevice<K> device;
  c10::TypedOperatorHandle<Tensor(Args...)> op;
};

template <typename K, typename... Args>
struct AtAutograd<K, bool (K::*)(Tensor&, Args...) const, VariantKind::kInPlace> {
  using Op = bool (K::*)(Tensor&, Args...) const;
  explicit AtAutograd(const OpVariant& variant)
      : device(variant), op(variant.handle.typed<Tensor&(Tensor&, Args...)>()) {}
  Tensor& operator()(c10::DispatchKeySet keys, Tensor& self, Args... args) const {
    if (!device_is_next(keys) || differentiated(self) || (differentiated(args) || ...)) {
      return op.redispatch(derivative_keys(keys), self, args...);
    }
    if (!device.K::operator()(self, args...)) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      device.general(self, args...);
    }
    self.unsafeGetTensorImpl()->bump_version();
    return self;
  }
  AtDevice<K, Op, VariantKind::kInPlace> device;
  c10::TypedOperatorHandle<Tensor&(Tensor&, Args...)> op;
};

template <typename K, VariantKind kind = VariantKind::kFunctional>
MapKernels make(const OpVariant& variant) {
  using Op = decltype(&K::operator());
  return {torch::CppFunction(AtDevice<K, Op, kind>(variant)), torch::CppFunction(AtAutograd<K, Op, kind>(variant))};
}

template <typename K>
MapKernels make_in_place(const OpVariant& variant) {
  return make<K, VariantKind::kInPlace>(variant);
}

std::string types_of(const c10::FunctionSchema& schema) {
  std::string types;
  for (const auto& arg : schema.arguments()) {
    const std::string t = arg.type()->str();
    types += t == "Tensor" ? 'T' : t == "Scalar" ? 'S' : '?';
  }
  return types;
}

}  // namespace

std::optional<MapKernels> unboxed_map_kernels(const OpVariant& variant) {
  const std::string types = types_of(variant.handle.schema());
  if (variant.kind == VariantKind::kFunctional) {
    if (types == "T") return make<Unary>(variant);
    if (types == "TT") return make<Binary>(variant);
    if (types == "TTS" && variant.handle.schema().arguments()[2].name() == "alpha") return make<BinaryAlpha>(variant);
    if (types == "TS") return make<BinaryScalar>(variant);
  } else if (variant.kind == VariantKind::kInPlace) {
    if (types == "T") return make_in_place<UnaryInPlace>(variant);
    if (types == "TT") return make_in_place<BinaryInPlace>(variant);
    if (types == "TTS" && variant.handle.schema().arguments()[2].name() == "alpha")
      return make_in_place<BinaryAlphaInPlace>(variant);
    if (types == "TS") return make_in_place<BinaryScalarInPlace>(variant);
    if (types == "TTS" && variant.handle.schema().arguments()[2].name() == "weight")
      return make_in_place<LerpInPlace>(variant);
    if (types == "TTTS") return make_in_place<TernaryScalarInPlace>(variant);
  }
  return std::nullopt;
}

}  // namespace neuron
