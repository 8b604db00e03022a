#include "plan.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "device.h"
#include "params.h"

namespace neuron {
namespace {

// How a reduction's index space is cut into chunks. Depends on the sizes alone, so the result does not depend on
// threads.
constexpr int64_t kInnerChunk = 2048;  // elements
constexpr int64_t kOuterChunk = 128;   // reduced points

struct ReductionShape {
  int64_t items = 1;  // kept points (inner), kept points x column blocks (outer)
  int64_t work = 1;   // points an item reduces
};

ReductionShape shape_reduction(const Launch& launch, const int64_t* sizes, int n_dims, nrtx_kernel_args& args) {
  ReductionShape s;
  const bool inner = launch.kind == KernelKind::kInner;
  const int last_reduced = inner ? n_dims - 1 : n_dims - 2;
  const int first_reduced = last_reduced - launch.n_reduced + 1;
  for (int d = 0; d < first_reduced; ++d) s.items *= sizes[d];
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
    s.work = o * n;
  } else {
    for (int d = first_reduced; d <= last_reduced; ++d) o *= sizes[d];
    args.n_per_chunk = 1;
    args.chunks_per_o = 1;
    args.o_per_chunk = kOuterChunk;
    args.n_chunks = (o + kOuterChunk - 1) / kOuterChunk;
    s.items *= (sizes[n_dims - 1] + launch.block - 1) / launch.block;
    s.work = o * launch.block;
  }
  args.n_chunks = std::max<int64_t>(args.n_chunks, 1);
  return s;
}

// Runs items on one thread, or on all if their work is worth it. `work_each` is in quarters of an addition.
template <typename Body>
void split(int64_t items, int64_t work_each, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, 4 * params().parallel_grain / std::max<int64_t>(work_each, 1));
  if (items <= grain || in_forked_child() || at::get_num_threads() == 1) {
    body(0, items);
  } else {
    at::parallel_for(0, items, grain / 2 + 1, body);
  }
}

void run_reduction(const Launch& launch, const int64_t* sizes, int n_dims, nrtx_kernel_args& args, int device) {
  const ReductionShape s = shape_reduction(launch, sizes, n_dims, args);
  if (s.items == 0) return;
  const bool few_items = s.items < 2 * at::get_num_threads();
  const int64_t work = s.work * launch.cost;  // of an item
  if (!few_items || args.n_chunks == 1 || s.items * work < 4 * params().parallel_grain || in_forked_child()) {
    args.phase = 0;
    split(s.items, work, [&](int64_t b, int64_t e) { launch.fn(&args, b, e); });
    return;
  }
  const c10::DataPtr scratch = allocate(static_cast<size_t>(s.items * args.n_chunks * launch.acc_bytes), device);
  args.partials = static_cast<char*>(scratch.get());
  args.phase = 1;
  split(s.items * args.n_chunks, work / args.n_chunks, [&](int64_t b, int64_t e) { launch.fn(&args, b, e); });
  args.phase = 2;
  split(s.items, 4 * args.n_chunks, [&](int64_t b, int64_t e) { launch.fn(&args, b, e); });
}

}  // namespace

int run_launch(const Launch& launch, const Window& window, size_t first_node) {
  const Operand* operands = window.operands.data() + window.nodes[first_node].operands;
  const uint64_t* scalars = window.scalars.data() + window.nodes[first_node].scalars;
  const int n_dims = static_cast<int>(launch.loop_dims.size());
  int64_t sizes[kMaxLoopDims];
  const int64_t* shape = window.sizes(operands[launch.iteration]);
  int64_t points = 1;
  for (int d = 0; d < n_dims; ++d) {
    int64_t size = 1;
    for (uint8_t i : launch.loop_dims[d]) size *= shape[i];
    sizes[d] = size;
    points *= size;
  }

  char* ptrs[kMaxAccesses];
  int64_t strides[kMaxAccesses * kMaxLoopDims];
  for (size_t a = 0; a < launch.accesses.size(); ++a) {
    const AccessSource& source = launch.accesses[a];
    const Operand& o = operands[source.operand];
    const int64_t* operand_strides = window.strides(o);
    for (int d = 0; d < n_dims; ++d) strides[a * n_dims + d] = source.dims[d] < 0 ? 0 : operand_strides[source.dims[d]];
    ptrs[a] = static_cast<char*>(window.slots[o.slot]->_mutable_data_ptr_no_checks().mutable_get()) +
              o.offset * static_cast<int64_t>(c10::elementSize(o.dtype));
  }
  uint64_t scalar_bits[kMaxScalars];
  for (size_t s = 0; s < launch.scalars.size(); ++s) scalar_bits[s] = scalars[launch.scalars[s]];

  int32_t error = 0;
  nrtx_kernel_args args{};
  args.ptrs = ptrs;
  args.sizes = sizes;
  args.strides = strides;
  args.scalars = scalar_bits;
  args.error = &error;
  if (launch.kind == KernelKind::kMap) {
    split(points, launch.cost, [&](int64_t b, int64_t e) { launch.fn(&args, b, e); });
  } else {
    run_reduction(launch, sizes, n_dims, args, window.slots[operands[launch.iteration].slot]->device().index());
  }
  return error;
}

}  // namespace neuron
