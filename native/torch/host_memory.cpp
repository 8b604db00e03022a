#include "host_memory.h"

#include <c10/core/CPUAllocator.h>

#include "allocator.h"

namespace neuron {
namespace {

thread_local int t_device = -1;

class HostMemory final : public c10::Allocator {
 public:
  explicit HostMemory(c10::Allocator* usual) : usual_(usual) {}

  c10::DataPtr allocate(size_t n) override {
    if (t_device < 0) return usual_->allocate(n);
    c10::DataPtr memory = neuron::allocate(n, t_device);
    memory.unsafe_set_device(c10::Device(c10::kCPU));
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return usual_->is_simple_data_ptr(data); }
  void copy_data(void* to, const void* from, size_t n) const override { usual_->copy_data(to, from, n); }

 private:
  c10::Allocator* usual_;
};

}  // namespace

HostMemoryGuard::HostMemoryGuard(int device) : before_(t_device) { t_device = device; }
HostMemoryGuard::~HostMemoryGuard() { t_device = before_; }

void install_host_memory() {
  // Never destroyed: tensors remember it.
  static auto* memory = new HostMemory(c10::GetAllocator(c10::kCPU));
  c10::SetCPUAllocator(memory, 1);
}

}  // namespace neuron
