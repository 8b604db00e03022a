// What a kernel's data error says to the user.
#pragma once

#include <cstdint>
#include <string>

#include "window.h"

namespace neuron {

// What Python raises for it: RuntimeError, IndexError, torch.OutOfMemoryError.
enum class ErrorKind : uint8_t { kOther, kIndex, kMemory };

struct DataError {
  std::string what;
  ErrorKind kind;
};

// The error of a node that met a wrong value (kernel_abi.h).
DataError data_error(const Window& window, const Node& node, int64_t value);

}  // namespace neuron
