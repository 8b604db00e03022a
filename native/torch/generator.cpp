#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/core/GeneratorForPrivateuseone.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "device.h"
#include "hash.h"

namespace neuron {
namespace {

// A seed, and how many streams of it were taken. Its numbers are made by kernels, from both (Philox4x32-10).
struct NeuronGenerator final : c10::GeneratorImpl {
  explicit NeuronGenerator(int device)
      : GeneratorImpl({kNeuron, static_cast<c10::DeviceIndex>(device)},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { state = {seed, 0}; }
  uint64_t current_seed() const override { return state.seed; }
  void set_offset(uint64_t offset) override { state.offset = offset; }
  uint64_t get_offset() const override { return state.offset; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state.seed;
  }
  void set_state(const c10::TensorImpl& tensor) override {
    at::detail::check_rng_state(tensor);
    TORCH_CHECK(tensor.numel() == sizeof state, "RNG state is wrong size: got ", tensor.numel(), " bytes, need ",
                sizeof state);
    std::memcpy(&state, tensor.data(), sizeof state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor tensor = at::detail::empty_cpu({sizeof state}, c10::ScalarType::Byte, c10::Layout::Strided, c10::kCPU,
                                              std::nullopt, std::nullopt);
    std::memcpy(tensor.data_ptr(), &state, sizeof state);
    return tensor.getIntrusivePtr();
  }
  NeuronGenerator* clone_impl() const override {
    auto* twin = new NeuronGenerator(device_.index());
    twin->state = state;
    return twin;
  }

  struct State {
    uint64_t seed = c10::default_rng_seed_val, offset = 0;
  } state;
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

at::Generator make_generator(int device) { return at::make_generator<NeuronGenerator>(device); }

Draw draw(const std::optional<at::Generator>& generator, int device) {
  const at::Generator& g = generator && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(g.device().type() == kNeuron, "Expected a 'neuron' device type for generator but found '",
              g.device().type(), "'");
  auto* ours = static_cast<NeuronGenerator*>(g.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(ours->mutex_);
  return {static_cast<int64_t>(ours->state.seed), static_cast<int64_t>(ours->state.offset++)};
}

at::Generator host_generator(const std::optional<at::Generator>& generator, int device) {
  const Draw d = draw(generator, device);
  return at::detail::createCPUGenerator(scramble(static_cast<uint64_t>(d.offset) + scramble(d.seed)) >> 32);
}

}  // namespace neuron
