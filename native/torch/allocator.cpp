#include "allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "chunks.h"
#include "device.h"
#include "fork.h"
#include "runtime_api.h"

namespace neuron {

// A piece of device memory as the runtime gave it, cut into blocks of one size class or into chunks.
struct Segment {
  nrt_tensor* tensor = nullptr;
  char* base = nullptr;
  size_t size = 0;
  uint32_t live = 0;                           // blocks handed out
  std::vector<std::unique_ptr<Block>> blocks;  // of a size class
  Block* chunk = nullptr;                      // the chunk at its beginning, if it has chunks
};

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallLimit = 128 << 10;  // blocks up to here have size classes; larger ones are chunks
constexpr size_t kSmallSegment = 1 << 20;  // bytes of a segment of one class
constexpr size_t kChunkSegment = 128 << 20;
constexpr int kDevicePlacement = 0;

// Classes: multiples of 64 bytes up to 512, then eight steps a doubling, so at most 12.5% is lost.
uint32_t class_of(size_t n) {
  if (n <= 512) return n == 0 ? 0 : static_cast<uint32_t>((n + 63) / 64 - 1);
  const int log = 63 - std::countl_zero(n - 1);  // 2^log <= n-1 < 2^(log+1)
  const size_t step = size_t{1} << (log - 3);
  const size_t rest = (n - 1 - (size_t{1} << log)) / step;
  return static_cast<uint32_t>(8 + (log - 9) * 8 + rest);
}

size_t class_bytes(uint32_t c) {
  if (c < 8) return (c + 1) * 64;
  const int log = 9 + (c - 8) / 8;
  const size_t step = size_t{1} << (log - 3);
  return (size_t{1} << log) + ((c - 8) % 8 + 1) * step;
}

constexpr uint32_t kClasses = 8 + 8 * 8;  // up to kSmallLimit

using Guard = std::lock_guard<ForkMutex>;

struct DevicePool {
  ForkMutex mutex;
  Block* free_lists[kClasses] = {};
  std::vector<std::unique_ptr<Segment>> segments;
  Chunks chunks;
  int64_t allocated = 0, peak_allocated = 0, reserved = 0, peak_reserved = 0;
  int64_t allocations = 0, frees = 0, segment_allocations = 0, adopted = 0;
};

DevicePool& pool(int device) {
  // Never destroyed: tensors are freed until the process is gone.
  static const int count = std::max(1, runtime_api().device_count);
  static DevicePool* const pools = new DevicePool[count];
  TORCH_CHECK(device >= 0 && device < count, "neuron:", device, " does not exist; there are ", count,
              " neuron devices (ADAPTIVE_EAGER_DEVICES sets the number)");
  return pools[device];
}

void release_unused_locked(DevicePool& p) {
  for (auto& list : p.free_lists) {
    Block** link = &list;
    while (*link) {
      if ((*link)->segment->live == 0) {
        *link = (*link)->next;
      } else {
        link = &(*link)->next;
      }
    }
  }
  std::erase_if(p.segments, [&](std::unique_ptr<Segment>& s) {
    if (s->live != 0) return false;
    if (s->chunk) p.chunks.remove(s->chunk);
    p.reserved -= static_cast<int64_t>(s->size);
    runtime_api().tensor_free(&s->tensor);
    return true;
  });
}

// "16.00 GiB".
std::string readable(size_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  const int unit = (63 - std::countl_zero(bytes)) / 10;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", std::ldexp(static_cast<double>(bytes), -10 * unit), kUnits[unit]);
  return text;
}

[[noreturn]] void throw_out_of_memory(const DevicePool& p, size_t asked, int device, int status) {
  MemoryStats memory;
  size_t size = 0;
  runtime_api().vnc_memory_stats(static_cast<uint32_t>(device), &memory, sizeof memory, &size);
  const auto in_use = static_cast<size_t>(p.allocated);
  const size_t held = static_cast<size_t>(p.reserved + p.adopted) - in_use;
  C10_THROW_ERROR(OutOfMemoryError,
                  c10::str("neuron out of memory. Tried to allocate ", readable(asked), " on neuron:", device, ": ",
                           readable(in_use), " in use of ", readable(memory.bytes_limit), ", ", readable(held),
                           " held for re-use (runtime status ", runtime_api().status_as_str(status), ")."));
}

// What a device has in all; the same for each.
size_t bytes_limit(int device) {
  static const size_t limit = [device] {
    MemoryStats memory;
    size_t size = 0;
    runtime_api().vnc_memory_stats(static_cast<uint32_t>(device), &memory, sizeof memory, &size);
    return memory.bytes_limit;
  }();
  return limit;
}

// Asks the runtime for a segment of one of these sizes, the first that it has.
std::unique_ptr<Segment> new_segment_locked(DevicePool& p, std::initializer_list<size_t> sizes, size_t asked,
                                            int device) {
  auto& api = runtime_api();
  auto segment = std::make_unique<Segment>();
  const auto got = [&](size_t bytes) {
    segment->size = bytes;
    return api.tensor_allocate(kDevicePlacement, device, bytes, "segment", &segment->tensor);
  };
  int status = 0;
  for (const size_t bytes : sizes) {
    if ((status = got(bytes)) == 0) break;
  }
  if (status != 0) {
    release_unused_locked(p);
    status = got(*(sizes.end() - 1));
  }
  if (status != 0) throw_out_of_memory(p, asked, device, status);
  segment->base = static_cast<char*>(api.tensor_get_va(segment->tensor));
  p.reserved += static_cast<int64_t>(segment->size);
  p.peak_reserved = std::max(p.peak_reserved, p.reserved);
  p.segment_allocations++;
  return segment;
}

// Puts the blocks of a new segment on the free list of the class.
void grow_class_locked(DevicePool& p, uint32_t size_class, size_t asked, int device) {
  const size_t block_bytes = class_bytes(size_class);
  auto segment = new_segment_locked(p, {kSmallSegment / block_bytes * block_bytes}, asked, device);
  for (size_t offset = segment->size; offset >= block_bytes; offset -= block_bytes) {  // the list pops rising addresses
    auto block = std::make_unique<Block>();
    block->ptr = segment->base + offset - block_bytes;
    block->size = block_bytes;
    block->size_class = size_class;
    block->device = device;
    block->segment = segment.get();
    block->next = p.free_lists[size_class];
    p.free_lists[size_class] = block.get();
    segment->blocks.push_back(std::move(block));
  }
  p.segments.push_back(std::move(segment));
}

Block* take_locked(DevicePool& p, size_t nbytes, int device) {
  Block* block;
  if (nbytes <= kSmallLimit) {
    const uint32_t size_class = class_of(nbytes);
    if (!p.free_lists[size_class]) grow_class_locked(p, size_class, nbytes, device);
    block = p.free_lists[size_class];
    p.free_lists[size_class] = block->next;
  } else {
    block = p.chunks.take(nbytes);
    if (!block) {
      const size_t own = Chunks::rounded(nbytes);
      const size_t shared = std::min(kChunkSegment, Chunks::rounded(bytes_limit(device) / 8));
      auto segment = new_segment_locked(p, {std::max(own, shared), own}, nbytes, device);
      segment->chunk = p.chunks.add(segment.get(), segment->base, segment->size, device);
      p.segments.push_back(std::move(segment));
      block = p.chunks.take(nbytes);
    }
  }
  block->segment->live++;
  return block;
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  DevicePool& p = pool(block->device);
  c10::StorageImpl* owner = nullptr;
  {
    Guard lock(p.mutex);
    p.allocated -= static_cast<int64_t>(block->size);
    p.frees++;
    if (block->owner) {
      owner = block->owner;
      block->owner = nullptr;
      p.adopted -= static_cast<int64_t>(block->size);
      p.chunks.keep_record(block);
    } else if (block->segment->live--; block->size_class == kChunk) {
      p.chunks.give(block);
    } else {
      block->next = p.free_lists[block->size_class];
      p.free_lists[block->size_class] = block;
    }
  }
  if (owner) c10::intrusive_ptr<c10::StorageImpl>::reclaim(owner);  // drops the reference, outside the lock
}

// Bytes that the host can give without swapping, where it says so: a software core has its memory from there.
size_t host_available() {
  size_t kib = SIZE_MAX / 1024;
  if (FILE* info = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (std::fgets(line, sizeof line, info) && std::sscanf(line, "MemAvailable: %zu", &kib) != 1) {
    }
    std::fclose(info);
  }
  return kib * 1024;
}

using Stats = c10::CachingDeviceAllocator::DeviceStats;

void fill(c10::CachingAllocator::StatArray& array, int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
  auto& all = array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  all.current = current;
  all.peak = peak;
  all.allocated = allocated;
  all.freed = freed;
}

// What torch.accelerator asks about memory.
struct NeuronAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n) override { return neuron::allocate(n, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* dst, const void* src, size_t n) const override { default_copy_data(dst, src, n); }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int d = 0; d < device_count(); ++d) empty_cache(d);
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // one in-order stream: nothing to wait for
  Stats getDeviceStats(c10::DeviceIndex device) override {
    DevicePool& p = pool(device);
    Guard lock(p.mutex);
    Stats stats;
    fill(stats.allocated_bytes, p.allocated, p.peak_allocated, p.allocated, 0);
    fill(stats.active_bytes, p.allocated, p.peak_allocated, p.allocated, 0);
    fill(stats.reserved_bytes, p.reserved, p.peak_reserved, p.reserved, 0);
    fill(stats.allocation, p.allocations - p.frees, p.allocations - p.frees, p.allocations, p.frees);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    DevicePool& p = pool(device);
    Guard lock(p.mutex);
    p.allocations -= p.frees;
    p.frees = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak_stats(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }
};

