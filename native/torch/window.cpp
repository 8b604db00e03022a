#include "window.h"

#include <atomic>

namespace neuron {

void Window::add_operand(c10::TensorImpl* t, c10::IntArrayRef strides, int64_t offset, bool contiguous) {
  const auto sizes = t->sizes();
  operands.push_back({offset, slot_of(t->unsafe_storage().unsafeGetStorageImpl()), static_cast<uint32_t>(dims.size()),
                      static_cast<uint8_t>(sizes.size()), c10::typeMetaToScalarType(t->dtype()), contiguous});
  const size_t at = dims.size(), rank = sizes.size();
  dims.resize(at + 2 * rank);
  for (size_t d = 0; d < rank; ++d) {
    dims[at + d] = sizes[d];
    dims[at + rank + d] = strides[d];
  }
}

void Window::renew() {
  static std::atomic<uint64_t> next_id{1};
  id = next_id++;
  nodes.clear();
  operands.clear();
  dims.clear();
  scalars.clear();
  attrs.clear();
  slots.clear();
  foreign_slots.clear();
  fresh_bytes = 0;
  calls = 0;
}

void Window::split(size_t cut, Window& tail) {
  for (size_t i = cut; i < nodes.size(); ++i) {
    Node& node = nodes[i];
    const uint32_t n_operands = node.n_in + node.n_out;
    const uint32_t first = static_cast<uint32_t>(tail.operands.size());
    for (uint32_t k = 0; k < n_operands; ++k) {
      Operand o = operands[node.operands + k];
      c10::StorageImpl* storage = slots[o.slot].get();
      const auto d = dims.begin() + o.dims;
      o.dims = static_cast<uint32_t>(tail.dims.size());
      tail.dims.insert(tail.dims.end(), d, d + 2 * o.ndim);
      o.slot = tail.slot_of(storage);
      tail.operands.push_back(o);
    }
    node.operands = first;
    const auto s = scalars.begin() + node.scalars;
    node.scalars = static_cast<uint32_t>(tail.scalars.size());
    tail.scalars.insert(tail.scalars.end(), s, s + node.n_scalars);
    const auto a = attrs.begin() + node.attrs;
    node.attrs = static_cast<uint32_t>(tail.attrs.size());
    tail.attrs.insert(tail.attrs.end(), a, a + node.n_attrs);
    tail.calls += node.context != kInsideCall;
    tail.fresh_bytes += node.fresh_bytes;
    tail.nodes.push_back(std::move(node));
  }
  nodes.resize(cut);
}

}  // namespace neuron
