// A gather's node holds its table as the result's points walk it (where the element of index 0 is, for each point),
// then each index with the stride and the size of the table's dim that it is of. See adaptive/trace.py: GATHERS.

#include "indexing.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "record_compiled.h"
#include "recorder.h"
#include "tensor_ops.h"

namespace neuron {
namespace {

using at::Tensor;
using c10::ScalarType;
using torch::jit::Stack;

const OpRow kEmbedding = map_row("embedding");
const OpRow kGather = map_row("gather");
const OpRow kIndex = map_row("index");
const OpRow kIndexSelect = map_row("index_select");
const OpRow kTake = map_row("take");
const OpRow kTarget = map_row("nll_loss");
const OpRow kOneHot = map_row("one_hot");

// More would not fit the arguments of a node: three each, and the table.
constexpr size_t kMaxIndices = (kMaxArgs - 1) / 3;

Tensor view_of(const Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::native::as_strided_tensorimpl(t, sizes, strides, t.storage_offset());
}

bool indexes(const Tensor& t) {
  return mapped(t) && (t.scalar_type() == ScalarType::Long || t.scalar_type() == ScalarType::Int);
}

// A tensor with dims of size one around its own: `before`, and `after`. Itself if there are none.
Tensor surrounded(const Tensor& t, int64_t before, int64_t after) {
  if (before + after == 0) return t;
  c10::DimVector sizes(before, 1), strides(before, 1);
  sizes.append(t.sizes().begin(), t.sizes().end());
  strides.append(t.strides().begin(), t.strides().end());
  sizes.append(after, 1);
  strides.append(after, 1);
  return view_of(t, sizes, strides);
}

class Gather {
 public:
  Gather(const OpRow& row, Tensor table, bool wraps) : row_(row), table_(std::move(table)), wraps_(wraps) {}

  // `index`, which broadcasts to the result, is of the table's dim `dim`.
  void add(Tensor index, int64_t dim) { add(std::move(index), dim, table_.stride(dim), table_.size(dim)); }
  void add(Tensor index, int64_t dim, int64_t stride, int64_t size) {
    indices_.push_back({std::move(index), dim, stride, size});
  }

  // Records it. `strides`: of the table along the dims of the result, 0 for those of the indices.
  Tensor record(const ResultMeta& result, c10::IntArrayRef strides, int device) const {
    if (result.sizes.size() > kMaxRank || indices_.size() > kMaxIndices || !mapped(table_)) return {};
    // An element that is not there cannot stand for one that is out of range.
    for (const Index& i : indices_) {
      if (i.size == 0 || !indexes(i.value)) return {};
    }
    if (table_.numel() == 0 || c10::multiply_integers(result.sizes) == 0) return {};
    const Tensor out = new_tensor(result.sizes, result.strides, table_.scalar_type(), device);
    const Tensor walked = view_of(table_, result.sizes, strides);
    Recording r(recorder(device), row_);
    r.input(walked.unsafeGetTensorImpl(), walked.strides(), walked.storage_offset());
    for (const Index& i : indices_) {
      r.input(i.value.unsafeGetTensorImpl());
      r.scalar(i.stride);
      r.scalar(i.size);
    }
    r.attr(int64_t{wraps_});
    for (const Index& i : indices_) r.attr(i.dim);
    r.output(out.unsafeGetTensorImpl(), true);
    r.finish(table_.scalar_type(), table_.scalar_type());
    return out;
  }

