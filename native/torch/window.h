// The window: ops recorded and not yet run. Plain arrays that keep their memory from window to window.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <string>
#include <vector>

#include "allocator.h"
#include "op_table.h"

namespace neuron {

struct Origin;

inline constexpr int kMaxRank = 8;  // tensors of higher rank run on the host
inline constexpr int kMaxArgs = 16;

// A tensor as an op saw it: a storage (by slot) and a geometry over it.
struct Operand {
  int64_t offset;  // elements
  uint32_t slot;
  uint32_t dims;  // index into Window::dims of `ndim` sizes, then `ndim` strides
  uint8_t ndim;
  c10::ScalarType dtype;
  bool contiguous;
};

enum class ArgKind : uint8_t { kEnd = 0, kOperand = 1, kFloat = 2, kInt = 3, kAbsent = 4 };

// A structural argument: part of the signature. Strings are interned for the life of the process.
struct Attr {
  int64_t value;
  const std::string* text;  // null for numbers
};

// The arguments of a host op. Tensors are replaced by operand numbers, so that the stack keeps no storage alive.
struct HostCall {
  struct TensorRef {
    uint32_t arg;
    int32_t element;   // position in a tensor list, or -1
    uint32_t operand;  // relative to the node's first operand
  };
  const OpVariant* variant;
  torch::jit::Stack stack;
  std::vector<TensorRef> tensors;
};

inline constexpr uint64_t kInsideCall = ~uint64_t{0};

struct Node {
  const OpRow* row;
  const Origin* origin;
  std::unique_ptr<HostCall> host;
  uint64_t args;     // ArgKind of each argument in schema order, four bits each
  uint64_t context;  // hash over the last calls, for the cut; kInsideCall if more ops of its call follow
  uint32_t operands, scalars, attrs;
  uint8_t n_in, n_out, n_scalars, n_attrs;
  uint16_t part;  // Part::apart of its output
  c10::ScalarType compute, result;
};

// One of several writes that fill a tensor together.
struct Part {
  int apart = 0;            // writes to the same storage, recorded just before it, that it does not overlap
  bool first_ever = false;  // of a new tensor: there is nothing in its memory yet, and all of it will be written
};

struct Window {
  uint64_t id = 0;
  std::vector<Node> nodes;
  std::vector<Operand> operands;
  std::vector<int64_t> dims;
  std::vector<uint64_t> scalars;
  std::vector<Attr> attrs;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> slots;
  ska::flat_hash_map<c10::StorageImpl*, uint32_t> foreign_slots;  // storages not made by our allocator
  std::vector<uint8_t> made;  // per slot: a node of the window made it, so that nothing is in its memory yet
  int64_t new_bytes = 0;      // of storages that came in since `shed` was called
  int64_t held_bytes = 0;     // that nobody else holds any more, as `shed` found them
  int64_t shed_bytes = 0;     // that `shed` took: running needs no more than these again
  int64_t calls = 0;          // that ended in here: an op each, or one with many tensors (Call)

  Window() { renew(); }
  bool empty() const { return nodes.empty(); }

  const int64_t* sizes(const Operand& o) const { return dims.data() + o.dims; }
  const int64_t* strides(const Operand& o) const { return dims.data() + o.dims + o.ndim; }

  // The slot of a storage; the window holds one reference for each.
  uint32_t slot_of(c10::StorageImpl* storage) {
    Block* block = block_of(storage);
    if (block) {
      if (block->window == id) return block->slot;
      block->window = id;
      block->slot = static_cast<uint32_t>(slots.size());
    } else if (auto it = foreign_slots.find(storage); it != foreign_slots.end()) {
      return it->second;
    } else {
      foreign_slots.emplace(storage, static_cast<uint32_t>(slots.size()));
    }
    slots.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    made.push_back(0);
    new_bytes += static_cast<int64_t>(storage->nbytes());
    return static_cast<uint32_t>(slots.size() - 1);
  }

  bool holds(const c10::StorageImpl* storage) const {
    if (const Block* block = block_of(storage)) return block->window == id;
    return foreign_slots.count(const_cast<c10::StorageImpl*>(storage)) != 0;
  }

  void add_operand(c10::TensorImpl* t) { add_operand(t, t->strides(), t->storage_offset(), t->is_contiguous()); }
  void add_operand(c10::TensorImpl* t, c10::IntArrayRef strides, int64_t offset, bool contiguous);

  // Takes the memory of storages that nodes made and that nobody else holds any more: should one be needed when the
  // window runs, it gets memory then (`memory`), for as long as it is used. What else nobody holds is memory that only
  // the window keeps from being used again.
  void shed();

  // First byte of a slot's storage, which gets memory if it has none.
  char* memory(uint32_t slot);

  // Takes a slot's memory if nobody else holds its storage: it is not used any more.
  void release(uint32_t slot);

  // Forgets everything but the arrays' memory and takes a new id, so that old slot numbers in blocks become void.
  void renew();

  // Moves the nodes from `cut` on into `tail`, which must be empty.
  void split(size_t cut, Window& tail);
};

}  // namespace neuron
