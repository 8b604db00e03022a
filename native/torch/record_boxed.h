// The general recorder: takes any row's op by its schema.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include "op_table.h"

namespace neuron {

// Records the op, or runs it on the host where it cannot be recorded; replaces the arguments on the stack by the
// results.
void record_boxed(const OpVariant& variant, torch::jit::Stack* stack);

// Whether kernels are compiled for tensors of this dtype.
bool compiled_dtype(c10::ScalarType t);

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const OpVariant& variant) : variant_(variant) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    record_boxed(variant_, stack);
  }

 private:
  const OpVariant& variant_;
};

// The same at autograd's key (autograd_key.h), for functional ops.
class BoxedAutogradKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedAutogradKernel(const OpVariant& variant) : variant_(variant) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  const OpVariant& variant_;
};

}  // namespace neuron
