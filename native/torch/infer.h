// Shapes, strides and dtypes of an op's results: torch's own meta kernels, behind a cache.
#pragma once

#include <ATen/core/stack.h>

#include "op_table.h"

namespace neuron {

struct ResultMeta {
  bool defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
};

struct Inference {
  std::vector<uint64_t> key;
  std::vector<ResultMeta> results;
  c10::ScalarType compute = c10::ScalarType::Undefined;  // common dtype of the promoting arguments
  mutable bool proven = false;                           // host ops: has run on arguments of this kind (record_boxed)
};

// Infers the results of a functional overload. `stack` holds its arguments. Throws torch's own error for wrong shapes,
// dtypes or devices; null if torch has no meta kernel for the op.
std::shared_ptr<const Inference> infer(const OpVariant& variant, const torch::jit::Stack& stack);

// The result of a pointwise op over these tensors, of which some may be undefined: torch's broadcasting and choice of
// strides.
ResultMeta broadcast_meta(const std::vector<at::Tensor>& operands, c10::ScalarType dtype);

// A contiguous result.
ResultMeta contiguous_meta(std::vector<int64_t> sizes, c10::ScalarType dtype);

}  // namespace neuron
