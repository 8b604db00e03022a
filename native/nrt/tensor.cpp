#include "tensor.h"

#include <cstring>
#include <vector>

#include "core.h"
#include "guard.h"

namespace neuroncore {
namespace {

std::string name_of(const char* name) { return name == nullptr ? std::string() : std::string(name); }

NRT_STATUS publish_tensor(Tensor&& tensor, nrt_tensor_t** handle) {
  return publish(&Core::tensors, std::make_shared<Tensor>(std::move(tensor)), handle);
}

bool transferable(const Tensor& tensor, uint64_t offset, const void* buffer, uint64_t size) {
  return tensor.holds(offset, size) && (buffer != nullptr || size == 0);
}

enum class Direction { kRead, kWrite };

void transfer(Direction direction, const Tensor& tensor, uint64_t offset, void* buffer, uint64_t size) {
  if (size == 0) return;  // an empty tensor has no address
  char* const device = tensor.data() + offset;
  if (direction == Direction::kRead) {
    std::memmove(buffer, device, size);
  } else {
    std::memmove(device, buffer, size);
  }
}

NRT_STATUS transfer_one(Direction direction, const nrt_tensor_t* handle, uint64_t offset, void* buffer, uint64_t size) {
  return when_open([&] {
    const auto tensor = find(&Core::tensors, handle);
    if (tensor == nullptr) return NRT_INVALID_HANDLE;
    if (!transferable(*tensor, offset, buffer, size)) return NRT_INVALID;
    const GuardScope scope;
    transfer(direction, *tensor, offset, buffer, size);
    return NRT_SUCCESS;
  });
}

// All or nothing: every operation is checked before the first byte moves.
NRT_STATUS transfer_batch(Direction direction, const nrt_tensor_batch_t* batches, uint64_t count) {
  return when_open([&] {
    if (batches == nullptr && count != 0) return NRT_INVALID;
    std::vector<std::shared_ptr<Tensor>> tensors;
    for (uint64_t b = 0; b < count; ++b) {
      const nrt_tensor_batch_t& batch = batches[b];
      tensors.push_back(find(&Core::tensors, batch.tensor));
      if (tensors.back() == nullptr) return NRT_INVALID_HANDLE;
      if (batch.ops == nullptr && batch.num_ops != 0) return NRT_INVALID;
      for (uint32_t i = 0; i < batch.num_ops; ++i) {
        const nrt_tensor_batch_op_t& op = batch.ops[i];
        if (!transferable(*tensors.back(), op.offset, op.buffer, op.size)) return NRT_INVALID;
      }
    }
    const GuardScope scope;
    for (uint64_t b = 0; b < count; ++b) {
      for (uint32_t i = 0; i < batches[b].num_ops; ++i) {
        const nrt_tensor_batch_op_t& op = batches[b].ops[i];
        transfer(direction, *tensors[b], op.offset, op.buffer, op.size);
      }
    }
    return NRT_SUCCESS;
  });
}

}  // namespace
}  // namespace neuroncore

using namespace neuroncore;

extern "C" {

NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t tensor_placement, int vnc, size_t size, const char* name,
                               nrt_tensor_t** tensor) {
  return when_open([&] {
    if (tensor == nullptr || size == 0) return NRT_INVALID;
    if (tensor_placement == NRT_TENSOR_PLACEMENT_HOST) {
      vnc = Storage::kHost;
    } else {
      uint32_t cores = 0;
      nrt_get_visible_vnc_count(&cores);
      if (tensor_placement != NRT_TENSOR_PLACEMENT_DEVICE || vnc < 0 || uint32_t(vnc) >= cores) return NRT_INVALID;
    }
    NRT_STATUS status;
    auto storage = Storage::allocate(vnc, size, &status);
    if (storage == nullptr) return status;
    return publish_tensor({name_of(name), std::move(storage), 0, size}, tensor);
  });
}

NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor) {
  return when_open([&] {
    if (tensor == nullptr) return NRT_INVALID;
    return publish_tensor({name_of(name), nullptr, 0, 0}, tensor);
  });
}

NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* tensor_source, size_t offset, size_t size, const char* name,
                                     nrt_tensor_t** tensor_slice) {
  return when_open([&] {
    if (tensor_slice == nullptr) return NRT_INVALID;
    const auto source = find(&Core::tensors, tensor_source);
    if (source == nullptr) return NRT_INVALID_HANDLE;
    if (size == 0 || !source->holds(offset, size)) return NRT_INVALID;
    return publish_tensor({name_of(name), source->storage, source->offset + offset, size}, tensor_slice);
  });
}

NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t size) {
  return when_open([&] {
    const auto old = find(&Core::tensors, tensor);
    if (old == nullptr) return NRT_INVALID_HANDLE;
    if (buffer == nullptr || size == 0) return NRT_INVALID;
    auto attached = std::make_shared<Tensor>(Tensor{old->name, Storage::borrow(buffer, size), 0, size});
    const std::lock_guard lock(core().mutex);
    // `old` still holds what is swapped out: its storage is freed after the lock.
    return core().tensors.replace(tensor, attached) ? NRT_SUCCESS : NRT_INVALID_HANDLE;
  });
}

void nrt_tensor_free(nrt_tensor_t** tensor) {
  if (tensor == nullptr) return;
  take(&Core::tensors, *tensor);
  *tensor = nullptr;
}

NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buf, size_t offset, size_t size) {
  return transfer_one(Direction::kRead, tensor, offset, buf, size);
}

NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buf, size_t offset, size_t size) {
  return transfer_one(Direction::kWrite, tensor, offset, const_cast<void*>(buf), size);
}

NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* src, size_t src_offset, nrt_tensor_t* dst, size_t dst_offset,
                           size_t size) {
  return when_open([&] {
    const auto from = find(&Core::tensors, src);
    const auto to = find(&Core::tensors, dst);
    if (from == nullptr || to == nullptr) return NRT_INVALID_HANDLE;
    if (!from->holds(src_offset, size) || !to->holds(dst_offset, size)) return NRT_INVALID;
    const bool both_on_device = from->vnc() != Storage::kHost && to->vnc() != Storage::kHost;
    if (both_on_device && from->vnc() != to->vnc()) return NRT_INVALID;
    const GuardScope scope;
    if (size != 0) std::memmove(to->data() + dst_offset, from->data() + src_offset, size);
    return NRT_SUCCESS;
  });
}

NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t size) {
  return when_open([&] {
    const auto target = find(&Core::tensors, tensor);
    if (target == nullptr) return NRT_INVALID_HANDLE;
    if (!target->holds(offset, size)) return NRT_INVALID;
    const GuardScope scope;
    if (size != 0) std::memset(target->data() + offset, value, size);
    return NRT_SUCCESS;
  });
}

NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t num_batches, bool) {
  return transfer_batch(Direction::kRead, batches, num_batches);
}

NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t num_batches, bool) {
  return transfer_batch(Direction::kWrite, batches, num_batches);
}

size_t nrt_tensor_get_size(const nrt_tensor_t* tensor) {
  const auto found = find(&Core::tensors, tensor);
  return found == nullptr ? 0 : found->size;
}

void* nrt_tensor_get_va(const nrt_tensor_t* tensor) {
  const auto found = find(&Core::tensors, tensor);
  return found == nullptr ? nullptr : found->data();
}

}  // extern "C"
