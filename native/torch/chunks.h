// Large blocks of device memory: pieces of segments, taken by best fit and joined again when they are free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "allocator.h"

namespace neuron {

class Chunks {
 public:
  // A free block of at least `bytes`, cut to size, or null. Of those that fit the smallest, of equal ones the lowest.
  Block* take(size_t bytes);
  // A block that is not used any more; it is joined with its free neighbours.
  void give(Block* block);
  // A segment's memory, as one free block. What is at its beginning keeps this record.
  Block* add(Segment* segment, char* base, size_t bytes, int device);
  // Forgets a segment none of whose blocks is in use, so that it is one block again.
  void remove(Block* whole);

  // Records of blocks, to be used again.
  Block* new_record();
  void keep_record(Block* block);

  // What a block of `bytes` takes.
  static size_t rounded(size_t bytes) { return bytes > SIZE_MAX - kPage ? bytes : (bytes + kPage - 1) / kPage * kPage; }

 private:
  static constexpr size_t kPage = 4096;

  struct Smaller {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
    }
    bool operator()(const Block* a, size_t bytes) const { return a->size < bytes; }
    bool operator()(size_t bytes, const Block* a) const { return bytes < a->size; }
  };
  // Makes `right`, which is free, part of `left`.
  void join(Block* left, Block* right);

  std::set<Block*, Smaller> free_;
  Block* records_ = nullptr;
};

}  // namespace neuron
