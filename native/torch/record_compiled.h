// Recording of ops that are compiled: maps, reductions, row programs.
#pragma once

#include "infer.h"
#include "op_table.h"

namespace neuron {

// Refuses, in torch's words, to store results of one dtype in a tensor of another.
void check_cast(c10::ScalarType from, c10::ScalarType to);

// The tensor an in-place or out= op writes: checked, resized, and safe against its inputs.
void prepare_written(const OpVariant& variant, const at::Tensor& out, const ResultMeta& result,
                     const torch::jit::Stack& inputs);

at::Tensor fresh_result(const ResultMeta& meta, int device);

// What a row program's node holds, where that is not simply the op's arguments. Tensors may be undefined.
struct RowCall {
  std::vector<at::Tensor> inputs;
  std::vector<double> scalars;
  std::vector<int64_t> attrs;
  std::vector<at::Tensor> results;  // new tensors, or views of them
  std::vector<at::Tensor> written;  // tensors among the inputs that the op writes
};

// Records one op and returns its results. `args` are those of the functional overload; `written` is what an in-place or
// out= op writes, else undefined.
std::vector<at::Tensor> record_compiled(const OpVariant& variant, torch::jit::Stack& args, const at::Tensor& written,
                                        const Inference& inference, int device);

}  // namespace neuron
