// Tensor: a named byte range of a storage.
#ifndef ADAPTIVE_EAGER_NRT_TENSOR_H
#define ADAPTIVE_EAGER_NRT_TENSOR_H

#include <memory>
#include <string>

#include "storage.h"

namespace neuroncore {

// Never changed once published, so that it can be used without a lock: attaching a buffer publishes a new one under the
// same handle.
struct Tensor {
  std::string name;
  std::shared_ptr<Storage> storage;  // null: empty
  size_t offset = 0;
  size_t size = 0;

  char* data() const { return storage == nullptr ? nullptr : storage->data() + offset; }
  int vnc() const { return storage == nullptr ? Storage::kHost : storage->vnc(); }
  // Whether [from, from + count) lies inside, without computing a sum that could overflow.
  bool holds(uint64_t from, uint64_t count) const { return from <= size && count <= size - from; }
};

}  // namespace neuroncore
#endif
