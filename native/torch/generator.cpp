#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>

#include <mutex>
#include <vector>

#include "device.h"
#include "recorder.h"

namespace neuron {
namespace {

// Wraps a CPU generator. Pending random fills must draw before the state is read or replaced, so every access runs the
// window first.
struct NeuronGenerator final : c10::GeneratorImpl {
  explicit NeuronGenerator(int device, at::Generator host)
      : GeneratorImpl({kNeuron, static_cast<c10::DeviceIndex>(device)},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(host)) {}

  void set_current_seed(uint64_t seed) override {
    settle();
    host.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    settle();
    host.set_offset(offset);
  }
  uint64_t get_offset() const override {
    settle();
    return host.get_offset();
  }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override {
    settle();
    return host.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    settle();
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    settle();
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  NeuronGenerator* clone_impl() const override {
    settle();
    return new NeuronGenerator(device_.index(), host.clone());
  }

  void settle() const { recorder(device_.index()).flush(FlushCause::kGenerator); }

  at::Generator host;
};

}  // namespace

const at::Generator& default_generator(int device) {
  static auto& generators = *new std::vector<at::Generator>;
  static std::once_flag once;
  std::call_once(once, [] {
    for (int i = 0; i < device_count(); ++i) generators.push_back(make_generator(i));
  });
  TORCH_CHECK(device >= 0 && device < static_cast<int>(generators.size()), "invalid device ordinal: neuron:", device);
  return generators[device];
}

at::Generator make_generator(int device) {
  return at::make_generator<NeuronGenerator>(device, at::detail::createCPUGenerator(c10::default_rng_seed_val));
}

at::Generator host_generator(const std::optional<at::Generator>& generator, int device) {
  const at::Generator& g = generator && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(g.device().type() == kNeuron, "Expected a 'neuron' device type for generator but found '",
              g.device().type(), "'");
  return static_cast<NeuronGenerator*>(g.unsafeGetGeneratorImpl())->host;
}

}  // namespace neuron