NeuronAllocator g_allocator;

}  // namespace

RuntimeApi& runtime_api() {
  static RuntimeApi api;
  return api;
}

c10::DataPtr allocate(size_t nbytes, int device) {
  DevicePool& p = pool(device);
  Block* block;
  {
    Guard lock(p.mutex);
    block = take_locked(p, nbytes, device);
    p.allocated += static_cast<int64_t>(block->size);
    p.peak_allocated = std::max(p.peak_allocated, p.allocated);
    p.allocations++;
  }
  block->window = 0;
  return {block->ptr, block, &free_block,
          c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device))};
}

c10::DataPtr adopt(c10::Storage cpu_storage, int device) {
  DevicePool& p = pool(device);
  c10::StorageImpl* owner = cpu_storage.unsafeReleaseStorageImpl();
  Block* block;
  {
    Guard lock(p.mutex);
    block = p.chunks.new_record();
    block->size = owner->nbytes();
    p.allocated += static_cast<int64_t>(block->size);
    p.peak_allocated = std::max(p.peak_allocated, p.allocated);
    p.allocations++;
    p.adopted += static_cast<int64_t>(block->size);
  }
  block->ptr = owner->mutable_data();
  block->device = device;
  block->owner = owner;
  block->segment = nullptr;
  block->window = 0;
  return {block->ptr, block, &free_block,
          c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device))};
}

