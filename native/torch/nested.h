// Walking the tensors in an argument: one, a list of them, or lists of lists.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace neuron {

inline bool holds_tensors(const c10::Type& element) {
  return element.kind() == c10::TypeKind::ListType || element.isSubtypeOf(*c10::OptionalType::ofTensor());
}

// Calls f(tensor) for every tensor in `v`, undefined ones too; absent ones (None) are left out.
template <typename F>
void for_each_tensor(const c10::IValue& v, const F& f) {
  if (v.isTensor()) {
    f(v.toTensor());
  } else if (v.isList() && !v.isIntList() && !v.isDoubleList() && !v.isBoolList()) {
    if (!holds_tensors(*v.toList().elementType())) return;
    for (const c10::IValue& e : v.toListRef()) for_each_tensor(e, f);
  }
}

// `v` with f(tensor) in the place of every tensor in it.
template <typename F>
c10::IValue map_tensors(const c10::IValue& v, const F& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (!v.isList()) return v;
  const auto list = v.toList();
  if (!holds_tensors(*list.elementType())) return v;
  c10::impl::GenericList mapped(list.elementType());
  mapped.reserve(list.size());
  for (const c10::IValue& e : v.toListRef()) mapped.push_back(map_tensors(e, f));
  return mapped;
}

}  // namespace neuron
