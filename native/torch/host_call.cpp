#include "host_call.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "generator.h"
#include "host_memory.h"
#include "nested.h"
#include "pooled.h"
#include "refuse.h"

namespace neuron {
namespace {

c10::DispatchKeySet excluded_keys() {
  using K = c10::DispatchKey;
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet({K::Functionalize, K::Python, K::PythonTLSSnapshot, K::PreDispatch, K::PythonDispatcher,
                              K::FuncTorchBatched, K::FuncTorchVmapMode, K::Batched, K::VmapMode,
                              K::FuncTorchGradWrapper, K::FuncTorchDynamicLayerBackMode,
                              K::FuncTorchDynamicLayerFrontMode, K::DeferredInit, K::TESTING_ONLY_GenericMode,
                              K::TESTING_ONLY_GenericWrapper});
}

at::Tensor cpu_tensor(c10::DataPtr data, size_t bytes, c10::ScalarType dtype, c10::IntArrayRef sizes,
                      c10::IntArrayRef strides, int64_t offset) {
  auto storage =
      c10::make_intrusive<Pooled<c10::StorageImpl>>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                    std::move(data), c10::GetAllocator(c10::kCPU), true);
  auto t = at::detail::make_tensor<Pooled<c10::TensorImpl>>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

void drop_storage(void* context) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(context));
}

// An alias for the time of one host op; the window keeps the memory.
at::Tensor borrowed_alias(Window& window, const Operand& o) {
  c10::StorageImpl* storage = window.slots[o.slot].get();
  return cpu_tensor(c10::DataPtr(window.memory(o.slot), c10::Device(c10::kCPU)), storage->nbytes(), o.dtype,
                    {window.sizes(o), o.ndim}, {window.strides(o), o.ndim}, o.offset);
}

bool is_borrowed(const at::Tensor& t) { return t.storage().data_ptr().get_context() == nullptr; }

// Gives a CPU result to an output recorded for it: by taking the memory over where that is possible, else by a copy.
void deliver(Recorder& recorder, Window& window, const Operand& output, const at::Tensor& result) {
  c10::StorageImpl* storage = window.slots[output.slot].get();
  const bool same_layout = output.offset == 0 && result.storage_offset() == 0 && result.scalar_type() == output.dtype &&
                           result.sizes() == c10::IntArrayRef(window.sizes(output), output.ndim) &&
                           result.strides() == c10::IntArrayRef(window.strides(output), output.ndim);
  if (same_layout && !is_borrowed(result) && result.storage().use_count() == 1 &&
      result.storage().nbytes() >= storage->nbytes() && result.storage().nbytes() <= 2 * storage->nbytes()) {
    c10::DataPtr adopted = take_over(result.storage(), recorder.device());
    GilFreeLock lock(recorder.window_mutex());
    if (const Block* old = block_of(storage)) {  // the pending window may know the storage by its block
      auto* fresh = static_cast<Block*>(adopted.get_context());
      fresh->window = old->window;
      fresh->slot = old->slot;
    }
    storage->set_data_ptr_noswap(std::move(adopted));
    return;
  }
  borrowed_alias(window, output).copy_(result);
}

using Aliases = std::vector<std::pair<at::Tensor, at::Tensor>>;  // (host, original)

at::Tensor to_host(const at::Tensor& t, int device) {
  if (!t.defined() || t.device().type() != kNeuron) return t;
  if (t.device().index() != device) recorder(t.device().index()).flush(FlushCause::kForeignDevice);
  return host_alias(t);
}

// An argument as the host's kernels take it. Remembers which host tensor stands for which device tensor.
c10::IValue to_host(const c10::IValue& v, int device, Aliases& aliases) {
  if (v.isDevice() && v.toDevice().type() == kNeuron) return c10::Device(c10::kCPU);
  if (v.isGenerator()) return host_generator(v.toGenerator(), device);
  return map_tensors(v, [&](const at::Tensor& t) {
    at::Tensor host = to_host(t, device);
    if (t.defined()) aliases.emplace_back(host, t);
    return host;
  });
}

// A host result as a device tensor. A view of an argument becomes a view of the device tensor behind it.
at::Tensor to_device(const at::Tensor& result, const Aliases& aliases, int device) {
  if (!result.defined() || result.device().type() != c10::kCPU) return result;
  for (const auto& [host, original] : aliases) {
    if (host.unsafeGetTensorImpl() == result.unsafeGetTensorImpl()) return original;
  }
  if (result._is_zerotensor()) return to_device(result.clone(), aliases, device);
  const auto* memory = result.storage().unsafeGetStorageImpl();
  for (const auto& [host, original] : aliases) {
    if (original.device().type() == kNeuron && host.storage().unsafeGetStorageImpl() == memory) {
      auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(original.storage()),
                                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                           c10::scalarTypeToTypeMeta(result.scalar_type()));
      view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
      return view;
    }
  }
  c10::StorageImpl* source = result.storage().unsafeGetStorageImpl();
  c10::DataPtr data = take_over(result.storage(), device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(source->nbytes()), std::move(data), allocator(), true);
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                    c10::scalarTypeToTypeMeta(result.scalar_type()));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
  if (result.is_conj()) t._set_conj(true);
  if (result.is_neg()) t._set_neg(true);
  return t;
}

