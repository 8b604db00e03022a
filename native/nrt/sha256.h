// SHA-256 (FIPS 180-4), for the checksum of artefacts.
#ifndef ADAPTIVE_EAGER_NRT_SHA256_H
#define ADAPTIVE_EAGER_NRT_SHA256_H

#include <array>
#include <cstddef>
#include <cstdint>

namespace neuroncore {

using Digest = std::array<uint8_t, 32>;

Digest sha256(const uint8_t* data, size_t size);

}  // namespace neuroncore
#endif
