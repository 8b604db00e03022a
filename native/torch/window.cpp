#include "window.h"

#include <atomic>

namespace neuron {

void Window::add_operand(c10::TensorImpl* t, c10::IntArrayRef strides, int64_t offset, bool contiguous) {
  const auto sizes = t->sizes();
  operands.push_back({offset, slot_of(t->unsafe_storage().unsafeGetStorageImpl()), static_cast<uint32_t>(dims.size()),
                      static_cast<uint8_t>(sizes.size()), c10::typeMetaToScalarType(t->dtype()), contiguous});
  const size_t at = dims.size();
  dims.resize(at + 2 * sizes.size());
  int64_t* d = dims.data() + at;
  for (const int64_t size : sizes) *d++ = size;
  for (const int64_t stride : strides) *d++ = stride;
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
  made.clear();
  foreign_slots.clear();
  new_bytes = held_bytes = shed_bytes = 0;
  calls = 0;
}

namespace {

void take_memory(c10::StorageImpl* storage) {
  const c10::Device device = storage->device();  // which a storage knows from its memory
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device));
}

}  // namespace

void Window::shed() {
  new_bytes = held_bytes = 0;
  for (size_t s = 0; s < slots.size(); ++s) {
    if (slots[s].use_count() > 1 || !slots[s]->data_ptr()) continue;
    const auto bytes = static_cast<int64_t>(slots[s]->nbytes());
    if (made[s]) {
      take_memory(slots[s].get());
      shed_bytes += bytes;
    } else {
      held_bytes += bytes;
    }
  }
}

char* Window::memory(uint32_t slot) {
  c10::StorageImpl* storage = slots[slot].get();
  if (!storage->data_ptr() && storage->nbytes() > 0) {
    storage->set_data_ptr_noswap(allocate(storage->nbytes(), storage->device().index()));
  }
  return static_cast<char*>(storage->_mutable_data_ptr_no_checks().mutable_get());
}

void Window::release(uint32_t slot) {
  if (slots[slot].use_count() == 1 && slots[slot]->data_ptr()) take_memory(slots[slot].get());
}

void Window::split(size_t cut, Window& tail) {
  std::vector<uint8_t> touched(slots.size());
  for (size_t i = 0; i < cut; ++i) {
    for (uint32_t k = 0; k < uint32_t{nodes[i].n_in} + nodes[i].n_out; ++k) {
      touched[operands[nodes[i].operands + k].slot] = 1;
    }
  }
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
      const uint32_t before = o.slot;
      o.slot = tail.slot_of(storage);
      tail.made[o.slot] = made[before] && !touched[before];
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
    tail.nodes.push_back(std::move(node));
  }
  for (size_t s = 0; s < tail.slots.size(); ++s) {
    if (tail.made[s] && !tail.slots[s]->data_ptr()) tail.shed_bytes += static_cast<int64_t>(tail.slots[s]->nbytes());
  }
  nodes.resize(cut);
}

}  // namespace neuron
