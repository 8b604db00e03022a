// Movement ops as copies and fills of views, so that what is moved is computed where it goes, by the kernel that makes
// it.

#include "movement_ops.h"

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/constant_pad_nd_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/flip.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "hash.h"
#include "host_call.h"
#include "infer.h"
#include "record_boxed.h"
#include "recorder.h"
#include "tensor_ops.h"

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;

// More copies than this cost more than one host op.
constexpr size_t kMaxParts = 16;

Tensor view_of(const Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  return at::native::as_strided_tensorimpl(t, sizes, strides, offset);
}

Tensor range_of(const Tensor& t, int64_t dim, int64_t start, int64_t length) {
  c10::DimVector sizes(t.sizes());
  sizes[dim] = length;
  return view_of(t, sizes, t.strides(), t.storage_offset() + start * t.stride(dim));
}

// A new tensor that is put together from copies and fills of parts that do not overlap.
class Assembly {
 public:
  explicit Assembly(Tensor out) : out_(std::move(out)) {}

  void copy(Tensor part, const Tensor& source) {
    if (mapped(part) && mapped(source)) {
      copy_part(part, source, next());
    } else {
      part.copy_(source);
      untouched_ = false;
    }
  }

  // `source` with `before` elements of `value` in front of it along a dim, and others behind it where there is room;
  // and the same of the next dim. Only the borders are filled, each once, so that nothing has to wait for a fill.
  void surround(const Tensor& source, at::ArrayRef<std::pair<int64_t, int64_t>> before, const Scalar& value) {
    Tensor inside = out_;
    for (const auto& [dim, first] : before) {
      const int64_t end = first + source.size(dim), size = inside.size(dim);
      for (const auto& [start, length] : {std::pair(int64_t{0}, first), std::pair(end, size - end)}) {
        if (length == 0) continue;
        Tensor border = range_of(inside, dim, start, length);
        const bool recorded = mapped(border);
        fill_part(border, value, recorded ? next() : Part());
        if (!recorded) untouched_ = false;
      }
      inside = range_of(inside, dim, first, source.size(dim));
    }
    copy(inside, source);
  }

 private:
  Part next() { return {parts_++, std::exchange(untouched_, false)}; }

  Tensor out_;
  int parts_ = 0;  // recorded, no two of which overlap
  bool untouched_ = true;
};

// ---- padding, and the gradients of slices ----

Tensor constant_pad(const Tensor& self, c10::SymIntArrayRef padding, const Scalar& value) {
  const auto pad = C10_AS_INTARRAYREF_SLOW(padding);
  const auto rank = static_cast<size_t>(self.dim());
  // What torch refuses, what has no elements, and what has so many borders that filling everything is less.
  const auto positive = std::count_if(pad.begin(), pad.end(), [](int64_t p) { return p > 0; });
  if (positive == 0 || positive > 4 || pad.size() % 2 || pad.size() > 2 * rank)
    return at::native::constant_pad_nd(self, pad, value);
  c10::DimVector sizes(self.sizes());
  Tensor source = self;
  c10::SmallVector<std::pair<int64_t, int64_t>, 4> before;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const auto dim = static_cast<int64_t>(rank - 1 - i);
    const int64_t left = pad[2 * i], right = pad[2 * i + 1];
    const int64_t kept = self.size(dim) + std::min<int64_t>(left, 0) + std::min<int64_t>(right, 0);
    if (kept <= 0) return at::native::constant_pad_nd(self, pad, value);
    if (kept != self.size(dim)) source = range_of(source, dim, std::max<int64_t>(-left, 0), kept);
    sizes[dim] += left + right;
    if (left > 0 || right > 0) before.emplace_back(dim, std::max<int64_t>(left, 0));
  }
  if (self.numel() == 0) return at::native::constant_pad_nd(self, pad, value);
  Tensor out = new_contiguous_tensor(sizes, self.scalar_type(), self.device().index());
  if (const auto format = self.suggest_memory_format(); format != c10::MemoryFormat::Contiguous)
    out.unsafeGetTensorImpl()->empty_tensor_restride(format);
  std::reverse(before.begin(), before.end());  // the borders of outer dims are the longer runs of memory
  Assembly(out).surround(source, before, value);
  return out;
}

Tensor zeros(const Tensor& grad, c10::SymIntArrayRef sizes) {
  return new_contiguous_tensor(C10_AS_INTARRAYREF_SLOW(sizes), grad.scalar_type(), grad.device().index());
}

// `out`, which is contiguous, with `grad` in a view of it that starts at an index of `dim`, and zeros elsewhere.
Tensor placed(const Tensor& out, const Tensor& view, int64_t dim, const Tensor& grad) {
  Assembly(out).surround(grad, {{dim, view.storage_offset() / out.stride(dim)}}, 0);
  return out;
}

Tensor slice_backward(const Tensor& grad, c10::SymIntArrayRef sizes, int64_t dim, c10::SymInt start, c10::SymInt end,
                      c10::SymInt step) {
  Tensor out = zeros(grad, sizes);
  Tensor view = out.slice_symint(dim, std::move(start), std::move(end), step);
  if (step == 1 && view.numel() != 0 && view.sizes() == grad.sizes())
    return placed(out, view, c10::maybe_wrap_dim(dim, out.dim()), grad);
  fill(out, 0);
  view.copy_(grad);
  return out;
}

