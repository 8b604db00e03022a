// LSTM and GRU cells: what torch calls on any device but the CPU. Recorded as simpler ops.
//
// Formulas: Hochreiter & Schmidhuber 1997 (LSTM), Cho et al. 2014 (GRU), with torch's order of gates. The workspaces
// hold the gates after their activations, side by side: LSTM (i, f, g, o), GRU (r, z, n, hx, h_n).

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>

namespace neuron {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool given(const OptionalTensor& t) { return t && t->defined(); }
Tensor plus(const Tensor& t, const OptionalTensor& bias) { return given(bias) ? at::add(t, *bias) : t; }
Tensor sigmoid_slope(const Tensor& y) { return at::mul(y, at::rsub(y, 1)); }
Tensor tanh_slope(const Tensor& y) { return at::rsub(at::mul(y, y), 1); }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates = at::add(plus(input_gates, input_bias), plus(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  const Tensor cy = at::add(at::mul(f, cx), at::mul(i, g));
  return {at::mul(o, cy.tanh()), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor squashed = cy.tanh();
  const Tensor hy = given(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor cell = at::mul(at::mul(hy, o), tanh_slope(squashed));
  if (given(grad_cy)) cell = at::add(cell, *grad_cy);
  const Tensor grad_gates =
      at::cat({at::mul(at::mul(cell, g), sigmoid_slope(i)), at::mul(at::mul(cell, cx), sigmoid_slope(f)),
               at::mul(at::mul(cell, i), tanh_slope(g)), at::mul(at::mul(hy, squashed), sigmoid_slope(o))},
              1);
  return {grad_gates, at::mul(cell, f), has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto in = plus(input_gates, input_bias).chunk(3, 1);
  const auto hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = at::add(in[0], hidden[0]).sigmoid(), z = at::add(in[1], hidden[1]).sigmoid();
  const Tensor n = at::add(in[2], at::mul(r, hidden[2])).tanh();
  return {at::add(n, at::mul(z, at::sub(hx, n))), at::cat({r, z, n, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &r = saved[0], &z = saved[1], &n = saved[2], &hx = saved[3], &hn = saved[4];
  const Tensor dz = at::mul(at::mul(grad_hy, at::sub(hx, n)), sigmoid_slope(z));
  const Tensor dn = at::mul(at::mul(grad_hy, at::rsub(z, 1)), tanh_slope(n));
  const Tensor dr = at::mul(at::mul(dn, hn), sigmoid_slope(r));
  const Tensor grad_input = at::cat({dr, dz, dn}, 1), grad_hidden = at::cat({dr, dz, at::mul(dn, r)}, 1);
  return {grad_input, grad_hidden, at::mul(grad_hy, z), has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace neuron
