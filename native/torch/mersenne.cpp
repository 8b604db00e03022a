// The loops below are worth vectorising, which -O2 does not.
#pragma GCC optimize("O3")

#include "mersenne.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace neuron {
namespace {

constexpr int kSize = at::MERSENNE_STATE_N, kMiddle = at::MERSENNE_STATE_M;

uint32_t twisted(uint32_t high, uint32_t low, uint32_t middle) {
  const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
  return middle ^ (mixed >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}

uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

template <typename T>
void fill(T* to, int64_t n, double p, BlockDraws& draws) {
  // k / 2^53 < p where k has 53 random bits: 21 of the first number, 32 of the second.
  const auto limit = static_cast<uint64_t>(std::ceil(std::ldexp(p, 53)));
  const auto limit_high = static_cast<uint32_t>(limit >> 32), limit_low = static_cast<uint32_t>(limit);
  constexpr int64_t kPiece = 512;
  uint32_t numbers[2 * kPiece];
  for (int64_t done = 0; done < n; done += kPiece) {
    const int64_t piece = std::min(kPiece, n - done);
    draws.next(numbers, 2 * piece);
    for (int64_t i = 0; i < piece; ++i) {
      const uint32_t high = numbers[2 * i] & 0x1fffffu, low = numbers[2 * i + 1];
      to[done + i] = static_cast<T>((high < limit_high) | ((high == limit_high) & (low < limit_low)));
    }
  }
}

}  // namespace

BlockDraws::BlockDraws(at::CPUGeneratorImpl& generator)
    : generator_(generator), engine_(generator.engine()), data_(engine_.data()), left_(data_.left_ - 1) {}

BlockDraws::~BlockDraws() {
  data_.left_ = static_cast<int>(left_ + 1);
  engine_.set_data(data_);
  generator_.set_engine(engine_);
}

void BlockDraws::next(uint32_t* out, int64_t n) {
  while (n > 0) {
    if (left_ == 0) renew();
    const int64_t piece = std::min(n, left_);
    const uint32_t* from = data_.state_.data() + data_.next_;
    for (int64_t i = 0; i < piece; ++i) out[i] = tempered(from[i]);
    data_.next_ += static_cast<uint32_t>(piece);
    left_ -= piece;
    out += piece;
    n -= piece;
  }
}

// The next state. Each loop reads only what it has not written, or wrote far enough before: the compiler vectorises it.
void BlockDraws::renew() {
  uint32_t* s = data_.state_.data();
  for (int i = 0; i < kSize - kMiddle; ++i) s[i] = twisted(s[i], s[i + 1], s[i + kMiddle]);
  for (int i = kSize - kMiddle; i < kSize - 1; ++i) s[i] = twisted(s[i], s[i + 1], s[i + kMiddle - kSize]);
  s[kSize - 1] = twisted(s[kSize - 1], s[0], s[kMiddle - 1]);
  data_.next_ = 0;
  left_ = kSize;
}

bool fill_bernoulli(const at::Tensor& self, double p, at::CPUGeneratorImpl& generator) {
  const c10::ScalarType dtype = self.scalar_type();
  const bool byte = dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte;
  if ((!byte && dtype != c10::ScalarType::Float) || !(p >= 0 && p <= 1) || !self.is_non_overlapping_and_dense()) {
    return false;
  }
  std::lock_guard<std::mutex> lock(generator.mutex_);
  BlockDraws draws(generator);
  if (byte)
    fill(static_cast<uint8_t*>(self.data_ptr()), self.numel(), p, draws);
  else
    fill(self.mutable_data_ptr<float>(), self.numel(), p, draws);
  return true;
}

}  // namespace neuron
