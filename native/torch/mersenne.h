// The numbers of torch's CPU generator, a block at a time.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>

namespace neuron {

// Draws from a CPU generator: the same numbers as its own calls one by one, and the state they would leave. Source of
// the algorithm: Matsumoto and Nishimura, "Mersenne Twister", 1998 (MT19937).
class BlockDraws {
 public:
  // The generator's mutex must be held as long as this lives.
  explicit BlockDraws(at::CPUGeneratorImpl& generator);
  ~BlockDraws();
  BlockDraws(const BlockDraws&) = delete;

  // The next n 32-bit numbers.
  void next(uint32_t* out, int64_t n);

 private:
  void renew();

  at::CPUGeneratorImpl& generator_;
  at::mt19937 engine_;
  at::mt19937_data_pod data_;
  int64_t left_;  // numbers of the state not drawn yet
};

// Fills dense host memory in its order with 1 with chance p, else 0, as at::bernoulli_ does: a double of 53 random bits
// below p. Takes elements of one byte and float32; false for others, and nothing drawn.
bool fill_bernoulli(const at::Tensor& self, double p, at::CPUGeneratorImpl& generator);

}  // namespace neuron
