// Signature -> plan. The only look-up on the hot path.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <functional>
#include <memory>
#include <vector>

#include "hash.h"
#include "params.h"
#include "plan.h"

namespace neuron {

struct TraceEntry {
  std::vector<uint64_t> words;  // the full trace: a hit compares it, so a hash collision can do no harm
  std::shared_ptr<Plan> plan;
  uint32_t seen = 0;     // sights of this trace
  uint32_t ask_at = 0;   // sight at which the planner is asked (again)
  bool waiting = false;  // its kernels are being compiled in the background
};

// Keeps what was used last: two generations, of which the older is dropped when the younger has grown to half the
// limit. What is found in the older one moves to the younger.
class TraceCache {
 public:
  // The entry of a trace, made on first sight; valid until the next call. Null if another trace has the same hash (then
  // the caller runs unplanned).
  TraceEntry* find(const std::vector<uint64_t>& words, Hash128 hash) {
    auto it = young_.find(hash);
    if (it == young_.end()) it = enter(words, hash);
    TraceEntry* entry = it->second.get();
    return entry->words == words ? entry : nullptr;
  }

  // How often a trace has been seen; 0 if it is not (any more) known.
  uint32_t sights(Hash128 hash) const {
    for (const Entries* entries : {&young_, &old_}) {
      if (const auto it = entries->find(hash); it != entries->end()) return it->second->seen;
    }
    return 0;
  }

  size_t size() const { return young_.size() + old_.size(); }

  void clear() {
    young_.clear();
    old_.clear();
    young_bytes_ = 0;
  }

 private:
  using Entries = ska::flat_hash_map<Hash128, std::unique_ptr<TraceEntry>, Hash128Hasher>;
  static constexpr size_t kEntryBytes = 512;  // of an entry without its words, plan included

  Entries::iterator enter(const std::vector<uint64_t>& words, Hash128 hash) {
    std::unique_ptr<TraceEntry> entry;
    if (const auto it = old_.find(hash); it != old_.end()) {
      entry = std::move(it->second);
      old_.erase(it);
    } else {
      entry = std::make_unique<TraceEntry>();
      entry->words = words;
    }
    const size_t bytes = entry->words.size() * sizeof(uint64_t) + kEntryBytes;
    if (2 * (young_bytes_ + bytes) > static_cast<size_t>(params().trace_bytes)) {
      old_ = std::move(young_);
      young_ = Entries();
      young_bytes_ = 0;
    }
    young_bytes_ += bytes;
    return young_.emplace(hash, std::move(entry)).first;
  }

  Entries young_, old_;
  size_t young_bytes_ = 0;
};

}  // namespace neuron
