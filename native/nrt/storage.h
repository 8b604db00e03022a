// Storage: the memory behind tensors. Device memory of the software core is host memory, counted per core.
#ifndef ADAPTIVE_EAGER_NRT_STORAGE_H
#define ADAPTIVE_EAGER_NRT_STORAGE_H

#include <cstddef>
#include <cstdint>
#include <memory>

#include "nrt.h"

namespace neuroncore {

class Storage {
 public:
  static constexpr int kHost = -1;

  // Null with *status set if the limit or the memory does not allow it. vnc kHost is not counted.
  static std::shared_ptr<Storage> allocate(int vnc, size_t size, NRT_STATUS* status);
  // The caller's buffer: never freed here.
  static std::shared_ptr<Storage> borrow(void* buffer, size_t size);
  static uint64_t bytes_used(uint32_t vnc);

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int vnc() const { return vnc_; }

  // Opens or shuts guarded memory to access.
  void protect(bool open) const;

 private:
  enum class Kind { kBorrowed, kHeap, kMapped, kGuarded };
  Storage(int vnc, size_t size) : vnc_(vnc), size_(size) {}
  bool acquire();

  const int vnc_;
  const size_t size_;
  char* data_ = nullptr;
  Kind kind_ = Kind::kBorrowed;
  bool counted_ = false;
};

}  // namespace neuroncore
#endif
