#include "frame.h"

namespace neuron {

Frame::Frame(Window& window, size_t first_node, const std::vector<Temporary>& temporaries)
    : window_(window),
      operands_(window.operands.data() + window.nodes[first_node].operands),
      scalars_(window.scalars.data() + window.nodes[first_node].scalars),
      device_(window.slots[operands_->slot]->device().index()) {
  if (!temporaries.empty()) place(temporaries);
}

void Frame::place(const std::vector<Temporary>& temporaries) {
  dims_.resize(temporaries.size() * 2 * kMaxRank);
  temporaries_.reserve(temporaries.size());
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
    temporaries_.push_back({{nullptr, dims, dims + kMaxRank}, {}, bytes, t.scratch});
    dims += 2 * kMaxRank;
  }
}

void Frame::allocate(Place& place) {
  place.memory = neuron::allocate(place.bytes, device_);
  place.view.data = static_cast<char*>(place.memory.get());
}

void Frame::release(uint32_t operand) {
  if (operand < kFirstTemporary) return window_.release(operands_[operand].slot);
  Place& place = temporaries_[operand - kFirstTemporary];
  place.memory.clear();
  place.view.data = nullptr;
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
