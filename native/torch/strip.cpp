#include "strip.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

namespace neuron {
namespace {

// Points of a block of rows: what a few accesses of them need stays in the first-level cache.
constexpr int64_t kBlockPoints = 2048;
// Rows longer than this would not stay in the second-level cache from one launch to the next.
constexpr int64_t kLongestRow = 1 << 17;

// Scratch memory of a thread, kept from run to run.
char* scratch_memory(size_t bytes) {
  thread_local std::vector<char> memory;
  if (memory.size() < bytes + 64) memory.resize(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64;
}

}  // namespace

const BoundLaunch* run_strip(const Strip& strip, Frame& frame) {
  const std::vector<Launch>& launches = strip.launches;
  const size_t n = launches.size();
  BoundLaunch* const bound = bound_launches(n);
  int64_t rows = -1, work = 0, points = 1;  // points of a row
  for (size_t k = 0; k < n; ++k) {
    bound[k].bind(launches[k], frame);
    if (launches[k].kind == KernelKind::kInner) rows = bound[k].items;
  }
  for (size_t k = 0; k < n && rows > 0; ++k) {
    work += bound[k].items / rows * bound[k].work;
    points = std::max(points, bound[k].points / rows);
  }
  const auto first_error = [&]() -> const BoundLaunch* {
    for (size_t k = 0; k < n; ++k) {
      if (bound[k].error != 0) return bound + k;
    }
    return nullptr;
  };
  if (n == 1 || rows < 2 * at::get_num_threads() || points > kLongestRow) {
    for (const ScratchAccess& s : strip.scratch) frame.materialise(launches[s.launch].accesses[s.access].operand);
    for (size_t k = 0; k < n; ++k) {
      if (!strip.scratch.empty()) bound[k].bind(launches[k], frame);
      bound[k].run(frame.device());
    }
    return first_error();
  }
  const int64_t block = std::max<int64_t>(1, kBlockPoints / points);
  const size_t row_bytes = static_cast<size_t>(points) * sizeof(double);  // no element is longer
  const size_t stride = (row_bytes * static_cast<size_t>(block) + 63) / 64 * 64;
  split_items(rows, work, [&](int64_t begin, int64_t end) {
    char* const memory = strip.scratch.empty() ? nullptr : scratch_memory(stride * strip.scratches);
    std::vector<std::array<char*, kMaxAccesses>> ptrs(strip.scratch.empty() ? 0 : n);
    std::vector<nrtx_kernel_args> args(n);
    for (size_t k = 0; k < n; ++k) {
      args[k] = bound[k].args;
      if (strip.scratch.empty()) continue;
      std::copy_n(bound[k].ptrs, launches[k].accesses.size(), ptrs[k].begin());
      args[k].ptrs = ptrs[k].data();
    }
    for (int64_t b = begin; b < end; b += block) {
      const int64_t e = std::min(b + block, end);
      for (const ScratchAccess& s : strip.scratch) {
        // Where the first row would be, so that row b is at the start of the memory.
        const auto size = static_cast<int64_t>(launches[s.launch].accesses[s.access].itemsize);
        ptrs[s.launch][s.access] = memory + s.number * stride - b * points * size;
      }
      for (size_t k = 0; k < n; ++k) {
        const int64_t each = bound[k].items / rows;
        launches[k].fn(&args[k], b * each, e * each);
      }
    }
  });
  return first_error();
}

}  // namespace neuron
