#include "storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "core.h"
#include "guard.h"

namespace neuroncore {
namespace {

constexpr size_t kAlignment = 64;  // a cache line and the widest vector
constexpr size_t kHugePage = size_t(2) << 20;

std::array<std::atomic<uint64_t>, kMaxCores> used_bytes;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

size_t round_to_pages(size_t size) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return round_up(size, page);
}

bool reserve(int vnc, size_t size) {
  uint64_t limit;
  {
    const std::lock_guard lock(core().mutex);
    limit = bytes_limit_of(core());
  }
  std::atomic<uint64_t>& used = used_bytes[vnc];
  uint64_t before = used.load(std::memory_order_relaxed);
  do {
    if (before > limit || size > limit - before) return false;
  } while (!used.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
  return true;
}

// First touch costs a page fault: 512 times fewer on huge pages, which need a range that starts on one. More than asked
// for is mapped, and what sticks out at both ends is given back.
char* map_huge(size_t size) {
  const size_t bytes = round_to_pages(size);
  void* const raw = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(raw);
  const size_t head = round_up(reinterpret_cast<uintptr_t>(start), kHugePage) - reinterpret_cast<uintptr_t>(start);
  if (head != 0) munmap(start, head);
  if (head != kHugePage) munmap(start + head + bytes, kHugePage - head);
#ifdef MADV_HUGEPAGE
  madvise(start + head, bytes, MADV_HUGEPAGE);  // only advice: a kernel without huge pages says no, and all still works
#endif
  return start + head;
}

char* map_pages(size_t size) {
  void* const raw = mmap(nullptr, round_to_pages(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return raw == MAP_FAILED ? nullptr : static_cast<char*>(raw);
}

}  // namespace

std::shared_ptr<Storage> Storage::allocate(int vnc, size_t size, NRT_STATUS* status) {
  *status = NRT_RESOURCE;
  // Beyond this, rounding up could overflow.
  if (size > SIZE_MAX / 2) return nullptr;
  std::shared_ptr<Storage> storage(new Storage(vnc, size));
  if (vnc != kHost) {
    if (!reserve(vnc, size)) return nullptr;
    storage->counted_ = true;
  }
  if (!storage->acquire()) return nullptr;
  *status = NRT_SUCCESS;
  return storage;
}

bool Storage::acquire() {
  if (vnc_ != kHost && Guard::enabled()) {
    data_ = map_pages(size_);
    if (data_ == nullptr) return false;
    kind_ = Kind::kGuarded;
    Guard::add(this);
    return true;
  }
  if (size_ >= kHugePage) {
    data_ = map_huge(size_);
    kind_ = Kind::kMapped;
  } else {
    data_ = static_cast<char*>(std::aligned_alloc(kAlignment, round_up(size_, kAlignment)));
    kind_ = Kind::kHeap;
  }
  return data_ != nullptr;
}

std::shared_ptr<Storage> Storage::borrow(void* buffer, size_t size) {
  std::shared_ptr<Storage> storage(new Storage(kHost, size));
  storage->data_ = static_cast<char*>(buffer);
  return storage;
}

uint64_t Storage::bytes_used(uint32_t vnc) { return used_bytes[vnc].load(std::memory_order_relaxed); }

void Storage::protect(bool open) const {
  mprotect(data_, round_to_pages(size_), open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

Storage::~Storage() {
  if (data_ != nullptr) {
    switch (kind_) {
      case Kind::kBorrowed:
        break;
      case Kind::kHeap:
        std::free(data_);
        break;
      case Kind::kGuarded:
        Guard::remove(this);
        [[fallthrough]];
      case Kind::kMapped:
        munmap(data_, round_to_pages(size_));
        break;
    }
  }
  if (counted_) used_bytes[vnc_].fetch_sub(size_, std::memory_order_relaxed);
}

}  // namespace neuroncore
