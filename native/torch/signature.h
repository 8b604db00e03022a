// The signature of a window: its trace as a canonical stream of words, and the hash of that stream.
//
// The stream says everything a plan may depend on: op names, wiring, layout classes, equal shapes, structural
// arguments, kinds of scalars, liveness. It never says sizes, scalar values, addresses or source lines.
#pragma once

#include <cstdint>
#include <vector>

#include "hash.h"
#include "window.h"

namespace neuron {

// One way a storage is looked at inside a trace.
struct Geometry {
  uint32_t slot;   // trace slot
  uint32_t shape;  // trace shape: equal numbers mean equal sizes
  uint8_t ndim;
  c10::ScalarType dtype;
  bool contiguous;
  // A byte a dimension: rank of its stride, largest first (bits 0-3; only dims of size > 1 that move); size 1 (bit 4);
  // stride 0 (bit 5); stride 1 (bit 6); stride == size * stride of the next rank (bit 7). Contiguous: bit 4 only.
  uint8_t codes[kMaxRank];
};

inline constexpr uint8_t kSizeOne = 0x10, kStrideZero = 0x20, kStrideOne = 0x40, kChained = 0x80;

class Encoder {
 public:
  // Encodes nodes [begin, end) of the window. `live[slot]` for window slots, or null: everything is live.
  // The results stay valid until the next call.
  void encode(const Window& window, size_t begin, size_t end, const std::vector<uint8_t>* live);

  const std::vector<uint64_t>& words() const { return words_; }
  Hash128 hash() const { return hash_words(words_.data(), words_.size()); }

  // Details for the planner: geometry of each operand of the nodes in order, and the geometries and slots themselves.
  const std::vector<uint32_t>& operand_geometry() const { return operand_geometry_; }
  const std::vector<Geometry>& geometries() const { return geometries_; }
  const std::vector<uint32_t>& slots() const { return trace_slots_; }  // trace slot -> window slot

 private:
  uint32_t geometry(const Window& window, const Operand& operand);
  uint32_t shape(const Window& window, const Operand& operand);

  struct SlotState {
    uint64_t epoch = 0;
    uint32_t slot = 0;            // trace slot
    uint32_t first_geometry = 0;  // chain of this slot's geometries
  };
  struct GeometryState {
    const Operand* operand;
    uint32_t next;  // next geometry of the same slot, or kNone
  };
  static constexpr uint32_t kNone = ~0u;

  uint64_t epoch_ = 0;
  std::vector<uint64_t> words_;
  std::vector<SlotState> slot_states_;
  std::vector<GeometryState> geometry_states_;
  std::vector<Geometry> geometries_;
  std::vector<uint32_t> operand_geometry_;
  std::vector<uint32_t> trace_slots_;
  std::vector<const Operand*> shapes_;
};

}  // namespace neuron
