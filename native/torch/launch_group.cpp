#include "launch_group.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "device.h"
#include "params.h"

namespace neuron {
namespace {

// Points to a thread's boundary: no two threads write to one cache line of a map's result.
constexpr int64_t kAligned = 64;

// The items of one launch, laid end to end with those of the others: work is measured in cost.
struct Share {
  BoundLaunch* bound;
  int64_t items, cost, align;
  int64_t begin;  // of this launch's work in the group's

  // The first item at or after a place in the group's work. Every thread rounds alike, so each item has one owner.
  int64_t item_at(int64_t place) const {
    if (place <= begin) return 0;
    const int64_t item = (place - begin + cost - 1) / cost;
    return std::min(items, (item + align - 1) / align * align);
  }
  void run(int64_t first, int64_t last) const { bound->launch->fn(&bound->args, first, last); }
};

class Shares {
 public:
  void add(BoundLaunch& bound, int64_t items, int64_t cost, int64_t align) {
    shares_.push_back({&bound, items, std::max<int64_t>(cost, 1), align, total_});
    total_ += items * shares_.back().cost;
  }

  void run() {
    const int64_t grain = 4 * params().parallel_grain;
    if (total_ <= grain || in_forked_child() || at::get_num_threads() == 1) {
      for (const Share& s : shares_) s.run(0, s.items);
    } else {
      at::parallel_for(0, total_, grain / 2 + 1, [&](int64_t b, int64_t e) { run(b, e); });
    }
    shares_.clear();
    total_ = 0;
  }

 private:
  void run(int64_t b, int64_t e) const {
    for (const Share& s : shares_) {
      if (s.begin >= e) return;
      const int64_t first = s.item_at(b), last = s.item_at(e);
      if (first < last) s.run(first, last);
    }
  }

  std::vector<Share> shares_;
  int64_t total_ = 0;
};

}  // namespace

const BoundLaunch* run_launch_group(const Step* steps, size_t n, Frame& frame) {
  thread_local Shares shares;
  BoundLaunch* const bound = bound_launches(n);
  int64_t scratch_bytes = 0;
  for (size_t i = 0; i < n; ++i) {
    BoundLaunch& b = bound[i];
    b.bind(steps[i].strip.launches[0], frame);
    if (b.items == 0) continue;
    if (b.in_chunks()) {
      b.args.phase = 1;
      scratch_bytes += b.items * b.args.n_chunks * b.launch->acc_bytes;
      shares.add(b, b.items * b.args.n_chunks, b.work / b.args.n_chunks, 1);
    } else {
      shares.add(b, b.items, b.work, b.launch->kind == KernelKind::kMap ? kAligned : 1);
    }
  }
  c10::DataPtr scratch;
  if (scratch_bytes != 0) {
    scratch = allocate(static_cast<size_t>(scratch_bytes), frame.device());
    auto* partials = static_cast<char*>(scratch.get());
    for (size_t i = 0; i < n; ++i) {
      if (bound[i].args.phase != 1) continue;
      bound[i].args.partials = partials;
      partials += bound[i].items * bound[i].args.n_chunks * bound[i].launch->acc_bytes;
    }
  }
  shares.run();
  if (scratch_bytes != 0) {
    for (size_t i = 0; i < n; ++i) {
      if (bound[i].args.phase != 1) continue;
      bound[i].args.phase = 2;
      shares.add(bound[i], bound[i].items, 4 * bound[i].args.n_chunks, 1);
    }
    shares.run();
  }
  for (size_t i = 0; i < n; ++i) {
    if (bound[i].error != 0) [[unlikely]]
      return bound + i;
  }
  return nullptr;
}

}  // namespace neuron
