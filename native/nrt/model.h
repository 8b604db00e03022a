// Model: loaded code and the tensors it works on.
#ifndef ADAPTIVE_EAGER_NRT_MODEL_H
#define ADAPTIVE_EAGER_NRT_MODEL_H

#include <memory>
#include <string>
#include <vector>

#include "artifact.h"
#include "loader.h"
#include "nrtx.h"

namespace neuroncore {

// Gives its code back when its last user lets go of it, so that nrt_unload never pulls code from under an execution.
class Model {
 public:
  // Throws LoadError.
  Model(const Artifact& artifact, uint32_t vnc);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Null: no such entry.
  nrtx_kernel_fn entry(const std::string& name) const;
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  uint32_t vnc() const { return vnc_; }

 private:
  const std::vector<std::string> entries_;
  const std::vector<TensorSpec> tensors_;
  const uint32_t vnc_;
  const std::shared_ptr<const Loader> loader_;  // its libraries are called by the code
  const std::unique_ptr<const ObjectCode> code_;
};

}  // namespace neuroncore
#endif
