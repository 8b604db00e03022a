// Random generators of the neuron device.
#pragma once

#include <ATen/core/Generator.h>

namespace neuron {

// What one call of the program draws with: a stream of numbers of its own (adaptive/compiler/philox.py).
struct Draw {
  int64_t seed, offset;
};

// The device's own generator; made on first use, seeded like torch's CPU generator.
const at::Generator& default_generator(int device);
at::Generator make_generator(int device);

// Takes the next stream of a generator, at the call: the order of the program decides who draws what. `generator` may
// be absent: the default one. Throws torch's error for a generator of another device.
Draw draw(const std::optional<at::Generator>& generator, int device);

// The same for an op that runs on the host: a host generator of the call's own, seeded from its stream.
at::Generator host_generator(const std::optional<at::Generator>& generator, int device);

}  // namespace neuron
