// The frame of a plan's run: where its operands, temporaries and scalars are.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <vector>

#include "window.h"

namespace neuron {

// Operand numbers from here on are temporaries of the plan.
inline constexpr uint32_t kFirstTemporary = uint32_t{1} << 24;

// A value between two launches that no tensor of the program holds: contiguous, of the sizes of an operand where `keep`
// has a bit, of size one in its other dims.
struct Temporary {
  uint32_t like;
  uint32_t keep;
  c10::ScalarType dtype;
  bool
      scratch;  // lives within a strip, where a few rows of it are enough: has memory only once `materialise` is called
};

// Where a scalar of a kernel comes from: a scalar of the window, or the number of points of some dims of an operand.
struct ScalarSource {
  uint32_t number;  // of the scalar, or of the operand
  uint32_t dims;    // 0: a scalar
};

struct TensorView {
  char* data;
  const int64_t* sizes;
  const int64_t* strides;
};

class Frame {
 public:
  // Of a plan for the window's nodes from `first_node` on.
  Frame(Window& window, size_t first_node, const std::vector<Temporary>& temporaries);

  // A temporary gets its memory here, but for scratch.
  TensorView view(uint32_t operand) {
    if (operand >= kFirstTemporary) {
      Place& place = temporaries_[operand - kFirstTemporary];
      if (!place.view.data && !place.scratch) allocate(place);
      return place.view;
    }
    const Operand& o = operands_[operand];
    return {window_.memory(o.slot) + o.offset * static_cast<int64_t>(c10::elementSize(o.dtype)), window_.sizes(o),
            window_.strides(o)};
  }
  const int64_t* sizes(uint32_t operand) const {
    if (operand >= kFirstTemporary) return temporaries_[operand - kFirstTemporary].view.sizes;
    return window_.sizes(operands_[operand]);
  }
  // Says that the memory of an operand is not used any more.
  void release(uint32_t operand);
  // Gives a scratch temporary memory of its own; nothing for other operands.
  void materialise(uint32_t operand) {
    if (operand >= kFirstTemporary) temporaries_[operand - kFirstTemporary].scratch = false;
  }
  uint64_t scalar(const ScalarSource& source) const;
  int device() const { return device_; }

 private:
  // Where a temporary is.
  struct Place {
    TensorView view;
    c10::DataPtr memory;
    size_t bytes;
    bool scratch;
  };
  void place(const std::vector<Temporary>& temporaries);
  void allocate(Place& place);

  Window& window_;
  const Operand* operands_;
  const uint64_t* scalars_;
  int device_;
  std::vector<Place> temporaries_;
  std::vector<int64_t> dims_;
};

}  // namespace neuron