// Runs an op by the kernel that its row has in place of ATen's, if it has one that takes these arguments: the last ones
// on the stack.
bool run_own(const OpVariant& variant, torch::jit::Stack& stack) {
  const auto run = variant.row->hooks.run;
  if (!run || variant.kind == VariantKind::kOut) return false;
  const auto first = stack.end() - static_cast<int64_t>(variant.handle.schema().arguments().size());
  torch::jit::Stack args(first, stack.end());
  if (!run(variant, args)) return false;
  stack.erase(first, stack.end());
  stack.insert(stack.end(), args.begin(), args.end());
  return true;
}

// An op that resized an argument (out=, resize_ under a composite) resized the alias: the device tensor follows.
void follow_resize(const at::Tensor& host, const at::Tensor& original, int device) {
  c10::TensorImpl* impl = original.unsafeGetTensorImpl();
  if (!host.storage().unsafeGetStorageImpl()->data_ptr().get_context()) return;
  const bool moved = host.storage().data() != original.storage().data();
  if (moved) {
    c10::StorageImpl* storage = original.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(adopt(host.storage(), device));
    storage->set_nbytes(host.storage().nbytes());
  }
  if (host.sizes() != original.sizes() || host.strides() != original.strides()) {
    impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  }
}

}  // namespace

BackendOnlyGuard::BackendOnlyGuard()
    : guard(c10::impl::tls_local_dispatch_key_set().included_ - excluded_keys(),
            c10::impl::tls_local_dispatch_key_set().excluded_ | excluded_keys()) {}

at::Tensor host_alias(const at::Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  c10::intrusive_ptr<c10::StorageImpl> keep = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
  c10::DataPtr data(storage->_mutable_data_ptr_no_checks().mutable_get(), keep.release(), &drop_storage,
                    c10::Device(c10::kCPU));
  at::Tensor alias =
      cpu_tensor(std::move(data), storage->nbytes(), t.scalar_type(), t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) alias._set_conj(true);
  if (t.is_neg()) alias._set_neg(true);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  return alias;
}

void run_host_call(Recorder& recorder, Window& window, const Node& node) {
  HostCall& call = *node.host;
  const OpVariant& variant = *call.variant;
  torch::jit::Stack stack = std::move(call.stack);  // a node runs once
  for (const auto& ref : call.tensors) {
    at::Tensor alias = borrowed_alias(window, window.operands[node.operands + ref.operand]);
    if (ref.element < 0) {
      stack[ref.arg] = std::move(alias);
    } else if (stack[ref.arg].isOptionalTensorList()) {
      stack[ref.arg].toOptionalTensorList().set(ref.element, std::move(alias));
    } else {
      stack[ref.arg].toTensorList().set(ref.element, std::move(alias));
    }
  }
  const BackendOnlyGuard guard;
  const HostMemoryGuard memory(recorder.device());
  const Operand* outputs = window.operands.data() + node.operands + node.n_in;
  const auto run = variant.row->hooks.run;
  const bool done = run && run(variant, stack);
  if (variant.kind == VariantKind::kInPlace) {
    if (!done) variant.handle.callBoxed(stack);  // writes through the alias
    return;
  }
  if (variant.out && !done) {
    for (int k = 0; k < node.n_out; ++k) stack.push_back(borrowed_alias(window, outputs[k]));
    variant.out->callBoxed(stack);
    return;
  }
  if (!done) variant.functional->callBoxed(stack);
  int k = 0;
  for (auto& v : stack) {
    at::Tensor result = std::move(v).toTensor();
    if (!result.defined()) continue;
    deliver(recorder, window, outputs[k++], result);
  }
}

int device_of(const torch::jit::Stack& stack, size_t n) {
  for (size_t i = stack.size() - n; i < stack.size(); ++i) {
    const auto& v = stack[i];
    int device = v.isDevice() && v.toDevice().type() == kNeuron && v.toDevice().has_index() ? v.toDevice().index() : -1;
    for_each_tensor(v, [&](const at::Tensor& t) {
      if (device < 0 && t.defined() && t.device().type() == kNeuron) device = t.device().index();
    });
    if (device >= 0) return device;
  }
  return current_device();
}

void run_now(const c10::OperatorHandle& op, torch::jit::Stack* stack, int device, FlushCause cause,
             const OpVariant* variant) {
  Recorder& r = recorder(device);
  r.flush(cause);
  const auto& schema = op.schema();
  const size_t n = schema.arguments().size();
  const size_t first = stack->size() - n;
  Aliases aliases;
  for (size_t i = first; i < stack->size(); ++i) {
    const c10::IValue original = (*stack)[i];
    const bool draws = original.isNone() && schema.arguments()[i - first].type()->isSubtypeOf(
                                                *c10::OptionalType::create(c10::GeneratorType::get()));
    (*stack)[i] = draws ? c10::IValue(host_generator(std::nullopt, device)) : to_host(original, device, aliases);
  }
  {
    GilFreeLock execution(r.execution_mutex());
    const BackendOnlyGuard guard;
    const HostMemoryGuard memory(device);
    naming_lack_of_memory([&] {
      if (!variant || !run_own(*variant, *stack)) op.callBoxed(stack);
    });
  }
  for (const auto& [host, original] : aliases) {
    if (original.device().type() == kNeuron) follow_resize(host, original, device);
  }
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = map_tensors((*stack)[i], [&](const at::Tensor& t) {
      if (t.defined()) check_plain(t, schema.name());
      return to_device(t, aliases, device);
    });
  }
}

}  // namespace neuron
