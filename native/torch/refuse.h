// Tensors that the device does not have: those that are more than sizes and strides over memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace neuron {

enum class Special : uint8_t { kSparse, kQuantized, kNested, kMkldnn };

// Throws one line: what there is not, and what to do instead. `op` is an ATen name.
[[noreturn]] void refuse(Special special, const std::string& op);

// Refuses a tensor that cannot be one of the device.
void check_plain(const at::Tensor& t, const std::string& op);

}  // namespace neuron
