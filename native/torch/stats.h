// Counters. Each is written under the lock of its stage, read without one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace neuron {

enum class FlushCause : uint8_t {
  kHostRead,
  kSynchronize,
  kEvent,
  kFallback,
  kHostNow,
  kFull,
  kBytes,
  kResize,
  kMemory,
  kForeignDevice,
  kCollective,
  kFirstUse,
  kFork,
  kModeChange,
  kStepwise,
  kUser,
  kCount
};

inline constexpr std::array<const char*, static_cast<size_t>(FlushCause::kCount)> kFlushCauseNames = {
    "host_read", "synchronize", "event",    "fallback",     "data_dependent_shape", "max_ops",
    "max_bytes", "resize",      "memory",   "other_device", "collective",           "first_use",
    "fork",      "mode_change", "stepwise", "user"};

struct Stats {
  int64_t ops_recorded = 0, windows = 0, plans_hit = 0, plans_new = 0, launches = 0, fused_ops = 0, host_ops = 0;
  std::array<int64_t, static_cast<size_t>(FlushCause::kCount)> flush_causes{};
};

inline Stats& stats() {
  static Stats s;
  return s;
}

}  // namespace neuron
