#include "frame.h"

namespace neuron {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Frame::Frame(Window& window, size_t first_node, const std::vector<Temporary>& temporaries)
    : window_(window),
      operands_(window.operands.data() + window.nodes[first_node].operands),
      scalars_(window.scalars.data() + window.nodes[first_node].scalars),
      device_(window.slots[operands_->slot]->device().index()) {
  if (!temporaries.empty()) place(temporaries);
}

void Frame::place(const std::vector<Temporary>& temporaries) {
  std::vector<size_t> offsets;
  size_t total = 0;
  dims_.resize(temporaries.size() * 2 * kMaxRank);
  int64_t* dims = dims_.data();
  for (const Temporary& t : temporaries) {
    const Operand& like = operands_[t.like];
    const int64_t* sizes = window_.sizes(like);
    int64_t points = 1;
    for (int d = like.ndim - 1; d >= 0; --d) {
      dims[d] = t.keep >> d & 1 ? sizes[d] : 1;
      dims[kMaxRank + d] = points;
      points *= dims[d];
    }
    const size_t bytes = static_cast<size_t>(points) * c10::elementSize(t.dtype);
    offsets.push_back(total);
    bytes_.push_back(bytes);
    if (!t.scratch) total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    temporaries_.push_back({nullptr, dims, dims + kMaxRank});
    dims += 2 * kMaxRank;
  }
  if (total == 0) return;
  memory_.push_back(allocate(total, device_));
  for (size_t k = 0; k < offsets.size(); ++k) {
    if (!temporaries[k].scratch) temporaries_[k].data = static_cast<char*>(memory_[0].get()) + offsets[k];
  }
}

void Frame::materialise(uint32_t operand) {
  if (operand < kFirstTemporary) return;
  TensorView& view = temporaries_[operand - kFirstTemporary];
  if (view.data) return;
  memory_.push_back(allocate(bytes_[operand - kFirstTemporary], device_));
  view.data = static_cast<char*>(memory_.back().get());
}

uint64_t Frame::scalar(const ScalarSource& source) const {
  if (source.dims == 0) return scalars_[source.number];
  const int64_t* sizes = this->sizes(source.number);
  uint64_t points = 1;
  for (int d = 0; d < kMaxRank; ++d) {
    if (source.dims >> d & 1) points *= static_cast<uint64_t>(sizes[d]);
  }
  return points;
}

}  // namespace neuron
