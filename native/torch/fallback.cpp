#include "fallback.h"

#include <torch/library.h>

#include <mutex>
#include <set>

#include "fork.h"
#include "host_call.h"
#include "nested.h"
#include "origin.h"

namespace neuron {
namespace {

struct Fallbacks {
  ForkMutex mutex;
  std::map<std::string, int64_t> counts;
  std::set<std::string> warned;
  FallbackPolicy policy = FallbackPolicy::kWarn;
};

Fallbacks& fallbacks() {
  static Fallbacks f;
  return f;
}

bool on_device(const torch::jit::Stack& stack, size_t n) {
  for (size_t i = stack.size() - n; i < stack.size(); ++i) {
    bool found = stack[i].isDevice() && stack[i].toDevice().type() == kNeuron;
    for_each_tensor(stack[i], [&](const at::Tensor& t) { found |= t.defined() && t.device().type() == kNeuron; });
    if (found) return true;
  }
  return false;
}

void count(const std::string& name) {
  Fallbacks& f = fallbacks();
  std::unique_lock<ForkMutex> lock(f.mutex);
  ++f.counts[name];
  const bool first = f.warned.insert(name).second;
  const FallbackPolicy policy = f.policy;
  lock.unlock();
  if (policy == FallbackPolicy::kQuiet || (policy == FallbackPolicy::kWarn && !first)) return;
  const Origin* origin = current_origin();
  if (policy == FallbackPolicy::kError) {
    const std::string where = describe(origin);
    TORCH_CHECK(false, "[neuron] ", name, " cannot run on the device", where.empty() ? "" : "\n  called at ", where,
                "\n  ADAPTIVE_EAGER_FALLBACK=warn lets it run on the host");
  }
  warn_at(origin, "[neuron] " + name +
                      " cannot run on the device and runs on the host (said once an op; counted in "
                      "adaptive_eager.get_fallback_ops())");
}

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { run_fallback(op, stack); }

}  // namespace

void run_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t n = op.schema().arguments().size();
  for (size_t i = stack->size() - n; i < stack->size(); ++i) {
    TORCH_CHECK(!(*stack)[i].isGenerator() || on_device(*stack, n),
                "Expected a 'cpu' device type for generator but found 'neuron'");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(on_device(*stack, n), "[neuron] ", op.schema().operator_name(),
                              " has no device tensor to run on");
  const std::string name = c10::toString(op.schema().operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "Could not run '", name,
                              "' on a neuron tensor: neither the device nor the cpu has the op for dense tensors");
  count(name);
  run_now(op, stack, device_of(*stack, n), FlushCause::kFallback);
}

void set_fallback_policy(FallbackPolicy policy) {
  std::lock_guard<ForkMutex> lock(fallbacks().mutex);
  fallbacks().policy = policy;
}

std::map<std::string, int64_t> fallback_counts() {
  std::lock_guard<ForkMutex> lock(fallbacks().mutex);
  return fallbacks().counts;
}

void clear_fallback_counts() {
  std::lock_guard<ForkMutex> lock(fallbacks().mutex);
  fallbacks().counts.clear();
  fallbacks().warned.clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>()); }

}  // namespace neuron
