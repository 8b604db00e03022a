// Model: linked code and the tensors it works on.
#ifndef ADAPTIVE_EAGER_NRT_MODEL_H
#define ADAPTIVE_EAGER_NRT_MODEL_H

#include <memory>
#include <string>
#include <vector>

#include "artifact.h"
#include "nrtx.h"

namespace neuroncore {

// Unlinks its code when its last user lets go of it, so that nrt_unload never pulls code from under an execution.
class Model {
 public:
  static NRT_STATUS load(const Artifact& artifact, uint32_t vnc, std::shared_ptr<Model>* model);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Null: no such entry.
  nrtx_kernel_fn entry(const std::string& name) const;
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  uint32_t vnc() const { return vnc_; }

 private:
  Model(const nrtx_loader_t& loader, const Artifact& artifact, uint32_t vnc);

  const nrtx_loader_t loader_;
  const std::vector<std::string> entries_;
  const std::vector<TensorSpec> tensors_;
  const uint32_t vnc_;
  std::vector<void*> addresses_;
  void* linked_ = nullptr;
  bool is_linked_ = false;
};

}  // namespace neuroncore
#endif
