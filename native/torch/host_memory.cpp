#include "host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/flat_hash_map.h>

#include <mutex>

#include "allocator.h"
#include "fork.h"

namespace neuron {
namespace {

thread_local int t_device = -1;

// Blocks by their address: torch wants the address itself as the context of host memory (Allocator::raw_allocate).
ForkMutex g_mutex;
auto& g_blocks = *new ska::flat_hash_map<void*, c10::DataPtr>;

c10::DataPtr taken(void* address) {
  std::lock_guard<ForkMutex> lock(g_mutex);
  const auto it = g_blocks.find(address);
  if (it == g_blocks.end()) return {};
  c10::DataPtr memory = std::move(it->second);
  g_blocks.erase(it);
  return memory;
}

void free_taken(void* address) { taken(address).clear(); }

class HostMemory final : public c10::Allocator {
 public:
  explicit HostMemory(c10::Allocator* usual) : usual_(usual) { g_usual_deleter = usual->raw_deleter(); }

  c10::DataPtr allocate(size_t n) override {
    if (t_device < 0 || n == 0) return usual_->allocate(n);
    c10::DataPtr memory = neuron::allocate(n, t_device);
    void* const address = memory.get();
    std::lock_guard<ForkMutex> lock(g_mutex);
    g_blocks.emplace(address, std::move(memory));
    return {address, address, &free_taken, c10::Device(c10::kCPU)};
  }
  // Of memory that either allocator gave.
  c10::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return usual_->is_simple_data_ptr(data); }
  void copy_data(void* to, const void* from, size_t n) const override { usual_->copy_data(to, from, n); }

 private:
  static void free_raw(void* address) {
    if (const c10::DataPtr memory = taken(address); !memory) g_usual_deleter(address);
  }
  static inline c10::DeleterFnPtr g_usual_deleter = nullptr;
  c10::Allocator* usual_;
};

}  // namespace

HostMemoryGuard::HostMemoryGuard(int device) : before_(t_device) { t_device = device; }
HostMemoryGuard::~HostMemoryGuard() { t_device = before_; }

c10::DataPtr take_over(const c10::Storage& cpu_storage, int device) {
  c10::StorageImpl* storage = cpu_storage.unsafeGetStorageImpl();
  if (cpu_storage.use_count() != 1 || storage->data_ptr().get_deleter() != &free_taken) {
    return adopt(cpu_storage, device);
  }
  c10::DataPtr memory = taken(storage->data_ptr().get_context());
  storage->set_data_ptr(c10::DataPtr()).release_context();
  return memory;
}

void install_host_memory() {
  // Never destroyed: tensors remember it.
  static auto* memory = new HostMemory(c10::GetAllocator(c10::kCPU));
  c10::SetCPUAllocator(memory, 1);
}

}  // namespace neuron
