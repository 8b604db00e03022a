// What is special to single rows of the op table.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace neuron {

struct OpVariant;
struct Inference;
struct RowCall;

// All functions may be null. Arguments are those of the functional overload, or of the op itself if it is in-place
// only.
struct RowHooks {
  // Checks at the call what torch checks in its kernel; throws torch's own error. `written`: what an in-place or out=
  // op writes, else undefined.
  void (*check)(const OpVariant& variant, const torch::jit::Stack& args, const at::Tensor& written) = nullptr;
  // Puts right what torch's meta function says otherwise than its CPU kernel.
  void (*correct)(Inference& inference, const torch::jit::Stack& args) = nullptr;
  // Of a row program: what its node holds, if not the arguments as they stand.
  RowCall (*arrange)(const torch::jit::Stack& args, const std::vector<at::Tensor>& results) = nullptr;
  // Dims that `arrange` adds.
  int more_dims = 0;
  // Records a host op as other ops that make the result; an undefined tensor, and nothing recorded, where it cannot.
  at::Tensor (*compose)(const Inference& inference, const torch::jit::Stack& args, int device) = nullptr;
  // Infers in place of torch's meta function where there is none, or it refuses what the CPU takes; false: ask it.
  bool (*infer)(Inference& inference, const torch::jit::Stack& args) = nullptr;
  // `check` and `infer` refuse all that the CPU does: it need not be asked.
  bool complete = false;
  // Runs a host op on the CPU in place of ATen's kernel: `stack` holds the arguments of `variant`, whose result takes
  // their place. False, and nothing done, where ATen's has to.
  bool (*run)(const OpVariant& variant, torch::jit::Stack& stack) = nullptr;
};

// The hooks of a row, by its ATen name; empty ones for most.
const RowHooks& row_hooks(const std::string& name);

}  // namespace neuron
