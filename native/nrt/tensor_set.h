// Tensor set: the named tensors of one side of an execution.
#ifndef ADAPTIVE_EAGER_NRT_TENSOR_SET_H
#define ADAPTIVE_EAGER_NRT_TENSOR_SET_H

#include <map>
#include <memory>
#include <string>

#include "nrt.h"

namespace neuroncore {

struct Tensor;

// Holds handles, not tensors: the caller keeps those alive, and one that was freed is found out when it is used.
// Guarded by the core's lock.
struct TensorSet {
  std::map<std::string, nrt_tensor_t*, std::less<>> tensors;
};

// NRT_INVALID_HANDLE: no such set, or the named tensor was freed. NRT_INVALID: no such name.
NRT_STATUS find_in_set(const nrt_tensor_set_t* set, const std::string& name, std::shared_ptr<Tensor>* tensor);

}  // namespace neuroncore
#endif
