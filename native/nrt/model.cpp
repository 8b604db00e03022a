#include "model.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core.h"
#include "elf_object.h"

namespace neuroncore {

Model::Model(const Artifact& artifact, uint32_t vnc)
    : entries_(artifact.entries),
      tensors_(artifact.tensors),
      vnc_(vnc),
      loader_(Loader::current()),
      code_(loader_->load(artifact)) {
  for (const std::string& entry : entries_) {
    if (code_->function(entry) == nullptr) damaged("it has no function " + entry);
  }
}

nrtx_kernel_fn Model::entry(const std::string& name) const {
  const bool is_entry = std::find(entries_.begin(), entries_.end(), name) != entries_.end();
  return is_entry ? reinterpret_cast<nrtx_kernel_fn>(code_->function(name)) : nullptr;
}

namespace {

template <class Body>
NRT_STATUS with_model(const nrt_model_t* handle, Body&& body) {
  return when_open([&] {
    const auto model = find(&Core::models, handle);
    return model == nullptr ? NRT_INVALID_HANDLE : body(*model);
  });
}

void fill_info(nrt_tensor_info_t* info, const std::string& name, nrt_tensor_usage_t usage, nrt_dtype_t dtype,
               size_t size) {
  *info = {};  // no shape: kernels take their sizes at the launch
  std::memcpy(info->name, name.data(), name.size());
  info->usage = usage;
  info->dtype = dtype;
  info->size = size;
}

}  // namespace
}  // namespace neuroncore

using namespace neuroncore;

extern "C" {

NRT_STATUS nrt_load(const void* neff_bytes, size_t size, int32_t vnc, int32_t vnc_count, nrt_model_t** model) {
  return when_open([&] {
    if (neff_bytes == nullptr || model == nullptr || vnc < -1 || vnc_count == 0 || vnc_count < -1) return NRT_INVALID;
    uint32_t cores = 0;
    nrt_get_visible_vnc_count(&cores);
    const uint32_t core_index = vnc == -1 ? 0 : uint32_t(vnc);
    if (core_index >= cores) return NRT_INVALID;
    if (vnc_count > 1) return uint32_t(vnc_count) > cores - core_index ? NRT_LOAD_NOT_ENOUGH_NC : NRT_INVALID;

    note_load_error({NRT_SUCCESS, ""});
    try {
      Artifact artifact;
      const NRT_STATUS status = parse_artifact(neff_bytes, size, &artifact);
      if (status != NRT_SUCCESS) return note_load_error({status, "not a sound artefact of this version"});
      return publish(&Core::models, std::make_shared<Model>(artifact, core_index), model);
    } catch (const LoadError& error) {
      return note_load_error(error);
    }
  });
}

NRT_STATUS nrt_unload(nrt_model_t* model) {
  return when_open([&] { return take(&Core::models, model) == nullptr ? NRT_INVALID_HANDLE : NRT_SUCCESS; });
}

NRT_STATUS nrtx_model_entry(nrt_model_t* model, const char* name, nrtx_kernel_fn* fn) {
  return with_model(model, [&](const Model& found) {
    if (name == nullptr || fn == nullptr) return NRT_INVALID;
    const nrtx_kernel_fn address = found.entry(name);
    if (address == nullptr) return NRT_INVALID;
    *fn = address;
    return NRT_SUCCESS;
  });
}

NRT_STATUS nrt_get_model_vnc_count(const nrt_model_t* model, uint32_t* vnc_count) {
  return with_model(model, [&](const Model&) {
    if (vnc_count == nullptr) return NRT_INVALID;
    *vnc_count = 1;
    return NRT_SUCCESS;
  });
}

// Any number of threads may execute a model, but one at a time keeps its core busy.
NRT_STATUS nrt_get_model_instance_count(nrt_model_t* model, uint32_t* instance_count) {
  return nrt_get_model_vnc_count(model, instance_count);
}

NRT_STATUS nrt_get_model_info(const nrt_model_t* model, nrt_model_info_t* info, size_t info_size_in,
                              size_t* info_size_out) {
  return with_model(model, [&](const Model& found) {
    if (info == nullptr || info_size_out == nullptr || info_size_in == 0) return NRT_INVALID;
    const nrt_model_info_t facts = {found.vnc()};
    *info_size_out = std::min(info_size_in, sizeof facts);
    std::memcpy(info, &facts, *info_size_out);
    return NRT_SUCCESS;
  });
}

NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* model, nrt_tensor_info_array_t** tensor_info) {
  return with_model(model, [&](const Model& found) {
    if (tensor_info == nullptr) return NRT_INVALID;
    const auto& tensors = found.tensors();
    const size_t count = tensors.size() + 1;
    const size_t bytes = sizeof(nrt_tensor_info_array_t) + count * sizeof(nrt_tensor_info_t);
    std::unique_ptr<void, FreeDeleter> memory(std::malloc(bytes));
    if (memory == nullptr) return NRT_RESOURCE;
    auto* const array = static_cast<nrt_tensor_info_array_t*>(memory.get());
    array->tensor_count = count;
    for (size_t i = 0; i < tensors.size(); ++i) {
      fill_info(&array->tensor_array[i], tensors[i].name, tensors[i].usage, tensors[i].dtype, tensors[i].size);
    }
    fill_info(&array->tensor_array[tensors.size()], "launch", NRT_TENSOR_USAGE_INPUT, NRT_DTYPE_UINT8, 0);
    const std::lock_guard lock(core().mutex);
    if (core().phase != NRT_SUCCESS) return core().phase;
    core().tensor_infos.emplace(array, std::move(memory));
    *tensor_info = array;
    return NRT_SUCCESS;
  });
}

NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* tensor_info) {
  return when_open([&] {
    const std::lock_guard lock(core().mutex);
    return core().tensor_infos.erase(tensor_info) == 0 ? NRT_INVALID_HANDLE : NRT_SUCCESS;
  });
}

}  // extern "C"
