// Execution of a loaded model: from the launch block and the tensor sets to a kernel call. nrtx.h has the contract.
#include <cstring>
#include <span>

#include "core.h"
#include "guard.h"
#include "model.h"
#include "tensor.h"
#include "tensor_set.h"

namespace neuroncore {
namespace {

constexpr int64_t kMaxDims = 64;
constexpr int64_t kMaxScalars = 65536;

// A launch block, copied out of its tensor: the tensor need not be aligned, and may be written to meanwhile.
struct Launch {
  nrtx_launch_t fixed;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::vector<uint64_t> scalars;
};

template <class T>
void read_vector(const char** from, int64_t count, std::vector<T>* to) {
  to->resize(count);
  if (count != 0) std::memcpy(to->data(), *from, count * sizeof(T));
  *from += count * sizeof(T);
}

bool read_launch(const Tensor& tensor, size_t accesses, Launch* launch) {
  nrtx_launch_t& fixed = launch->fixed;
  if (tensor.size < sizeof fixed) return false;
  std::memcpy(&fixed, tensor.data(), sizeof fixed);
  if (fixed.begin < 0 || fixed.end < fixed.begin) return false;
  if (fixed.n_chunks < 0 || fixed.chunks_per_o < 0 || fixed.o_per_chunk < 0 || fixed.n_per_chunk < 0) return false;
  if (fixed.n_dims < 0 || fixed.n_dims > kMaxDims || fixed.n_scalars < 0 || fixed.n_scalars > kMaxScalars) return false;
  if (fixed.n_accesses < 0 || uint64_t(fixed.n_accesses) != accesses) return false;
  const uint64_t words = uint64_t(fixed.n_dims) * (1 + accesses) + uint64_t(fixed.n_scalars);
  if (words > (tensor.size - sizeof fixed) / 8) return false;

  const char* from = tensor.data() + sizeof fixed;
  read_vector(&from, fixed.n_dims, &launch->sizes);
  read_vector(&from, fixed.n_dims * fixed.n_accesses, &launch->strides);
  read_vector(&from, fixed.n_scalars, &launch->scalars);

  // No kernel has more items than points in its loop nest (an empty reduced dim still has its kept points).
  int64_t points = 1;
  for (const int64_t size : launch->sizes) {
    if (size < 0 || __builtin_mul_overflow(points, std::max<int64_t>(size, 1), &points)) return false;
  }
  return fixed.end <= points;
}

// Whether all points of the loop nest lie inside the tensor. Accesses start at its first byte.
bool stays_inside(const TensorSpec& spec, const Tensor& tensor, const Launch& launch,
                  std::span<const int64_t> strides) {
  const auto element = static_cast<int64_t>(element_size(spec.dtype));
  if (element == 0) return true;
  int64_t last = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    const int64_t size = launch.sizes[d];
    if (size == 0 && spec.usage == NRT_TENSOR_USAGE_INPUT) return true;  // nothing is read
    int64_t reach;
    if (strides[d] < 0 || __builtin_mul_overflow(std::max<int64_t>(size - 1, 0), strides[d], &reach)) return false;
    if (__builtin_add_overflow(last, reach, &last)) return false;
  }
  return uint64_t(last) < tensor.size / uint64_t(element);
}

// Everything one execution needs, and what it keeps alive while it runs.
struct Bound {
  std::shared_ptr<Model> model;
  nrtx_kernel_fn kernel;
  std::vector<std::shared_ptr<Tensor>> tensors;
  std::shared_ptr<Tensor> launch_tensor;
};

// A freed handle stays NRT_INVALID_HANDLE; a name that is not there is bad input.
NRT_STATUS bind_tensor(const nrt_tensor_set_t* set, const std::string& name, uint32_t vnc,
                       std::shared_ptr<Tensor>* tensor) {
  const NRT_STATUS status = find_in_set(set, name, tensor);
  if (status != NRT_SUCCESS) return status == NRT_INVALID ? NRT_EXEC_BAD_INPUT : status;
  const int at = (*tensor)->vnc();
  return at == Storage::kHost || uint32_t(at) == vnc ? NRT_SUCCESS : NRT_EXEC_BAD_INPUT;
}

NRT_STATUS bind(const nrt_model_t* handle, const nrt_tensor_set_t* inputs, const nrt_tensor_set_t* outputs,
                Bound* bound) {
  bound->model = find(&Core::models, handle);
  const bool sets_alive = find(&Core::tensor_sets, inputs) != nullptr && find(&Core::tensor_sets, outputs) != nullptr;
  if (bound->model == nullptr || !sets_alive) return NRT_INVALID_HANDLE;
  bound->kernel = bound->model->entry("k");
  if (bound->kernel == nullptr) return NRT_INVALID;
  const uint32_t vnc = bound->model->vnc();
  for (const TensorSpec& spec : bound->model->tensors()) {
    std::shared_ptr<Tensor>& tensor = bound->tensors.emplace_back();
    const auto* const set = spec.usage == NRT_TENSOR_USAGE_INPUT ? inputs : outputs;
    const NRT_STATUS status = bind_tensor(set, spec.name, vnc, &tensor);
    if (status != NRT_SUCCESS) return status;
    if (spec.size != 0 && spec.size != tensor->size) return NRT_EXEC_BAD_INPUT;
  }
  return bind_tensor(inputs, "launch", vnc, &bound->launch_tensor);
}

NRT_STATUS run(const Bound& bound, int repeat_count) {
  const auto& specs = bound.model->tensors();
  Launch launch;
  const GuardScope scope;
  if (!read_launch(*bound.launch_tensor, specs.size(), &launch)) return NRT_EXEC_BAD_INPUT;
  std::vector<char*> ptrs;
  const size_t dims = launch.sizes.size();
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::span<const int64_t> strides(launch.strides.data() + i * dims, dims);
    if (!stays_inside(specs[i], *bound.tensors[i], launch, strides)) return NRT_EXEC_BAD_INPUT;
    ptrs.push_back(bound.tensors[i]->data());
  }

  int64_t error = 0;
  nrtx_kernel_args args = {};
  args.ptrs = ptrs.data();
  args.sizes = launch.sizes.data();
  args.strides = launch.strides.data();
  args.scalars = launch.scalars.data();
  args.error = &error;
  args.n_chunks = launch.fixed.n_chunks;
  args.chunks_per_o = launch.fixed.chunks_per_o;
  args.o_per_chunk = launch.fixed.o_per_chunk;
  args.n_per_chunk = launch.fixed.n_per_chunk;
  for (int i = 0; i < repeat_count; ++i) bound.kernel(&args, launch.fixed.begin, launch.fixed.end);
  return error == 0 ? NRT_SUCCESS : NRT_EXEC_COMPLETED_WITH_ERR;
}

}  // namespace
}  // namespace neuroncore

using namespace neuroncore;

extern "C" {

NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* input_set, nrt_tensor_set_t* output_set,
                              int repeat_count) {
  return when_open([&] {
    if (repeat_count < 1) return NRT_INVALID;
    Bound bound;
    const NRT_STATUS status = bind(model, input_set, output_set, &bound);
    return status != NRT_SUCCESS ? status : run(bound, repeat_count);
  });
}

NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* input_set, nrt_tensor_set_t* output_set) {
  return nrt_execute_repeat(model, input_set, output_set, 1);
}

}  // extern "C"
