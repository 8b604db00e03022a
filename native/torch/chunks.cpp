#include "chunks.h"

namespace neuron {

Block* Chunks::take(size_t bytes) {
  bytes = rounded(bytes);
  const auto it = free_.lower_bound(bytes);
  if (it == free_.end()) return nullptr;
  Block* block = *it;
  free_.erase(it);
  block->free = false;
  if (block->size > bytes) {
    Block* rest = new_record();
    rest->ptr = static_cast<char*>(block->ptr) + bytes;
    rest->size = block->size - bytes;
    rest->size_class = block->size_class;
    rest->device = block->device;
    rest->segment = block->segment;
    rest->left = block;
    rest->right = block->right;
    if (rest->right) rest->right->left = rest;
    block->right = rest;
    block->size = bytes;
    rest->free = true;
    free_.insert(rest);
  }
  return block;
}

void Chunks::give(Block* block) {
  if (Block* right = block->right; right && right->free) join(block, right);
  if (Block* left = block->left; left && left->free) {
    free_.erase(left);
    join(left, block);
    block = left;
  }
  block->free = true;
  free_.insert(block);
}

void Chunks::join(Block* left, Block* right) {
  if (right->free) free_.erase(right);
  left->size += right->size;
  left->right = right->right;
  if (left->right) left->right->left = left;
  keep_record(right);
}

Block* Chunks::add(Segment* segment, char* base, size_t bytes, int device) {
  Block* block = new_record();
  block->ptr = base;
  block->size = bytes;
  block->size_class = kChunk;
  block->device = device;
  block->segment = segment;
  block->free = true;
  free_.insert(block);
  return block;
}

void Chunks::remove(Block* whole) {
  free_.erase(whole);
  keep_record(whole);
}

Block* Chunks::new_record() {
  if (!records_) return new Block;
  Block* block = records_;
  records_ = block->next;
  *block = {};
  return block;
}

void Chunks::keep_record(Block* block) {
  block->next = records_;
  records_ = block;
}

}  // namespace neuron
