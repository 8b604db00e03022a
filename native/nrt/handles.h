// Handles: what the opaque pointers of the interface really are.
#ifndef ADAPTIVE_EAGER_NRT_HANDLES_H
#define ADAPTIVE_EAGER_NRT_HANDLES_H

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

namespace neuroncore {

// Maps handles to objects. A handle is a serial number under a prefix no user-space address has; it is never followed
// and never used twice, so a freed, foreign or invented one is simply not found (a registry of addresses would take a
// stale one for the new object at the same place). Not locked: the owner of the table holds a lock.
template <class T, uint64_t kTag>
class HandleTable {
 public:
  using Map = std::unordered_map<uint64_t, std::shared_ptr<T>>;

  // By reference: if this throws, the caller's object must not die here, under its lock.
  void* insert(const std::shared_ptr<T>& object) {
    // 2^44 serials: half a year at a million a second.
    const uint64_t handle = kPrefix | (++last_ << 4) | kTag;
    live_.emplace(handle, object);
    return reinterpret_cast<void*>(handle);
  }

  // Null if the handle is not alive.
  std::shared_ptr<T> find(const void* handle) const {
    const auto found = live_.find(reinterpret_cast<uint64_t>(handle));
    return found == live_.end() ? nullptr : found->second;
  }

  bool replace(const void* handle, std::shared_ptr<T>& object) {
    const auto found = live_.find(reinterpret_cast<uint64_t>(handle));
    if (found == live_.end()) return false;
    found->second.swap(object);
    return true;
  }

  // Returns the object so that the caller drops it after unlocking.
  std::shared_ptr<T> take(const void* handle) {
    const auto found = live_.find(reinterpret_cast<uint64_t>(handle));
    if (found == live_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    live_.erase(found);
    return object;
  }

  Map take_all() { return std::exchange(live_, Map()); }

 private:
  static constexpr uint64_t kPrefix = 0x4e52ull << 48;
  Map live_;
  uint64_t last_ = 0;
};

}  // namespace neuroncore
#endif