Tensor select_backward(const Tensor& grad, c10::SymIntArrayRef sizes, int64_t dim, c10::SymInt index) {
  Tensor out = zeros(grad, sizes);
  Tensor view = out.select_symint(dim, std::move(index));
  dim = c10::maybe_wrap_dim(dim, out.dim());
  if (view.numel() != 0 && view.sizes() == grad.sizes()) return placed(out, view, dim, grad.unsqueeze(dim));
  fill(out, 0);
  view.copy_(grad);
  return out;
}

// ---- roll, flip ----

// Copies `source`, rolled by the shifts from `k` on, to `out`: two parts a dim.
void roll_parts(Assembly& assembly, const Tensor& out, const Tensor& source, c10::IntArrayRef shifts,
                c10::IntArrayRef dims) {
  if (dims.empty()) return assembly.copy(out, source);
  const int64_t dim = dims[0], size = out.size(dim);
  const int64_t shift = ((shifts[0] % size) + size) % size;
  const auto move = [&](int64_t from, int64_t to, int64_t length) {
    if (length == 0) return;
    roll_parts(assembly, range_of(out, dim, to, length), range_of(source, dim, from, length), shifts.slice(1),
               dims.slice(1));
  };
  move(0, shift, size - shift);
  move(size - shift, 0, shift);
}

Tensor roll(const Tensor& self, c10::SymIntArrayRef shift_list, c10::IntArrayRef dim_list) {
  const auto shifts = C10_AS_INTARRAYREF_SLOW(shift_list);
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  if (dim_list.empty() && shifts.size() == 1) {
    if (self.dim() == 1) return roll(self, shift_list, {0});
    return roll(self.contiguous().view(self.numel()), shift_list, {0}).view(self.sizes());
  }
  TORCH_CHECK(shifts.size() == dim_list.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dim_list.size());
  if (self.numel() == 0) return self.clone();
  // A dim at a time is what it means; dims named twice are rolled by the sum.
  c10::DimVector dims, sums;
  for (size_t i = 0; i < dim_list.size(); ++i) {
    const int64_t dim = c10::maybe_wrap_dim(dim_list[i], self.dim(), /*wrap_scalar=*/false);
    const auto at = static_cast<size_t>(std::find(dims.begin(), dims.end(), dim) - dims.begin());
    const int64_t shift = shifts[i] % self.size(dim);
    if (at < dims.size()) {
      sums[at] += shift;
    } else {
      dims.push_back(dim);
      sums.push_back(shift);
    }
  }
  if (dims.size() > 4) {
    const size_t half = dims.size() / 2;
    const std::vector<c10::SymInt> rest(sums.begin() + half, sums.end());
    dim_list = dims;
    return roll(roll(self, c10::fromIntArrayRefSlow(c10::IntArrayRef(sums).slice(0, half)), dim_list.slice(0, half)),
                rest, dim_list.slice(half));
  }
  // torch concatenates the two parts, of which one without elements is contiguous.
  bool whole = false;
  for (size_t i = 0; i < dims.size(); ++i) whole |= sums[i] % self.size(dims[i]) == 0;
  const auto format = whole ? c10::MemoryFormat::Contiguous : self.suggest_memory_format();
  Tensor out = at::empty_like(self, self.options().memory_format(format));
  Assembly assembly(out);
  roll_parts(assembly, out, self, sums, dims);
  return out;
}

Tensor flip(const Tensor& self, c10::IntArrayRef dims) {
  const auto mask = at::dim_list_to_bitset(dims, self.dim());
  Tensor out = at::empty_like(self, self.options().memory_format(c10::MemoryFormat::Preserve));
  if (self.numel() == 0) return out;
  if (mapped(self)) {
    copy_reversed(out, self, mask);
  } else {
    Recorder& r = recorder(self.device().index());
    r.flush(FlushCause::kHostNow);
    GilFreeLock execution(r.execution_mutex());
    const BackendOnlyGuard guard;
    host_alias(out).copy_(at::flip(host_alias(self), dims));
  }
  return out;
}

}  // namespace

// ---- cat ----

Tensor compose_cat(const Inference& inference, const torch::jit::Stack& args, int device) {
  const ResultMeta& result = inference.results[0];
  const std::vector<Tensor> tensors = args[0].toTensorVector();
  size_t parts = 0;
  for (const Tensor& t : tensors) {
    if (!mapped(t)) return {};
    parts += t.numel() != 0;
  }
  if (parts > kMaxParts || !compiled_dtype(result.dtype)) return {};
  Tensor out = new_tensor(result.sizes, result.strides, result.dtype, device);
  if (parts == 0) return out;
  static const uint64_t id = hash_text("cat");
  Call call(id);
  const int64_t dim = c10::maybe_wrap_dim(args[1].toInt(), out.dim());
  int64_t start = 0;
  Assembly assembly(out);
  for (const Tensor& t : tensors) {
    if (t.numel() == 0) continue;
    assembly.copy(range_of(out, dim, start, t.size(dim)), t);
    start += t.size(dim);
  }
  call.finish();
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("constant_pad_nd", &constant_pad);
  m.impl("slice_backward", &slice_backward);
  m.impl("select_backward", &select_backward);
  m.impl("roll", &roll);
  m.impl("flip", &flip);
}

}  // namespace neuron
