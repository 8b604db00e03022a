// Random numbers made by compiled kernels.
#pragma once

#include <ATen/core/Tensor.h>

namespace neuron {

// A bool tensor laid out like `input`, true with chance `keep`. It is computed together with what else is done to
// `input`. Draws from the default generator.
at::Tensor dropout_mask(const at::Tensor& input, double keep);

}  // namespace neuron
