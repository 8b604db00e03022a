// Guarded memory: a debugging aid that makes any access to device memory at the wrong time fault at once.
#ifndef ADAPTIVE_EAGER_NRT_GUARD_H
#define ADAPTIVE_EAGER_NRT_GUARD_H

#include <atomic>

namespace neuroncore {

class Storage;

class Guard {
 public:
  static bool enabled() { return enabled_.load(std::memory_order_relaxed); }
  static void add(const Storage* storage);
  static void remove(const Storage* storage);
  static void open();
  static void close();
  static bool enable(bool on);

 private:
  static std::atomic<bool> enabled_;
};

// Opens guarded memory for a scope. When it is off this is one relaxed load.
class GuardScope {
 public:
  GuardScope() { Guard::open(); }
  ~GuardScope() { Guard::close(); }
  GuardScope(const GuardScope&) = delete;
  GuardScope& operator=(const GuardScope&) = delete;
};

}  // namespace neuroncore
#endif
