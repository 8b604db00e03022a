#include "signature.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace neuron {
namespace {

bool same_geometry(const Window& w, const Operand& a, const Operand& b) {
  return a.ndim == b.ndim && a.dtype == b.dtype && a.offset == b.offset &&
         std::memcmp(w.dims.data() + a.dims, w.dims.data() + b.dims, 2 * a.ndim * sizeof(int64_t)) == 0;
}

// Codes of a tensor that is not contiguous; see Geometry::codes.
void stride_codes(const int64_t* sizes, const int64_t* strides, int ndim, uint8_t* codes) {
  int order[kMaxRank], n = 0;
  for (int d = 0; d < ndim; ++d) {
    codes[d] = 0;
    if (sizes[d] == 1) {
      codes[d] = kSizeOne;
    } else if (strides[d] == 0) {
      codes[d] = kStrideZero;
    } else {
      if (strides[d] == 1) codes[d] |= kStrideOne;
      int at = n++;
      for (; at > 0 && std::abs(strides[order[at - 1]]) < std::abs(strides[d]); --at) order[at] = order[at - 1];
      order[at] = d;
    }
  }
  for (int r = 0; r < n; ++r) {
    codes[order[r]] |= static_cast<uint8_t>(r);
    if (r + 1 < n && strides[order[r]] == strides[order[r + 1]] * sizes[order[r + 1]]) codes[order[r]] |= kChained;
  }
}

}  // namespace

uint32_t Encoder::shape(const Window& window, const Operand& operand) {
  const int64_t* sizes = window.sizes(operand);
  for (size_t i = shapes_.size(); i-- > 0;) {
    const Operand& other = *shapes_[i];
    if (other.ndim == operand.ndim && std::memcmp(window.sizes(other), sizes, operand.ndim * sizeof(int64_t)) == 0) {
      return static_cast<uint32_t>(i);
    }
  }
  shapes_.push_back(&operand);
  return static_cast<uint32_t>(shapes_.size() - 1);
}

uint32_t Encoder::geometry(const Window& window, const Operand& operand) {
  SlotState& state = slot_states_[operand.slot];
  if (state.epoch != epoch_) {
    state = {epoch_, static_cast<uint32_t>(trace_slots_.size()), kNone};
    trace_slots_.push_back(operand.slot);
  }
  for (uint32_t g = state.first_geometry; g != kNone; g = geometry_states_[g].next) {
    if (same_geometry(window, *geometry_states_[g].operand, operand)) return g;
  }
  const uint32_t index = static_cast<uint32_t>(geometries_.size());
  geometry_states_.push_back({&operand, state.first_geometry});
  state.first_geometry = index;
  Geometry& g = geometries_.emplace_back();
  g.slot = state.slot;
  g.shape = shape(window, operand);
  g.ndim = operand.ndim;
  g.dtype = operand.dtype;
  g.contiguous = operand.contiguous;
  std::memset(g.codes, 0, sizeof g.codes);
  const int64_t* sizes = window.sizes(operand);
  if (operand.contiguous) {
    for (int d = 0; d < operand.ndim; ++d) g.codes[d] = sizes[d] == 1 ? kSizeOne : 0;
  } else {
    stride_codes(sizes, window.strides(operand), operand.ndim, g.codes);
  }
  uint64_t codes;
  static_assert(kMaxRank == sizeof codes);
  std::memcpy(&codes, g.codes, sizeof codes);
  words_.push_back(uint64_t{g.slot} << 32 | uint64_t{g.shape} << 16 | uint64_t{g.ndim} << 9 |
                   uint64_t{g.contiguous} << 8 | static_cast<uint8_t>(g.dtype));
  words_.push_back(codes);
  return index;
}

void Encoder::encode(const Window& window, size_t begin, size_t end, const std::vector<uint8_t>* live) {
  ++epoch_;
  words_.clear();
  geometry_states_.clear();
  geometries_.clear();
  operand_geometry_.clear();
  trace_slots_.clear();
  shapes_.clear();
  if (slot_states_.size() < window.slots.size()) slot_states_.resize(window.slots.size());
  for (size_t i = begin; i < end; ++i) {
    const Node& node = window.nodes[i];
    words_.push_back(node.row->id);
    words_.push_back(node.args);
    words_.push_back(uint64_t{node.part} << 40 | uint64_t{node.n_in} << 32 | uint64_t{node.n_out} << 24 |
                     uint64_t{node.n_attrs} << 16 | uint64_t{static_cast<uint8_t>(node.compute)} << 8 |
                     static_cast<uint8_t>(node.result));
    for (uint32_t k = 0; k < node.n_attrs; ++k) {
      words_.push_back(static_cast<uint64_t>(window.attrs[node.attrs + k].value));
    }
    const uint32_t n = node.n_in + node.n_out;
    for (uint32_t k = 0; k < n; ++k) {
      const uint32_t g = geometry(window, window.operands[node.operands + k]);
      operand_geometry_.push_back(g);
      words_.push_back(g);
    }
  }
  if (!live) {
    words_.push_back(~uint64_t{0});
    return;
  }
  uint64_t bits = 0;
  for (size_t s = 0; s < trace_slots_.size(); ++s) {
    bits = bits << 1 | (*live)[trace_slots_[s]];
    if (s % 32 == 31 || s + 1 == trace_slots_.size()) {
      words_.push_back(bits);
      bits = 0;
    }
  }
}

}  // namespace neuron
