// Kinds of arguments, and whether an op has run on them: the first time it runs at its call, so that what its CPU
// kernel does not take is refused there, in torch's own words.
#pragma once

#include <ATen/core/stack.h>

#include "infer.h"
#include "op_table.h"

namespace neuron {

// Of a kind are arguments of the same dtypes, ranks, equal sizes (as a layout class: never the sizes themselves) and
// structural arguments. `inference` may be null; it remembers the answer for exactly these arguments.
class FirstUse {
 public:
  FirstUse(const OpVariant& variant, const torch::jit::Stack& args, const Inference* inference);

  // Whether the op has run on arguments of this kind.
  bool proven() const { return proven_; }
  // Notes that it has. Not if its results are other than `inference` said: such ops always run at their call.
  void ran(const torch::jit::Stack& results) const;
  // Notes that the CPU takes them.
  void taken() const;

 private:
  const Inference* inference_;
  uint64_t key_ = 0;
  bool proven_ = false;
};

// Whether the CPU has a compiled op in the dtypes of these arguments: tried on one element of each.
bool cpu_takes(const OpVariant& variant, const torch::jit::Stack& args);

}  // namespace neuron
