#include "collectives.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "host_call.h"

namespace neuron {
namespace {

// The work runs on after the call returns; the aliases keep the device memory alive, and the caller waits for the work
// before it reads.
void collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_now(op, stack, device_of(*stack, op.schema().arguments().size()), FlushCause::kCollective);
}

struct Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void register_collectives() {
  // c10d registers kernels for PrivateUse1 itself, which want a backend class of the device's own; ours replace them.
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  static torch::Library library(torch::Library::IMPL, "c10d", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("c10d::", 0) != 0) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&collective>());
  }
}

}  // namespace neuron