 private:
  struct Index {
    Tensor value;
    int64_t dim, stride, size;
  };
  const OpRow& row_;
  const Tensor table_;
  const bool wraps_;
  c10::SmallVector<Index, kMaxIndices> indices_;
};

// Sizes of a result, to see that they are what the meta function says.
bool of_sizes(const ResultMeta& result, c10::IntArrayRef sizes) { return c10::IntArrayRef(result.sizes) == sizes; }

// As torch.gather.
Tensor gathered(const OpRow& row, const Tensor& table, int64_t dim, const Tensor& index, const ResultMeta& result,
                int device) {
  c10::DimVector strides(table.strides());
  strides[dim] = 0;
  Gather gather(row, table, false);
  gather.add(index, dim);
  return gather.record(result, strides, device);
}

}  // namespace

Tensor compose_embedding(const Inference& inference, const Stack& args, int device) {
  const Tensor table = args[0].toTensor(), index = args[1].toTensor();
  if (table.dim() != 2) return {};
  c10::DimVector strides(index.dim(), 0);
  strides.push_back(table.stride(1));
  Gather gather(kEmbedding, table, false);
  gather.add(surrounded(index, 0, 1), 0);
  return gather.record(inference.results[0], strides, device);
}

Tensor compose_index_select(const Inference& inference, const Stack& args, int device) {
  const Tensor table = args[0].toTensor(), index = args[2].toTensor();
  if (table.dim() == 0 || index.dim() > 1) return {};
  const int64_t dim = c10::maybe_wrap_dim(args[1].toInt(), table.dim());
  c10::DimVector strides(table.strides());
  strides[dim] = 0;
  Gather gather(kIndexSelect, table, false);
  gather.add(surrounded(index.dim() == 0 ? index.unsqueeze(0) : index, dim, table.dim() - 1 - dim), dim);
  return gather.record(inference.results[0], strides, device);
}

Tensor compose_gather(const Inference& inference, const Stack& args, int device) {
  const Tensor table = args[0].toTensor(), index = args[2].toTensor();
  if (table.dim() == 0 || index.dim() != table.dim()) return {};
  return gathered(kGather, table, c10::maybe_wrap_dim(args[1].toInt(), table.dim()), index, inference.results[0],
                  device);
}

Tensor at_targets(const Tensor& table, int64_t dim, const Tensor& target) {
  const ResultMeta result = contiguous_meta(target.sizes().vec(), table.scalar_type());
  const int device = table.device().index();
  const Tensor found = gathered(kTarget, table, dim, target, result, device);
  if (found.defined()) return found;
  TORCH_CHECK_INDEX(target.numel() == 0, "There are targets, but no classes.");
  return fresh_result(result, device);
}

// Advanced indexing. The dims of the indices stand where they are, if they are next to each other, else in front.
Tensor compose_index(const Inference& inference, const Stack& args, int device) {
  const Tensor table = args[0].toTensor();
  const auto given = args[1].toOptionalTensorVector();
  std::vector<Tensor> indices;
  c10::DimVector dims;
  for (size_t d = 0; d < given.size(); ++d) {
    if (!given[d] || !given[d]->defined()) continue;
    if (!indexes(*given[d])) return {};
    indices.push_back(*given[d]);
    dims.push_back(static_cast<int64_t>(d));
  }
  if (indices.empty() || indices.size() > kMaxIndices) return {};
  if (indices.size() > 1) indices = at::expand_outplace(indices);
  const int64_t rank = indices[0].dim(), rest = table.dim() - static_cast<int64_t>(dims.size());
  const bool adjacent = dims.back() - dims.front() + 1 == static_cast<int64_t>(dims.size());
  const int64_t before = adjacent ? dims.front() : 0;
  c10::DimVector strides, sizes;
  for (int64_t d = 0; d < table.dim(); ++d) {
    if (static_cast<int64_t>(strides.size()) == before) {
      strides.append(rank, 0);
      sizes.append(indices[0].sizes().begin(), indices[0].sizes().end());
    }
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    strides.push_back(table.stride(d));
    sizes.push_back(table.size(d));
  }
  if (!of_sizes(inference.results[0], sizes)) return {};
  Gather gather(kIndex, table, true);
  for (size_t k = 0; k < dims.size(); ++k) gather.add(surrounded(indices[k], before, rest - before), dims[k]);
  return gather.record(inference.results[0], strides, device);
}

Tensor compose_take(const Inference& inference, const Stack& args, int device) {
  const Tensor table = args[0].toTensor(), index = args[1].toTensor();
  if (!table.is_contiguous()) return {};
  Gather gather(kTake, table, true);
  gather.add(index, 0, 1, table.numel());
  return gather.record(inference.results[0], c10::DimVector(index.dim(), 0), device);
}

namespace {

// One in each row, zeros elsewhere. Without a number of classes it is read from the data, as on every device.
Tensor one_hot(const Tensor& self, int64_t classes) {
  TORCH_CHECK(self.scalar_type() == ScalarType::Long, "one_hot is only applicable to index tensor of type LongTensor.");
  c10::DimVector sizes(self.sizes());
  if (self.numel() == 0) {
    TORCH_CHECK(classes > 0, "Can not infer total number of classes from empty tensor.");
    sizes.push_back(classes);
    return at::zeros(sizes, self.options());
  }
  if (classes <= 0) {
    TORCH_CHECK(at::min(self).item<int64_t>() >= 0, "Class values must be non-negative.");
    TORCH_CHECK(classes == -1, "Class values must be smaller than num_classes.");
    classes = at::max(self).item<int64_t>() + 1;
  }
  sizes.push_back(classes);
  if (!mapped(self) || self.dim() == kMaxRank)
    return at::zeros(sizes, self.options()).scatter_(-1, self.unsqueeze(-1), 1);
  const int device = self.device().index();
  const Tensor out = new_contiguous_tensor(sizes, ScalarType::Long, device);
  const Tensor x = surrounded(self, 0, 1);
  Recording r(recorder(device), kOneHot);
  r.input(x.unsafeGetTensorImpl());
  r.scalar(classes);
  r.attr(int64_t{-1});
  r.output(out.unsafeGetTensorImpl(), true);
  r.finish(ScalarType::Long, ScalarType::Long);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("one_hot", &one_hot); }

}  // namespace neuron
