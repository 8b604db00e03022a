#include "strip.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

namespace neuron {
namespace {

// Points of a block of rows: what a few accesses of them need stays in the first-level cache.
constexpr int64_t kBlockPoints = 2048;

// Kept from run to run: they are big. Runs do not nest in a thread.
BoundLaunch* bound_launches(size_t n) {
  thread_local std::unique_ptr<BoundLaunch[]> all;
  thread_local size_t size = 0;
  if (size < n) {
    all = std::make_unique<BoundLaunch[]>(n);
    size = n;
  }
  return all.get();
}

}  // namespace

const BoundLaunch* run_strip(const std::vector<Launch>& launches, const Frame& frame) {
  const size_t n = launches.size();
  BoundLaunch* const bound = bound_launches(n);
  int64_t rows = -1, work = 0, points = 1;
  for (size_t k = 0; k < n; ++k) {
    bound[k].bind(launches[k], frame);
    if (launches[k].kind == KernelKind::kInner) rows = bound[k].items;
  }
  for (size_t k = 0; k < n; ++k) {
    work += rows > 0 ? bound[k].items / rows * bound[k].work : 0;
    points = std::max(points, rows > 0 ? bound[k].points / rows : 0);
  }
  const auto first_error = [&]() -> const BoundLaunch* {
    for (size_t k = 0; k < n; ++k) {
      if (bound[k].error != 0) return bound + k;
    }
    return nullptr;
  };
  if (n == 1 || rows < 2 * at::get_num_threads()) {
    for (size_t k = 0; k < n; ++k) bound[k].run(frame.device());
    return first_error();
  }
  const int64_t block = std::max<int64_t>(1, kBlockPoints / points);
  split_items(rows, work, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; b += block) {
      const int64_t e = std::min(b + block, end);
      for (size_t k = 0; k < n; ++k) {
        const int64_t each = bound[k].items / rows;
        launches[k].fn(&bound[k].args, b * each, e * each);
      }
    }
  });
  return first_error();
}

}  // namespace neuron
