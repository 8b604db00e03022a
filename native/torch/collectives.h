// torch.distributed on device tensors.
#pragma once

namespace neuron {

// Registers c10d's collectives for device tensors: they run on host aliases, with the group's CPU backend (Gloo).
void register_collectives();

}  // namespace neuron
