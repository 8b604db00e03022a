// Objects that come and go with every op, in memory that each thread keeps for the next ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace neuron {

// Freed pieces of memory of one size. What a thread keeps goes back to the heap when it ends.
template <size_t kBytes>
class SpareMemory {
 public:
  static void* take() {
    SpareMemory& spare = mine();
    if (!spare.first_) return ::operator new(kBytes);
    Piece* piece = spare.first_;
    spare.first_ = piece->next;
    --spare.count_;
    return piece;
  }

  static void give(void* memory) {
    SpareMemory& spare = mine();
    if (spare.count_ >= kKept) return ::operator delete(memory);
    if (spare.count_ == 0) keep_until_thread_ends();
    spare.first_ = new (memory) Piece{spare.first_};
    ++spare.count_;
  }

 private:
  struct Piece {
    Piece* next;
  };
  static constexpr uint32_t kKept = 1024;  // more than a window holds

  // Trivial, so that it is still there when other thread-local objects are destroyed.
  static SpareMemory& mine() {
    static thread_local SpareMemory spare;
    return spare;
  }
  static void keep_until_thread_ends() {
    struct Owner {
      ~Owner() {
        SpareMemory& spare = mine();
        while (spare.first_) ::operator delete(take());
        spare.count_ = kKept;  // from now on nothing is kept
      }
    };
    static thread_local Owner owner;
    (void)owner;
  }

  Piece* first_ = nullptr;
  uint32_t count_ = 0;
};

// A T whose memory comes from there, whoever deletes it: T has a virtual destructor.
template <typename T>
class Pooled final : public T {
 public:
  using T::T;
  static void* operator new(size_t) { return SpareMemory<sizeof(T)>::take(); }
  static void operator delete(void* memory) { SpareMemory<sizeof(T)>::give(memory); }
};

}  // namespace neuron
