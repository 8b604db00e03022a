// Ops the device cannot run: run on the host, counted, and reported once each with the user's line.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <map>
#include <string>

namespace neuron {

enum class FallbackPolicy : uint8_t { kWarn = 0, kError = 1, kQuiet = 2 };

void run_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void set_fallback_policy(FallbackPolicy policy);
std::map<std::string, int64_t> fallback_counts();
void clear_fallback_counts();

}  // namespace neuron
