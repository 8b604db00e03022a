#include "fork.h"

#include <mutex>
#include <vector>

namespace neuron {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<ForkMutex*> all;  // they live as long as the process
};

Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

}  // namespace

ForkMutex::ForkMutex() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().all.push_back(this);
}

void lock_for_fork() {
  registry().mutex.lock();
  for (ForkMutex* m : registry().all) m->lock();
}

void unlock_after_fork() {
  for (ForkMutex* m : registry().all) m->unlock();
  registry().mutex.unlock();
}

}  // namespace neuron
