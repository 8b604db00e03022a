// Random generators of the neuron device.
#pragma once

#include <ATen/core/Generator.h>

namespace neuron {

// The device's own generator; made on first use, seeded like torch's CPU generator.
const at::Generator& default_generator(int device);
at::Generator make_generator(int device);

// The host generator that draws the numbers of a neuron generator: random fills are host ops, and a host kernel takes a
// CPU generator. `generator` may be absent: the default one. Throws torch's error for a generator of another device.
at::Generator host_generator(const std::optional<at::Generator>& generator, int device);

}  // namespace neuron
