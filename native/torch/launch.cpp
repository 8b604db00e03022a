#include "launch.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "device.h"
#include "params.h"

namespace neuron {
namespace {

// How a reduction's index space is cut into chunks. Depends on the sizes alone, so the result does not depend on
// threads.
constexpr int64_t kInnerChunk = 2048;  // elements
constexpr int64_t kOuterChunk = 128;   // reduced points

}  // namespace

void split_items(int64_t items, int64_t work_each, c10::function_ref<void(int64_t, int64_t)> body) {
  const int64_t grain = std::max<int64_t>(1, 4 * params().parallel_grain / std::max<int64_t>(work_each, 1));
  if (items <= grain || in_forked_child() || at::get_num_threads() == 1) {
    body(0, items);
  } else {
    at::parallel_for(0, items, grain / 2 + 1, body);
  }
}

BoundLaunch* bound_launches(size_t n) {
  thread_local std::unique_ptr<BoundLaunch[]> all;
  thread_local size_t size = 0;
  if (size < n) {
    all = std::make_unique<BoundLaunch[]>(n);
    size = n;
  }
  return all.get();
}

void BoundLaunch::bind(const Launch& l, Frame& frame) {
  launch = &l;
  const int n_dims = static_cast<int>(l.loop_dims.size());
  const int64_t* shape = frame.sizes(l.iteration);
  points = 1;
  for (int d = 0; d < n_dims; ++d) {
    int64_t size = 1;
    for (uint8_t i : l.loop_dims[d]) size *= shape[i];
    sizes[d] = size;
    points *= size;
  }
  for (size_t a = 0; a < l.accesses.size(); ++a) {
    const AccessSource& source = l.accesses[a];
    const TensorView view = frame.view(source.operand);
    for (int d = 0; d < n_dims; ++d) strides[a * n_dims + d] = source.dims[d] < 0 ? 0 : view.strides[source.dims[d]];
    ptrs[a] = view.data;
  }
  for (size_t s = 0; s < l.scalars.size(); ++s) scalars[s] = frame.scalar(l.scalars[s]);
  error = 0;
  args = {};
  args.ptrs = ptrs;
  args.sizes = sizes;
  args.strides = strides;
  args.scalars = scalars;
  args.error = &error;
  if (l.kind == KernelKind::kMap) {
    items = points;
    work = l.cost;
  } else if (l.kind == KernelKind::kTile) {
    shape_tiles();
  } else {
    shape_reduction();
  }
}

void BoundLaunch::shape_tiles() {
  const int n_dims = static_cast<int>(launch->loop_dims.size());
  items = work = 1;
  for (int d = 0; d < n_dims; ++d) {
    const bool of_tile = d >= n_dims - 2;
    items *= of_tile ? (sizes[d] + launch->block - 1) / launch->block : sizes[d];
    if (of_tile) work *= std::min(sizes[d], launch->block);
  }
  work *= launch->cost;
}

void BoundLaunch::shape_reduction() {
  const int n_dims = static_cast<int>(launch->loop_dims.size());
  const bool inner = launch->kind == KernelKind::kInner;
  const int last_reduced = inner ? n_dims - 1 : n_dims - 2;
  const int first_reduced = last_reduced - launch->n_reduced + 1;
  items = 1;
  for (int d = 0; d < first_reduced; ++d) items *= sizes[d];
  int64_t o = 1;
  if (inner) {
    const int64_t n = sizes[last_reduced];
    for (int d = first_reduced; d < last_reduced; ++d) o *= sizes[d];
    if (n >= kInnerChunk) {
      args.n_per_chunk = kInnerChunk;
      args.chunks_per_o = (n + kInnerChunk - 1) / kInnerChunk;
      args.o_per_chunk = 1;
      args.n_chunks = o * args.chunks_per_o;
    } else {
      args.n_per_chunk = n;
      args.chunks_per_o = 1;
      args.o_per_chunk = std::max<int64_t>(1, kInnerChunk / std::max<int64_t>(n, 1));
      args.n_chunks = (o + args.o_per_chunk - 1) / args.o_per_chunk;
    }
    work = o * n * launch->cost;
  } else {
    for (int d = first_reduced; d <= last_reduced; ++d) o *= sizes[d];
    args.n_per_chunk = 1;
    args.chunks_per_o = 1;
    args.o_per_chunk = kOuterChunk;
    args.n_chunks = (o + kOuterChunk - 1) / kOuterChunk;
    items *= (sizes[n_dims - 1] + launch->block - 1) / launch->block;
    work = o * launch->block * launch->cost;
  }
  args.n_chunks = std::max<int64_t>(args.n_chunks, 1);
}

bool BoundLaunch::in_chunks() const {
  return launch->n_reduced != 0 && items < 2 * at::get_num_threads() && args.n_chunks > 1 &&
         items * work >= 4 * params().parallel_grain && !in_forked_child();
}

void BoundLaunch::run(int device) {
  if (items == 0) return;
  const auto all = [this](int64_t b, int64_t e) { launch->fn(&args, b, e); };
  if (!in_chunks()) {
    args.phase = 0;
    return split_items(items, work, all);
  }
  const c10::DataPtr scratch = allocate(static_cast<size_t>(items * args.n_chunks * launch->acc_bytes), device);
  args.partials = static_cast<char*>(scratch.get());
  args.phase = 1;
  split_items(items * args.n_chunks, work / args.n_chunks, all);
  args.phase = 2;
  split_items(items, 4 * args.n_chunks, all);
}

}  // namespace neuron
