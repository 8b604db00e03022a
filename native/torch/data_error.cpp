#include "data_error.h"

namespace neuron {
namespace {

// The limits that a value is held within when it is reported.
constexpr int64_t kHighest = (int64_t{1} << 43) - 1, kLowest = -(int64_t{1} << 43);

std::string text_of(int64_t value) {
  if (value == kHighest) return std::to_string(value) + " or more";
  return value == kLowest ? std::to_string(value) + " or less" : std::to_string(value);
}

// Scalars and attributes of a gather: see indexing.cpp.
std::string out_of_range(const Window& window, const Node& node, uint32_t index, int64_t value) {
  return "index " + text_of(value) + " is out of bounds for dimension " +
         std::to_string(window.attrs[node.attrs + 1 + index].value) + " with size " +
         std::to_string(static_cast<int64_t>(window.scalars[node.scalars + 2 * index + 1]));
}

}  // namespace

DataError data_error(const Window& window, const Node& node, uint32_t index, int64_t value) {
  const std::string& op = node.row->name;
  if (op == "bernoulli") return {"Expected p_in >= 0 && p_in <= 1 to be true, but got false.", ErrorKind::kOther};
  if (op == "binary_cross_entropy") return {"all elements of input should be between 0 and 1", ErrorKind::kOther};
  if (op == "one_hot") {
    return {std::string(value < 0 ? "Class values must be non-negative."
                                  : "Class values must be smaller than num_classes.") +
                " Got " + text_of(value) + ", with " + std::to_string(window.scalars[node.scalars]) + " classes",
            ErrorKind::kOther};
  }
  // In the words of the CPU, which has several.
  if (op == "gather") return {out_of_range(window, node, index, value), ErrorKind::kOther};
  if (op == "index") return {out_of_range(window, node, index, value), ErrorKind::kIndex};
  if (op == "embedding" || op == "index_select")
    return {"index out of range in self: " + out_of_range(window, node, index, value), ErrorKind::kIndex};
  if (op == "nll_loss") return {"Target " + text_of(value) + " is out of bounds.", ErrorKind::kIndex};
  if (op == "take") {
    return {"out of range: tried to access index " + text_of(value) + " on a tensor of " +
                std::to_string(window.scalars[node.scalars + 1]) + " elements.",
            ErrorKind::kIndex};
  }
  return {"ZeroDivisionError: integer division or modulo by zero", ErrorKind::kOther};
}

}  // namespace neuron
