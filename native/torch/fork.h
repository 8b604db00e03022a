// Locks that survive a fork.
#pragma once

#include <atomic>
#include <thread>

namespace neuron {

// A lock that a fork waits for: before the process forks, all of them are taken, so that none is held in the child by a
// thread that does not exist there. It spins: for critical sections of a few instructions that never wait for the GIL
// or for another lock, and on the path of every op.
class ForkMutex {
 public:
  ForkMutex();
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

void lock_for_fork();
void unlock_after_fork();

}  // namespace neuron
