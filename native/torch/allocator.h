// Caching allocator of device memory: size classes, and chunks of large ones, over segments that the runtime allocates.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace neuron {

struct Segment;

// The size class of blocks that are cut to size (chunks.h).
inline constexpr uint32_t kChunk = UINT32_MAX;

// One allocation. It is the context of the storage's DataPtr, so a storage leads to its block in one load; the recorder
// keeps its slot number here (see window.h) and needs no hash table.
struct Block {
  void* ptr = nullptr;
  size_t size = 0;  // bytes, rounded up
  uint32_t size_class = 0;
  int32_t device = 0;
  uint64_t window = 0;  // id of the window that last saw this block, and its slot there
  uint32_t slot = 0;
  Segment* segment = nullptr;
  Block* next = nullptr;                    // free list
  Block *left = nullptr, *right = nullptr;  // a chunk's neighbours in its segment
  bool free = false;                        // a chunk's
  c10::StorageImpl* owner = nullptr;  // adopted host memory: the CPU storage that owns the bytes (one reference held)
};

// Allocates on the given device; never null, 64-byte aligned. Throws c10::OutOfMemoryError with the sizes asked and in
// use.
c10::DataPtr allocate(size_t nbytes, int device);

// Wraps memory that a CPU operator allocated as device memory, without a copy. Takes over the storage's reference.
c10::DataPtr adopt(c10::Storage cpu_storage, int device);

// The block behind a device storage, or null for memory that was not made here.
Block* block_of(const c10::StorageImpl* storage);

c10::Allocator* allocator();

std::map<std::string, int64_t> memory_stats(int device);
// (free, total) bytes of the device. What is held for re-use is not free.
std::pair<size_t, size_t> memory_info(int device);
// Whether the device has `bytes` besides what is in use.
bool has_room(size_t bytes, int device);
void reset_peak_stats(int device);
// Gives unused segments back to the runtime.
void empty_cache(int device);

}  // namespace neuron
