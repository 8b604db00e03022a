#include "infer.h"

#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/strides.h>

#include <cstring>

#include "device.h"
#include "hash.h"
#include "host_call.h"
#include "nested.h"

namespace neuron {
namespace {

constexpr size_t kMaxEntries = 1 << 14;

void key_tensor(std::vector<uint64_t>& key, const at::Tensor& t) {
  if (!t.defined()) return key.push_back('U');
  key.push_back('T' | static_cast<uint64_t>(t.dim()) << 8 | static_cast<uint64_t>(t.scalar_type()) << 16 |
                static_cast<uint64_t>(t.unsafeGetTensorImpl()->is_wrapped_number()) << 24 |
                static_cast<uint64_t>(t.device().type()) << 32);
  for (int64_t s : t.sizes()) key.push_back(static_cast<uint64_t>(s));
  for (int64_t s : t.strides()) key.push_back(static_cast<uint64_t>(s));
}

// A number's kind matters to promotion, its sign to integer powers. Its value matters to a shape only when it is an int
// or float argument of a host op (dims, sizes); the operands of compiled ops are runtime values.
void key_value(std::vector<uint64_t>& key, const c10::IValue& v, bool number) {
  if (v.isTensor()) {
    key_tensor(key, v.toTensor());
  } else if (v.isNone()) {
    key.push_back('N');
  } else if (v.isBool()) {
    key.push_back(number ? 'b' : 'B' + (static_cast<uint64_t>(v.toBool()) << 8));
  } else if (v.isInt()) {
    key.push_back(number && v.toInt() < 0 ? 'M' : 'I');
    if (!number) key.push_back(static_cast<uint64_t>(v.toInt()));
  } else if (v.isDouble()) {
    key.push_back('D');
    uint64_t bits;
    const double d = v.toDouble();
    std::memcpy(&bits, &d, sizeof bits);
    if (!number) key.push_back(bits);
  } else if (v.isString()) {
    key.push_back('S');
    key.push_back(hash_text(v.toStringRef()));
  } else if (v.isList()) {
    const auto list = v.toListRef();
    key.push_back('L' | list.size() << 8);
    for (const auto& e : list) key_value(key, e, false);
  } else {
    key.push_back('O');  // devices, generators, layouts: no influence on shapes
  }
}

at::Tensor to_meta(const at::Tensor& t) {
  if (!t.defined() || t.device().type() != kNeuron) return t;
  at::Tensor m = at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta));
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) m.unsafeGetTensorImpl()->set_wrapped_number(true);
  return m;
}

c10::IValue to_meta(const c10::IValue& v) {
  if (v.isDevice() && v.toDevice().type() == kNeuron) return c10::Device(c10::kMeta);
  if (v.isGenerator()) return c10::IValue();
  return map_tensors(v, [](const at::Tensor& t) { return to_meta(t); });
}

ResultMeta describe(const at::Tensor& t) {
  if (!t.defined()) return {};
  return {true, t.scalar_type(), t.sizes().vec(), t.strides().vec()};
}

c10::ScalarType common_dtype(const OpVariant& variant, const torch::jit::Stack& stack) {
  at::native::ResultTypeState state{};
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!variant.promotes[i] || stack[i].isNone()) continue;
    if (stack[i].isTensor()) {
      if (stack[i].toTensor().defined()) state = at::native::update_result_type_state(stack[i].toTensor(), state);
    } else {
      at::Tensor scalar = c10::scalar_to_tensor(stack[i].toScalar());
      scalar.unsafeGetTensorImpl()->set_wrapped_number(true);
      state = at::native::update_result_type_state(scalar, state);
    }
  }
  const c10::ScalarType common = at::native::result_type(state);
  if (variant.row->is(kIntToFloat) && c10::isIntegralType(common, true)) {
    return c10::typeMetaToScalarType(at::get_default_dtype());
  }
  return common;
}

// The result of a pointwise op over these operands: torch's own broadcasting and choice of strides.
at::Tensor broadcast_result(const torch::jit::Stack& operands, c10::ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(false);
  config.declare_static_dtype_and_device(dtype, c10::kMeta);
  config.add_owned_output(at::Tensor());
  for (const auto& v : operands) {
    if (v.isTensor() && v.toTensor().defined()) config.add_owned_const_input(v.toTensor());
  }
  return config.build().output();
}

// The results as torch's meta function says; false if it has none.
bool ask_torch(const OpVariant& variant, const torch::jit::Stack& stack, Inference& inference) {
  torch::jit::Stack meta;
  meta.reserve(stack.size());
  for (const auto& v : stack) meta.push_back(to_meta(v));
  if (variant.meta) {
    variant.meta->callBoxed(*variant.functional, c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
  } else if (variant.row->kind == OpKind::kMap) {
    const c10::ScalarType result = variant.row->is(kBoolResult) ? c10::kBool : inference.compute;
    meta = {broadcast_result(meta, result)};
  } else {
    try {
      variant.functional->callBoxed(meta);
    } catch (const c10::NotImplementedError&) {
      return false;
    }
  }
  for (const auto& v : meta) {
    if (!v.isTensor()) return false;  // lists of tensors: no row has them
    inference.results.push_back(describe(v.toTensor()));
  }
  return true;
}

}  // namespace

ResultMeta broadcast_meta(const std::vector<at::Tensor>& operands, c10::ScalarType dtype) {
  torch::jit::Stack meta;
  for (const at::Tensor& t : operands) meta.push_back(to_meta(t));
  return describe(broadcast_result(meta, dtype));
}

ResultMeta contiguous_meta(std::vector<int64_t> sizes, c10::ScalarType dtype) {
  const auto strides = c10::contiguous_strides(sizes);
  return {true, dtype, std::move(sizes), {strides.begin(), strides.end()}};
}

std::shared_ptr<const Inference> infer(const OpVariant& variant, const torch::jit::Stack& stack) {
  thread_local ska::flat_hash_map<Hash128, std::shared_ptr<const Inference>, Hash128Hasher> cache;
  thread_local std::vector<uint64_t> key;
  key.clear();
  const bool numbers_are_values = variant.row->kind == OpKind::kMap;
  key.push_back(reinterpret_cast<uint64_t>(&variant));
  key.push_back(static_cast<uint64_t>(c10::typeMetaToScalarType(at::get_default_dtype())));
  for (const auto& v : stack) key_value(key, v, numbers_are_values);
  const Hash128 hash = hash_words(key.data(), key.size());
  const auto hit = cache.find(hash);
  if (hit != cache.end() && hit->second->key == key) return hit->second;

  const auto made = std::make_shared<Inference>();
  Inference& fresh = *made;
  fresh.key = key;
  const BackendOnlyGuard guard;
  if (variant.row->kind == OpKind::kMap) {
    fresh.compute = variant.row->is(kBoolOperands) ? c10::kBool : common_dtype(variant, stack);
  }
  const RowHooks& hooks = variant.row->hooks;
  if (!(hooks.infer && hooks.infer(fresh, stack)) && !ask_torch(variant, stack, fresh)) return nullptr;
  if (hooks.correct) hooks.correct(fresh, stack);
  if (cache.size() >= kMaxEntries) cache.clear();
  return cache[hash] = made;
}

}  // namespace neuron
