// Ops recorded as several simpler ops: every mode runs the same ones, so they round alike everywhere.

#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/le.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <cmath>
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

// rrelu_with_noise: the noise is the slope at every point, drawn where the input is not positive.
Tensor& rrelu_noise_out(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                        std::optional<at::Generator> generator, Tensor& out) {
  TORCH_CHECK(self.sym_sizes() == noise.sym_sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sym_sizes(),
              " noise.shape = ", noise.sym_sizes());
  TORCH_CHECK(lower.toDouble() <= upper.toDouble(), "Lower bound should be less than or equal to the upper bound");
  TORCH_CHECK(std::isfinite(lower.toDouble()) && std::isfinite(upper.toDouble()),
              "Lower and upper bounds should be finite");
  if (!training) return at::leaky_relu_out(out, self, (lower.toDouble() + upper.toDouble()) / 2);
  const Tensor drawn = at::empty_like(self).uniform_(lower.toDouble(), upper.toDouble(), generator);
  noise.copy_(at::where(at::le(self, 0), drawn, 1));
  return at::mul_out(out, self, noise);
}
Tensor rrelu_noise(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                   std::optional<at::Generator> generator) {
  Tensor out = at::empty_like(self);
  return rrelu_noise_out(self, noise, lower, upper, training, std::move(generator), out);
}
Tensor& rrelu_noise_(Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                     std::optional<at::Generator> generator) {
  return rrelu_noise_out(self, noise, lower, upper, training, std::move(generator), self);
}

Tensor channel_shuffle(const Tensor& self, c10::SymInt groups) {
  const int64_t n = groups.expect_int();
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", self.sizes());
  TORCH_CHECK(n > 0, "Number of groups to divide channels in must be positive. Value of groups:", n);
  TORCH_CHECK(self.size(1) % n == 0, "Number of channels must be divisible by groups. Got ", self.size(1),
              " channels and ", n, " groups.");
  std::vector<int64_t> split = self.sizes().vec();
  split[1] /= n;
  split.insert(split.begin() + 1, n);
  Tensor out = at::empty_like(self, self.suggest_memory_format());
  // (groups, channels a group) in the input, (channels a group, groups) in the result.
  std::vector<int64_t> shuffled = split;
  std::swap(shuffled[1], shuffled[2]);
  out.view(shuffled).copy_(self.reshape(split).transpose(1, 2));
  return out;
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
  m.impl("rrelu_with_noise", &rrelu_noise);
  m.impl("rrelu_with_noise_", &rrelu_noise_);
  m.impl("rrelu_with_noise.out", &rrelu_noise_out);
  m.impl("channel_shuffle", &channel_shuffle);
  m.impl("norm.Scalar", &norm);
  m.impl("norm.ScalarOpt_dtype", &norm_dtype);
  m.impl("norm.ScalarOpt_dim", &norm_dim);
  m.impl("norm.ScalarOpt_dim_dtype", &norm_dim_dtype);
}

}  // namespace neuron
