#include "record_compiled.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>

#include <cmath>

#include "device.h"
#include "nested.h"
#include "number.h"
#include "recorder.h"
#include "reductions.h"

namespace neuron {

using c10::IValue;
using c10::ScalarType;

void check_cast(ScalarType from, ScalarType to) {
  TORCH_CHECK(c10::canCast(from, to), "result type ", c10::toString(from), " can't be cast to the desired output type ",
              c10::toString(to));
}

// The tensor an in-place or out= op writes: checked, resized, and safe against its inputs.
void prepare_written(const OpVariant& variant, const at::Tensor& out, const ResultMeta& result,
                     const torch::jit::Stack& inputs) {
  if (variant.kind == VariantKind::kInPlace) {
    TORCH_CHECK(out.sizes() == c10::IntArrayRef(result.sizes), "output with shape ", out.sizes(),
                " doesn't match the broadcast shape ", c10::IntArrayRef(result.sizes));
  } else {
    TORCH_CHECK(
        variant.row->kind != OpKind::kRowProgram || variant.row->is(kCastOut) || out.scalar_type() == result.dtype,
        "Expected out tensor to have dtype ", c10::scalarTypeToTypeMeta(result.dtype), ", but got ", out.dtype(),
        " instead");
    TORCH_CHECK(!variant.row->is(kSameOut) || out.scalar_type() == result.dtype, "Found dtype ", out.scalar_type(),
                " but expected ", result.dtype);
    at::native::resize_output(out, result.sizes);
  }
  check_cast(result.dtype, out.scalar_type());
  at::assert_no_internal_overlap(out);
  for (const auto& v : inputs) {
    for_each_tensor(v, [&](const at::Tensor& t) {
      if (t.defined() && t.device().type() == kNeuron && !t.is_same(out)) at::assert_no_partial_overlap(out, t);
    });
  }
}

at::Tensor fresh_result(const ResultMeta& meta, int device) {
  return new_tensor(meta.sizes, meta.strides, meta.dtype, device);
}

namespace {

ScalarType accumulator(ScalarType t) {
  return t == ScalarType::Half || t == ScalarType::BFloat16 ? ScalarType::Float : t;
}

// ---- map ----

at::Tensor record_map(const OpVariant& variant, torch::jit::Stack& args, const at::Tensor& written,
                      const Inference& inference, int device) {
  const OpRow& row = *variant.row;
  const ResultMeta& result = inference.results[0];
  const auto& schema = variant.functional->schema();
  for (size_t i = 1; i < args.size(); ++i) {  // a number that stands for a tensor (self, other) wraps
    if (args[i].isScalar() && schema.arguments()[i].name() != "other")
      check_number(row, inference.compute, args[i].toScalar());
  }
  at::Tensor out = written;
  if (out.defined())
    prepare_written(variant, out, result, args);
  else
    out = fresh_result(result, device);
  Recording r(recorder(device), row);
  for (size_t i = 0; i < args.size(); ++i) {
    const IValue& v = args[i];
    const ArgRole role = variant.roles[i];
    if (v.isTensor() && v.toTensor().defined()) {
      if (v.toTensor().device().type() == kNeuron)
        r.input(v.toTensor().unsafeGetTensorImpl());
      else
        r.scalar(v.toTensor().item());
    } else if (role == ArgRole::kTensor || (role == ArgRole::kNumber && v.isNone())) {
      r.absent();
    } else if (v.isString()) {
      r.attr(v.toStringRef());
    } else if (role == ArgRole::kNumber || (v.isInt() && row.is(kIntOperands))) {
      r.scalar(v.toScalar());
    } else if (v.isNone()) {
      r.attr(std::string("none"));  // an absent rounding mode
    } else if (v.isBool()) {
      r.attr(int64_t{v.toBool()});
    } else {
      r.attr(v.toInt());
    }
  }
  r.output(out.unsafeGetTensorImpl(), !written.defined());
  r.finish(inference.compute, row.is(kBoolResult) ? ScalarType::Bool : inference.compute);
  return out;
}

// ---- reductions ----

std::vector<at::Tensor> record_reduction(const OpVariant& variant, torch::jit::Stack& args, const at::Tensor& written,
                                         const Inference& inference, int device) {
  const OpRow& row = *variant.row;
  const ResultMeta& result = inference.results[0];
  const at::Tensor self = args[0].toTensor();
  uint64_t mask = reduced_dims(c10::IValue(), self.dim());
  bool keepdim = false;
  double ord = 2;
  const auto& arguments = variant.functional->schema().arguments();
  for (size_t i = 1; i < args.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (name == "keepdim") keepdim = args[i].toBool();
    if (name == "ord") ord = args[i].toScalar().toDouble();
    if (name != "dim") continue;
    const bool nothing = args[i].isIntList() && args[i].toListRef().empty();
    // An empty list of dims reduces nothing in these.
    mask = nothing && (row.name == "any" || row.name == "all") ? 0 : reduced_dims(args[i], self.dim());
  }
  int64_t count = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (mask >> d & 1) count *= self.size(d);
  }
  std::vector<at::Tensor> outs;
  if (written.defined()) {
    prepare_written(variant, written, result, args);
    outs = {written};
  } else {
    for (const ResultMeta& m : inference.results) outs.push_back(fresh_result(m, device));
  }
  // sum(dtype=...) sums in the dtype asked for; min and max compare in the input's own.
  ScalarType compute = row.is(kSelfDtype)      ? self.scalar_type()
                       : row.is(kBoolOperands) ? ScalarType::Bool
                                               : accumulator(result.dtype);
  Recording r(recorder(device), row);
  r.input(self.unsafeGetTensorImpl());
  if (row.name == "mean") r.scalar(count);
  r.attr(static_cast<int64_t>(mask));
  r.attr(int64_t{keepdim});
  if (row.name == "linalg_vector_norm") {
    const bool named = ord == 0 || ord == 1 || ord == 2 || std::isinf(ord);
    r.attr(std::string(!named ? "p" : ord == 0 ? "0" : ord == 1 ? "1" : ord == 2 ? "2" : ord > 0 ? "inf" : "-inf"));
    if (!named) r.scalar(ord);
  }
  for (const at::Tensor& out : outs) r.output(out.unsafeGetTensorImpl(), !written.defined());
  r.finish(compute, result.dtype);
  return outs;
}

// ---- row programs ----

// The arguments in the order of the schema.
RowCall plain_call(const OpVariant& variant, const torch::jit::Stack& args, const std::vector<at::Tensor>& outs) {
  RowCall call;
  const auto& arguments = variant.functional->schema().arguments();
  const int64_t rank = args[0].toTensor().dim();
  for (size_t i = 0; i < args.size(); ++i) {
    const IValue& v = args[i];
    if (v.isTensor() || v.isNone()) {
      call.inputs.push_back(v.isTensor() ? v.toTensor() : at::Tensor());
    } else if (v.isDouble()) {
      call.scalars.push_back(v.toDouble());
    } else if (v.isBool()) {
      call.attrs.push_back(v.toBool());
    } else {
      call.attrs.push_back(arguments[i].name() == "dim" ? c10::maybe_wrap_dim(v.toInt(), rank) : v.toInt());
    }
  }
  call.results = outs;
  return call;
}

// A node's inputs are the defined ones, its outputs the defined results, then what it writes. What is undefined is an
// attribute: a bit each, after the others.
std::vector<at::Tensor> record_row_program(const OpVariant& variant, torch::jit::Stack& args, const at::Tensor& written,
                                           const Inference& inference, int device) {
  const OpRow& row = *variant.row;
  std::vector<at::Tensor> outs;
  if (written.defined()) {
    prepare_written(variant, written, inference.results[0], args);
    outs = {written};
  } else {
    for (const ResultMeta& m : inference.results) outs.push_back(m.defined ? fresh_result(m, device) : at::Tensor());
  }
  const RowCall call = row.hooks.arrange ? row.hooks.arrange(args, outs) : plain_call(variant, args, outs);
  Recording r(recorder(device), row);
  for (const at::Tensor& t : call.inputs) {
    if (t.defined())
      r.input(t.unsafeGetTensorImpl());
    else
      r.absent();
  }
  for (double scalar : call.scalars) r.scalar(scalar);
  for (int64_t attr : call.attrs) r.attr(attr);
  int64_t made = 0;
  for (const at::Tensor& t : call.results) {
    made = made << 1 | int64_t{t.defined()};
    if (t.defined()) r.output(t.unsafeGetTensorImpl(), !written.defined());
  }
  r.attr(made);
  for (const at::Tensor& t : call.written) {
    if (t.defined()) r.output(t.unsafeGetTensorImpl(), false);
  }
  r.finish(inference.results[0].dtype, inference.results[0].dtype);
  return outs;
}

}  // namespace

std::vector<at::Tensor> record_compiled(const OpVariant& variant, torch::jit::Stack& args, const at::Tensor& written,
                                        const Inference& inference, int device) {
  switch (variant.row->kind) {
    case OpKind::kMap:
      return {record_map(variant, args, written, inference, device)};
    case OpKind::kReduction:
      return record_reduction(variant, args, written, inference, device);
    default:
      return record_row_program(variant, args, written, inference, device);
  }
}

}  // namespace neuron
