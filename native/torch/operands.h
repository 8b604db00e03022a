// What the fast paths of map ops ask of their operands.
#pragma once

#include <ATen/core/Tensor.h>

#include "number.h"
#include "recorder.h"

namespace neuron {

inline bool is_neuron(const at::Tensor& t) { return t.key_set().has(c10::DispatchKey::PrivateUse1); }

inline bool computes(const OpRow& row, c10::ScalarType dtype) {
  return row.supported >> static_cast<int>(dtype) & 1 && !(row.is(kIntToFloat) && c10::isIntegralType(dtype, true));
}

// A plain device tensor that the fast path takes: strided memory of a compiled dtype (bool has rules of its own).
inline bool plain(const OpRow& row, const at::Tensor& t) {
  return is_neuron(t) && t.scalar_type() != c10::ScalarType::Bool && computes(row, t.scalar_type()) &&
         t.dim() <= kMaxRank && t.has_storage() && !row.is(kBoolOperands);
}

// Dense, with no dim whose stride says nothing (size 1): torch reads such strides when it lays out a result, and its
// own rule (infer) has to be asked.
inline bool dense(const at::Tensor& t) {
  if (!t.is_contiguous() && !t.unsafeGetTensorImpl()->is_non_overlapping_and_dense_default()) return false;
  const auto sizes = t.sizes(), strides = t.strides();
  int64_t expected = 1;
  bool exact = true, free = false;
  for (size_t d = sizes.size(); d-- > 0;) {
    exact &= strides[d] == expected;
    free |= sizes[d] <= 1;
    expected *= std::max<int64_t>(sizes[d], 1);
  }
  return exact || !free;
}

inline bool number_for(const at::Tensor& t, const at::Scalar& s) {
  if (s.isComplex() || s.isBoolean()) return false;
  return c10::isFloatingType(t.scalar_type()) || s.isIntegral(false);
}

inline at::Tensor like(const at::Tensor& a, c10::ScalarType dtype) {
  const int device = a.device().index();
  return a.is_contiguous() ? new_contiguous_tensor(a.sizes(), dtype, device)
                           : new_tensor(a.sizes(), a.strides(), dtype, device);
}

inline bool one(const at::Scalar& s) {
  return s.isIntegral(true) ? s.toLong() == 1 : s.isFloatingPoint() && s.toDouble() == 1.0;
}

// In-place: `b` may share memory with `a` only as exactly the same view.
inline bool safe_in_place(const at::Tensor& a, const at::Tensor& b) {
  if (!dense(a)) return false;
  if (a.storage().unsafeGetStorageImpl() != b.storage().unsafeGetStorageImpl()) return true;
  return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace neuron
