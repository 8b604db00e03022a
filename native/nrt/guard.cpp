#include "guard.h"

#include <unordered_set>

#include "core.h"
#include "nrtx.h"
#include "storage.h"

namespace neuroncore {
namespace {

// Both under the core's lock.
int open_scopes = 0;
std::unordered_set<const Storage*>& guarded_storages() {
  static auto* const storages = new std::unordered_set<const Storage*>;
  return *storages;
}

}  // namespace

std::atomic<bool> Guard::enabled_ = false;

bool Guard::enable(bool on) {
  const std::lock_guard lock(core().mutex);
  if (core().phase == NRT_SUCCESS) return false;
  enabled_ = on;
  open_scopes = 0;
  return true;
}

void Guard::add(const Storage* storage) {
  const std::lock_guard lock(core().mutex);
  guarded_storages().insert(storage);
  if (open_scopes > 0) storage->protect(true);
}

void Guard::remove(const Storage* storage) {
  const std::lock_guard lock(core().mutex);
  guarded_storages().erase(storage);
}

void Guard::open() {
  if (!enabled()) return;
  const std::lock_guard lock(core().mutex);
  if (open_scopes++ > 0) return;
  for (const Storage* storage : guarded_storages()) storage->protect(true);
}

void Guard::close() {
  if (!enabled()) return;
  const std::lock_guard lock(core().mutex);
  if (open_scopes == 0 || --open_scopes > 0) return;
  for (const Storage* storage : guarded_storages()) storage->protect(false);
}

}  // namespace neuroncore

using neuroncore::Guard;

extern "C" {

NRT_STATUS nrtx_guard_enable(bool on) { return Guard::enable(on) ? NRT_SUCCESS : NRT_INVALID; }
void nrtx_guard_open(void) { Guard::open(); }
void nrtx_guard_close(void) { Guard::close(); }

}  // extern "C"