Block* block_of(const c10::StorageImpl* storage) {
  const auto& ptr = storage->data_ptr();
  return ptr.get_deleter() == &free_block ? static_cast<Block*>(ptr.get_context()) : nullptr;
}

c10::Allocator* allocator() { return &g_allocator; }

std::map<std::string, int64_t> memory_stats(int device) {
  DevicePool& p = pool(device);
  Guard lock(p.mutex);
  return {{"allocated_bytes.all.current", p.allocated},     {"allocated_bytes.all.peak", p.peak_allocated},
          {"reserved_bytes.all.current", p.reserved},       {"reserved_bytes.all.peak", p.peak_reserved},
          {"allocation.all.allocated", p.allocations},      {"allocation.all.freed", p.frees},
          {"segment.all.allocated", p.segment_allocations}, {"adopted_bytes.all.current", p.adopted}};
}

std::pair<size_t, size_t> memory_info(int device) {
  DevicePool& p = pool(device);
  MemoryStats memory;
  size_t size = 0;
  runtime_api().vnc_memory_stats(static_cast<uint32_t>(device), &memory, sizeof memory, &size);
  size_t used = memory.bytes_used;
  {
    Guard lock(p.mutex);
    used += static_cast<size_t>(p.adopted);
  }
  const size_t left = memory.bytes_limit - std::min(used, memory.bytes_limit);
  return {std::min(left, host_available()), memory.bytes_limit};
}

bool has_room(size_t bytes, int device) {
  DevicePool& p = pool(device);
  Guard lock(p.mutex);
  return static_cast<size_t>(p.allocated - p.adopted) + bytes <= bytes_limit(device);
}

void reset_peak_stats(int device) {
  DevicePool& p = pool(device);
  Guard lock(p.mutex);
  p.peak_allocated = p.allocated;
  p.peak_reserved = p.reserved;
}

void empty_cache(int device) {
  DevicePool& p = pool(device);
  Guard lock(p.mutex);
  release_unused_locked(p);
}

}  // namespace neuron
