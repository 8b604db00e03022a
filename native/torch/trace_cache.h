// Signature -> plan. The only look-up on the hot path.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <functional>
#include <memory>
#include <vector>

#include "hash.h"
#include "plan.h"

namespace neuron {

struct TraceEntry {
  std::vector<uint64_t> words;  // the full trace: a hit compares it, so a hash collision can do no harm
  std::shared_ptr<Plan> plan;
  uint32_t seen = 0;
  uint32_t ask_at = 0;  // sight at which the planner is asked (again)
};

class TraceCache {
 public:
  // The entry of a trace, made on first sight. Null if another trace has the same hash (then the caller runs
  // unplanned).
  TraceEntry* find(const std::vector<uint64_t>& words, Hash128 hash) {
    std::unique_ptr<TraceEntry>& slot = entries_[hash];
    if (!slot) {
      slot = std::make_unique<TraceEntry>();
      slot->words = words;
      return slot.get();
    }
    TraceEntry* entry = slot.get();
    return entry->words == words ? entry : nullptr;
  }
  size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }

 private:
  ska::flat_hash_map<Hash128, std::unique_ptr<TraceEntry>, Hash128Hasher> entries_;
};

}  // namespace neuron
