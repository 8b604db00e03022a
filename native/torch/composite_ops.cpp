// Ops recorded as several simpler ops: every mode runs the same ones, so they round alike everywhere.

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <tuple>

#include "random_ops.h"
#include "recorder.h"

namespace at::native {
// The CPU's choice of attention kernel; it looks at shapes and dtypes only.
int64_t _fused_sdp_choice_cpp(const Tensor& query, const Tensor& key, const Tensor& value,
                              const std::optional<Tensor>& mask, double dropout_p, bool is_causal,
                              std::optional<double> scale, bool enable_gqa);
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_cpp)
}  // namespace at::native

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;
using c10::ScalarType;

// Half types are reduced in float32, and rounded once at the end.
Tensor widened(const Tensor& t) {
  const bool half = t.scalar_type() == ScalarType::Half || t.scalar_type() == ScalarType::BFloat16;
  return half ? t.to(ScalarType::Float) : t;
}

struct Moments {
  Tensor variance, mean;
};

// Two passes: the mean, then the mean of the squared distances. Accurate whatever the offset of the data.
Moments moments(const Tensor& self, at::OptionalIntArrayRef dim, const std::optional<Scalar>& correction,
                bool keepdim) {
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), "std and var only support floating point and complex dtypes");
  const Tensor x = widened(self);
  const auto dims = dim ? *dim : at::IntArrayRef{};
  const auto mask = at::dim_list_to_bitset(dims, std::max<int64_t>(x.dim(), 1));
  const bool all = dims.empty();
  double count = 1;
  for (int64_t d = 0; d < x.dim(); ++d) count *= all || mask[d] ? static_cast<double>(x.size(d)) : 1.0;
  const Tensor mean = at::mean(x, dims, true);
  const Tensor distance = at::sub(x, mean);
  const double divisor = std::max(0.0, count - (correction ? correction->toDouble() : 1.0));
  const Tensor variance = at::sum(at::mul(distance, distance), dims, keepdim).div(divisor);
  Tensor centre = mean;
  if (!keepdim) centre = at::mean(x, dims, false);
  return {variance.to(self.scalar_type()), centre.to(self.scalar_type())};
}

Tensor var(const Tensor& self, at::OptionalIntArrayRef dim, const std::optional<Scalar>& correction, bool keepdim) {
  return moments(self, dim, correction, keepdim).variance;
}
Tensor std_dev(const Tensor& self, at::OptionalIntArrayRef dim, const std::optional<Scalar>& correction, bool keepdim) {
  return moments(widened(self), dim, correction, keepdim).variance.sqrt().to(self.scalar_type());
}
std::tuple<Tensor, Tensor> var_mean(const Tensor& self, at::OptionalIntArrayRef dim,
                                    const std::optional<Scalar>& correction, bool keepdim) {
  Moments m = moments(self, dim, correction, keepdim);
  return {m.variance, m.mean};
}
std::tuple<Tensor, Tensor> std_mean(const Tensor& self, at::OptionalIntArrayRef dim,
                                    const std::optional<Scalar>& correction, bool keepdim) {
  Moments m = moments(widened(self), dim, correction, keepdim);
  return {m.variance.sqrt().to(self.scalar_type()), m.mean.to(self.scalar_type())};
}

void check_extremum(const Tensor& self, int64_t dim, const char* name) {
  const int64_t d = c10::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(self.dim() == 0 || self.size(d) != 0, name, "(): Expected reduction dim ", d,
                    " to have non-zero size.");
}
// argmax and argmin do not take bool.
Tensor ordered(const Tensor& t) { return t.scalar_type() == ScalarType::Bool ? t.to(ScalarType::Byte) : t; }

std::tuple<Tensor, Tensor> max_dim(const Tensor& self, int64_t dim, bool keepdim) {
  check_extremum(self, dim, "max");
  return {at::amax(self, {dim}, keepdim), at::argmax(ordered(self), dim, keepdim)};
}
std::tuple<Tensor, Tensor> min_dim(const Tensor& self, int64_t dim, bool keepdim) {
  check_extremum(self, dim, "min");
  return {at::amin(self, {dim}, keepdim), at::argmin(ordered(self), dim, keepdim)};
}

// Dropout: the mask and the products are one kernel, with what is done before and after.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || input.numel() == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(ScalarType::Bool))};
  }
  const double keep = 1.0 - p;
  const Tensor mask = dropout_mask(input, keep);
  return {at::mul(at::mul(input, mask), keep == 0.0 ? 0.0 : 1.0 / keep), mask};
}
Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  return at::mul(at::mul(grad, mask), scale);
}

// The shift operators, which torch does not route to the shift functions.
Tensor shift_left(const Tensor& self, const Scalar& other) { return at::bitwise_left_shift(self, other); }
Tensor shift_left_tensor(const Tensor& self, const Tensor& other) { return at::bitwise_left_shift(self, other); }
Tensor shift_right(const Tensor& self, const Scalar& other) { return at::bitwise_right_shift(self, other); }
Tensor shift_right_tensor(const Tensor& self, const Tensor& other) { return at::bitwise_right_shift(self, other); }
Tensor& shift_left_(Tensor& self, const Scalar& other) { return self.bitwise_left_shift_(other); }
Tensor& shift_left_tensor_(Tensor& self, const Tensor& other) { return self.bitwise_left_shift_(other); }
Tensor& shift_right_(Tensor& self, const Scalar& other) { return self.bitwise_right_shift_(other); }
Tensor& shift_right_tensor_(Tensor& self, const Tensor& other) { return self.bitwise_right_shift_(other); }

Scalar order(const std::optional<Scalar>& p) { return p ? *p : Scalar(2.0); }
Tensor norm(const Tensor& self, const Scalar& p) { return at::linalg_vector_norm(self, p); }
Tensor norm_dtype(const Tensor& self, const std::optional<Scalar>& p, ScalarType dtype) {
  return at::linalg_vector_norm(self, order(p), std::nullopt, false, dtype);
}
Tensor norm_dim(const Tensor& self, const std::optional<Scalar>& p, at::IntArrayRef dim, bool keepdim) {
  return at::linalg_vector_norm(self, order(p), dim, keepdim);
}
Tensor norm_dim_dtype(const Tensor& self, const std::optional<Scalar>& p, at::IntArrayRef dim, bool keepdim,
                      ScalarType dtype) {
  return at::linalg_vector_norm(self, order(p), dim, keepdim, dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("var.correction", &var);
  m.impl("std.correction", &std_dev);
  m.impl("var_mean.correction", &var_mean);
  m.impl("std_mean.correction", &std_mean);
  m.impl("max.dim", &max_dim);
  m.impl("min.dim", &min_dim);
  m.impl("__lshift__.Scalar", &shift_left);
  m.impl("__lshift__.Tensor", &shift_left_tensor);
  m.impl("__rshift__.Scalar", &shift_right);
  m.impl("__rshift__.Tensor", &shift_right_tensor);
  m.impl("__ilshift__.Scalar", &shift_left_);
  m.impl("__ilshift__.Tensor", &shift_left_tensor_);
  m.impl("__irshift__.Scalar", &shift_right_);
  m.impl("__irshift__.Tensor", &shift_right_tensor_);
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
  m.impl("norm.Scalar", &norm);
  m.impl("norm.ScalarOpt_dtype", &norm_dtype);
  m.impl("norm.ScalarOpt_dim", &norm_dim);
  m.impl("norm.ScalarOpt_dim_dtype", &norm_dim_dtype);
}

}  // namespace neuron
