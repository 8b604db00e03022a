// Artefact: the container of a compiled model. native/artifact.py describes the layout and writes it.
#ifndef ADAPTIVE_EAGER_NRT_ARTIFACT_H
#define ADAPTIVE_EAGER_NRT_ARTIFACT_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nrt.h"

namespace neuroncore {

struct TensorSpec {
  std::string name;
  nrt_tensor_usage_t usage;
  nrt_dtype_t dtype;
  uint64_t size;  // 0: any
};

struct Artifact {
  std::string target;
  std::vector<std::string> entries;
  std::vector<TensorSpec> tensors;
  const uint8_t* code;  // inside the parsed bytes
  size_t code_size;
};

// Trusts nothing: NRT_INVALID if the bytes are damaged, NRT_UNSUPPORTED_NEFF_VERSION if of another format version.
NRT_STATUS parse_artifact(const void* bytes, size_t size, Artifact* artifact);

// Bytes an element; 0 for a type whose element size is not known.
size_t element_size(nrt_dtype_t dtype);

}  // namespace neuroncore
#endif
