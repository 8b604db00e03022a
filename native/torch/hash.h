// 128-bit hash of word streams; stable across processes and machines of one byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace neuron {

struct Hash128 {
  uint64_t lo = 0, hi = 0;
  bool operator==(const Hash128&) const = default;
};

struct Hash128Hasher {
  size_t operator()(const Hash128& h) const { return h.lo; }
};

inline uint64_t fold_multiply(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t scramble(uint64_t x) { return fold_multiply(x ^ 0x9E3779B97F4A7C15ull, 0xE7037ED1A0B428DBull); }

// Two independent multiply-fold lanes. Not cryptographic: a hit compares the whole stream (trace_cache.h).
inline Hash128 hash_words(const uint64_t* words, size_t n) {
  uint64_t a = 0x243F6A8885A308D3ull ^ n, b = 0x13198A2E03707344ull + n;
  for (size_t i = 0; i < n; ++i) {
    a = fold_multiply(a ^ words[i], 0xA0761D6478BD642Full);
    b = fold_multiply(b + words[i], 0x8EBC6AF09C88C6E3ull) + 0x589965CC75374CC3ull;
  }
  return {scramble(a), scramble(b)};
}

inline uint64_t hash_text(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001B3ull;
  return scramble(h);
}

}  // namespace neuron
