#include "reductions.h"

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace neuron {
namespace {

using at::Tensor;
using c10::IValue;
using c10::ScalarType;
using torch::jit::Stack;

int64_t points(const Tensor& t, uint64_t dims) {
  int64_t n = 1;
  for (int64_t d = 0; d < t.dim(); ++d) n *= dims >> d & 1 ? t.size(d) : 1;
  return n;
}

// Adds a contiguous result of a tensor reduced over some dims.
void add_reduced(Inference& inference, const Tensor& self, uint64_t reduced, bool keepdim, ScalarType dtype) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!(reduced >> d & 1))
      sizes.push_back(self.size(d));
    else if (keepdim)
      sizes.push_back(1);
  }
  inference.results.push_back(contiguous_meta(std::move(sizes), dtype));
}

bool infer_reduced(Inference& inference, const Tensor& self, const IValue& dim, bool keepdim, ScalarType dtype) {
  add_reduced(inference, self, reduced_dims(dim, self.dim()), keepdim, dtype);
  return true;
}

double correction(const Stack& args) { return args[2].isNone() ? 1.0 : args[2].toScalar().toDouble(); }

}  // namespace

uint64_t reduced_dims(const IValue& dim, int64_t rank) {
  const uint64_t all = (uint64_t{1} << rank) - 1;
  if (dim.isNone()) return all;
  if (dim.isInt()) {
    const int64_t d = c10::maybe_wrap_dim(dim.toInt(), rank);
    return rank == 0 ? 0 : uint64_t{1} << d;
  }
  const auto dims = dim.toDimVector();
  if (dims.empty()) return all;
  const auto mask = at::dim_list_to_bitset(dims, rank).to_ulong();
  return rank == 0 ? 0 : mask;
}

Tensor with_reduced_dims(const Tensor& result, c10::IntArrayRef sizes, uint64_t reduced) {
  if (!result.defined()) return result;
  std::vector<int64_t> kept = sizes.vec();
  for (size_t d = 0; d < kept.size(); ++d) {
    if (reduced >> d & 1) kept[d] = 1;
  }
  return result.view(kept);
}

// ---- moments: (self, dim, correction, keepdim) ----

void check_moments(const OpVariant& variant, const Stack& args, const Tensor&) {
  const std::string& name = variant.row->name;
  const Tensor self = args[0].toTensor();
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), name.find('_') == std::string::npos ? "std and var" : name,
              " only support floating point and complex dtypes");
  const uint64_t reduced = reduced_dims(args[1], self.dim());
  const bool some = points(self, ~reduced) != 0;
  if ((some ? static_cast<double>(points(self, reduced)) : 0.0) - correction(args) <= 0) {
    TORCH_WARN(name, "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor ",
               "(input numel divided by output numel).");
  }
}

bool infer_moments(Inference& inference, const Stack& args) {
  const Tensor self = args[0].toTensor();
  return infer_reduced(inference, self, args[1], args[3].toBool(), self.scalar_type());
}

bool infer_two_moments(Inference& inference, const Stack& args) {
  return infer_moments(inference, args) && infer_moments(inference, args);
}

RowCall arrange_moments(const Stack& args, const std::vector<Tensor>& outs) {
  const Tensor self = args[0].toTensor();
  const uint64_t reduced = reduced_dims(args[1], self.dim());
  RowCall call;
  call.inputs = {self};
  call.scalars = {std::max(0.0, static_cast<double>(points(self, reduced)) - correction(args))};
  call.attrs = {static_cast<int64_t>(reduced)};
  for (const Tensor& out : outs) call.results.push_back(with_reduced_dims(out, self.sizes(), reduced));
  return call;
}

// ---- logsumexp: (self, dim, keepdim) ----

bool infer_logsumexp(Inference& inference, const Stack& args) {
  const Tensor self = args[0].toTensor();
  const ScalarType dtype = c10::isIntegralType(self.scalar_type(), true)
                               ? c10::typeMetaToScalarType(at::get_default_dtype())
                               : self.scalar_type();
  return infer_reduced(inference, self, args[1], args[2].toBool(), dtype);
}

RowCall arrange_logsumexp(const Stack& args, const std::vector<Tensor>& outs) {
  const Tensor self = args[0].toTensor();
  const uint64_t reduced = reduced_dims(args[1], self.dim());
  RowCall call;
  call.inputs = {self};
  call.attrs = {static_cast<int64_t>(reduced)};
  call.results = {with_reduced_dims(outs[0], self.sizes(), reduced)};
  return call;
}

// ---- nansum: (self, dim, keepdim, dtype); count_nonzero: (self, dim) ----

bool infer_nansum(Inference& inference, const Stack& args) {
  const Tensor self = args[0].toTensor();
  const ScalarType own = c10::isIntegralType(self.scalar_type(), true) ? ScalarType::Long : self.scalar_type();
  return infer_reduced(inference, self, args[1], args[2].toBool(), args[3].isNone() ? own : args[3].toScalarType());
}

bool infer_count_nonzero(Inference& inference, const Stack& args) {
  return infer_reduced(inference, args[0].toTensor(), args[1], false, ScalarType::Long);
}

}  // namespace neuron
