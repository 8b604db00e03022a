// Python numbers beside tensors: which ones an op takes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "op_table.h"

namespace neuron {

// Refuses, in torch's words, a number that `dtype` cannot hold.
void check_number(c10::ScalarType dtype, const c10::Scalar& number);

// The same for a Scalar argument of an op that computes in `compute`; a row without the flags takes any number.
void check_number(const OpRow& row, c10::ScalarType compute, const c10::Scalar& number);

// Whether check_number, and the op's meta function, let a number pass: what the fast path asks.
bool takes_number(const OpRow& row, c10::ScalarType compute, const c10::Scalar& number);

}  // namespace neuron
