// Devices and streams: the torch guard, hooks and events of the neuron device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace neuron {

inline constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;

int device_count();
int current_device();
void set_device(int device);
// Registers the hooks with torch; once.
void register_hooks();
// True in a forked child: its kernels run on one thread, since OpenMP's pool does not survive a fork.
bool in_forked_child();
void mark_forked_child();

}  // namespace neuron
