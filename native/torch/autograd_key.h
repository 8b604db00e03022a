// Recording ahead of autograd. If no gradient is asked of an op, and no other layer of torch waits beneath its autograd
// key (a mode, a subclass, a lazy negation), it is recorded at that key: torch's derivative code takes and gives back
// references to the inputs, and with them Python's lock, several times an op. Else that code runs: it is registered for
// all of autograd's keys, and found under the one that no backend uses.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>

namespace neuron {

// Whether our own kernel is what comes after autograd and its view tracking.
inline bool device_is_next(c10::DispatchKeySet keys) {
  return (keys & c10::after_ADInplaceOrView_keyset).highestPriorityTypeId() == c10::DispatchKey::PrivateUse1;
}

inline bool differentiated(const at::Tensor& t) {
  if (!t.defined() || !t.unsafeGetTensorImpl()->autograd_meta()) return false;
  return (at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(0).defined();
}
inline bool differentiated(const at::Scalar&) { return false; }

// The keys under which torch's derivative code is found.
inline c10::DispatchKeySet derivative_keys(c10::DispatchKeySet keys) {
  return keys.remove(c10::DispatchKey::AutogradPrivateUse1).add(c10::DispatchKey::AutogradOther);
}

}  // namespace neuron
