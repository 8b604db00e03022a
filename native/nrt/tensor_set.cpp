#include "tensor_set.h"

#include "core.h"
#include "tensor.h"

namespace neuroncore {
namespace {

NRT_STATUS handle_in_set(const nrt_tensor_set_t* set, std::string_view name, nrt_tensor_t** handle,
                         std::shared_ptr<Tensor>* tensor) {
  const std::lock_guard lock(core().mutex);
  const auto found = core().tensor_sets.find(set);
  if (found == nullptr) return NRT_INVALID_HANDLE;
  const auto named = found->tensors.find(name);
  if (named == found->tensors.end()) return NRT_INVALID;
  *handle = named->second;
  *tensor = core().tensors.find(named->second);
  return *tensor == nullptr ? NRT_INVALID_HANDLE : NRT_SUCCESS;
}

}  // namespace

NRT_STATUS find_in_set(const nrt_tensor_set_t* set, const std::string& name, std::shared_ptr<Tensor>* tensor) {
  nrt_tensor_t* handle;
  return handle_in_set(set, name, &handle, tensor);
}

}  // namespace neuroncore

using namespace neuroncore;

extern "C" {

NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** result) {
  return when_open([&] {
    if (result == nullptr) return NRT_INVALID;
    return publish(&Core::tensor_sets, std::make_shared<TensorSet>(), result);
  });
}

void nrt_destroy_tensor_set(nrt_tensor_set_t** tensor_set) {
  if (tensor_set == nullptr) return;
  take(&Core::tensor_sets, *tensor_set);
  *tensor_set = nullptr;
}

NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* tensor_set, const char* tensor_name, nrt_tensor_t* tensor) {
  return when_open([&] {
    if (tensor_name == nullptr || *tensor_name == '\0') return NRT_INVALID;
    const std::lock_guard lock(core().mutex);
    const auto set = core().tensor_sets.find(tensor_set);
    if (set == nullptr || core().tensors.find(tensor) == nullptr) return NRT_INVALID_HANDLE;
    set->tensors.insert_or_assign(tensor_name, tensor);
    return NRT_SUCCESS;
  });
}

NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* tensor_set, const char* tensor_name,
                                          nrt_tensor_t** tensor) {
  return when_open([&] {
    if (tensor_name == nullptr || tensor == nullptr) return NRT_INVALID;
    nrt_tensor_t* handle;
    std::shared_ptr<Tensor> alive;
    const NRT_STATUS status = handle_in_set(tensor_set, tensor_name, &handle, &alive);
    if (status == NRT_SUCCESS) *tensor = handle;
    return status;
  });
}

}  // extern "C"
