// The state of the software NeuronCore in this process, and the frame every API function runs in.
#ifndef ADAPTIVE_EAGER_NRT_CORE_H
#define ADAPTIVE_EAGER_NRT_CORE_H

#include <mutex>
#include <new>

#include "handles.h"
#include "nrt.h"

namespace neuroncore {

struct Tensor;
struct TensorSet;
class Loader;
class Model;
struct FreeDeleter {
  void operator()(void* memory) const;
};

constexpr uint32_t kMaxCores = 64;

// One lock for all of it, held for look-ups only: never while memory is moved, a kernel runs, code is loaded or an
// object is destroyed. That keeps it nearly always free, and lets fork() hand the child a consistent state.
struct Core {
  std::mutex mutex;
  NRT_STATUS phase = NRT_UNINITIALIZED;  // NRT_SUCCESS while open, else what calls return
  uint32_t vnc_count = 1;
  uint64_t bytes_limit = 0;  // 0: physical memory
  std::shared_ptr<const Loader> loader;
  HandleTable<Tensor, 1> tensors;
  HandleTable<TensorSet, 2> tensor_sets;
  HandleTable<Model, 3> models;
  std::unordered_map<const void*, std::unique_ptr<void, FreeDeleter>> tensor_infos;
};

// Never destroyed: tensors of other libraries may be freed after our static destructors would have run.
Core& core();
uint64_t bytes_limit_of(const Core& core);

// Runs the body of an API function: no exception crosses the C interface.
template <class Body>
NRT_STATUS guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return NRT_RESOURCE;
  } catch (...) {
    return NRT_FAILURE;
  }
}

inline NRT_STATUS phase() {
  const std::lock_guard lock(core().mutex);
  return core().phase;
}

// The same for functions that need an open runtime.
template <class Body>
NRT_STATUS when_open(Body&& body) noexcept {
  return guarded([&] {
    const NRT_STATUS status = phase();
    return status == NRT_SUCCESS ? body() : status;
  });
}

// Publishes an object. The phase is looked at under the same lock, so nothing slips past a concurrent nrt_close.
template <class Table, class Object, class Handle>
NRT_STATUS publish(Table Core::* table, std::shared_ptr<Object> object, Handle** handle) {
  const std::lock_guard lock(core().mutex);
  if (core().phase != NRT_SUCCESS) return core().phase;
  *handle = static_cast<Handle*>((core().*table).insert(object));
  return NRT_SUCCESS;
}

template <class Table>
auto find(Table Core::* table, const void* handle) {
  const std::lock_guard lock(core().mutex);
  return (core().*table).find(handle);
}

template <class Table>
auto take(Table Core::* table, const void* handle) {
  const std::lock_guard lock(core().mutex);
  return (core().*table).take(handle);
}

}  // namespace neuroncore
#endif
