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

// The error of a node, one of whose indices was wrong if it has some (kernel_abi.h).
DataError data_error(const Window& window, const Node& node, uint32_t index, int64_t value);

}  // namespace neuron
