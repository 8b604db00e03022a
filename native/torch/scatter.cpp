// Each element of a result is owned by one thread, which adds what goes there in the order of the indices. ATen's own
// kernels add each slice by way of an iterator, or (index_put_) in the order in which threads happen to come. Where its
// order is fixed and it is as fast (float16, vectors, scatter_add), the op is left to it.

#include "scatter.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "op_table.h"
#include "record_boxed.h"

namespace neuron {
namespace {

using at::Tensor;
using c10::ScalarType;
using torch::jit::Stack;

// Bytes of neighbouring elements that threads share out: each has lines of its own.
constexpr int64_t kLine = 64;
// Elements that are worth a thread.
constexpr int64_t kGrain = 16384;

// Compiled for the vectors of newer processors too, and chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

#define ADD_ROW(type)                                                                  \
  WIDE void add_row(type* __restrict__ to, const type* __restrict__ from, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<type>(to[i] + from[i]);        \
  }
ADD_ROW(double)
ADD_ROW(float)
ADD_ROW(c10::BFloat16)
ADD_ROW(uint64_t)
ADD_ROW(uint32_t)
ADD_ROW(uint16_t)
ADD_ROW(uint8_t)
#undef ADD_ROW
WIDE void add_row(bool* __restrict__ to, const bool* __restrict__ from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to[i] | from[i];
}

// The type that adds as a dtype does: integers wrap.
template <typename T>
using Sum = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, std::make_unsigned<T>,
                               std::type_identity<T>>::type;

template <typename T>
T sum(T a, T b) {
  if constexpr (std::is_same_v<T, bool>)
    return a || b;
  else
    return static_cast<T>(a + b);
}

// Calls `f` with a null pointer to the dtype's type.
template <typename F>
void for_dtype(ScalarType dtype, const F& f) {
  AT_DISPATCH_V2(dtype, "scatter", AT_WRAP([&] { f(static_cast<Sum<scalar_t>*>(nullptr)); }), AT_EXPAND(AT_ALL_TYPES),
                 ScalarType::Bool, ScalarType::BFloat16);
}

void share_out(int64_t parts, int64_t work_each, c10::function_ref<void(int64_t, int64_t)> body) {
  at::parallel_for(0, parts, std::max<int64_t>(1, kGrain / std::max<int64_t>(work_each, 1)), body);
}

// A sum of slices. The result is [outer][rows][inner], what is added [outer][n][inner]; both are contiguous.
struct Scatter {
  int64_t outer, rows, n, inner;

  // Slice k goes to row places[k], nowhere if that is negative.
  void add_slices(const Tensor& to, const Tensor& from, const std::vector<int64_t>& places) const {
    for_dtype(to.scalar_type(), [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      T* const out = static_cast<T*>(to.mutable_data_ptr());
      const T* const in = static_cast<const T*>(from.const_data_ptr());
      const int64_t line = std::max<int64_t>(1, kLine / static_cast<int64_t>(sizeof(T)));
      const int64_t lines = (inner + line - 1) / line;
      // Threads own lines of the inner dims; where these are too few, indices of the outer ones.
      const bool by_line = outer < at::get_num_threads() && lines > 1;
      share_out(by_line ? lines : outer, by_line ? outer * n * line : n * inner, [&](int64_t begin, int64_t end) {
        const int64_t first = by_line ? begin * line : 0, last = by_line ? std::min(end * line, inner) : inner;
        for (int64_t o = by_line ? 0 : begin; o < (by_line ? outer : end); ++o) {
          T* const slice = out + o * rows * inner;
          const T* const source = in + o * n * inner;
          if (inner == 1) {
            for (int64_t k = 0; k < n; ++k) {
              if (places[k] >= 0) slice[places[k]] = sum(slice[places[k]], source[k]);
            }
            continue;
          }
          for (int64_t k = 0; k < n; ++k) {
            if (places[k] >= 0) add_row(slice + places[k] * inner + first, source + k * inner + first, last - first);
          }
        }
      });
    });
  }
};

int64_t product(c10::IntArrayRef sizes) { return c10::multiply_integers(sizes); }

bool indexes(const Tensor& t) { return t.scalar_type() == ScalarType::Long || t.scalar_type() == ScalarType::Int; }

bool added_here(ScalarType dtype) { return compiled_dtype(dtype) && dtype != ScalarType::Half; }

template <typename F>
void for_index(const Tensor& index, const F& f) {
  if (index.scalar_type() == ScalarType::Int)
    f(index.const_data_ptr<int32_t>());
  else
    f(index.const_data_ptr<int64_t>());
}

// The contiguous tensor that a result is added up in, which is itself if it can be.
class Target {
 public:
  explicit Target(Tensor result) : result_(std::move(result)), sums_(result_.contiguous()) {}
  const Tensor& sums() const { return sums_; }
  void deliver() const {
    if (!sums_.is_same(result_)) result_.copy_(sums_);
  }

 private:
  const Tensor result_, sums_;
};

// Whether some element of a tensor may be reached by several ways.
bool overlaps_itself(const Tensor& t) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // (stride, size)
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1) dims.emplace_back(t.stride(d), t.size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // of the dims of smaller strides
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

// Whether what an op writes overlaps neither itself nor what it reads: its sums may be made anywhere, in any order.
bool apart(const OpVariant& variant, const Tensor& self, std::initializer_list<const Tensor*> read) {
  if (variant.kind != VariantKind::kInPlace && variant.functional) return true;  // it writes a copy
  return !overlaps_itself(self) && std::none_of(read.begin(), read.end(), [&](const Tensor* t) {
    return t->storage().data() == self.storage().data();
  });
}

void give(Stack& stack, Tensor result) {
  stack.clear();
  stack.emplace_back(std::move(result));
}

// Runs an op that adds to its first argument, or to a copy of it, and gives what it added to.
void add_to_first(const OpVariant& variant, Stack& stack, const Scatter& scatter, const Tensor& from,
                  const std::vector<int64_t>& places) {
  const Tensor self = stack[0].toTensor();
  const Tensor result = variant.kind == VariantKind::kInPlace ? self : self.clone(at::MemoryFormat::Contiguous);
  const Target target(result);
  scatter.add_slices(target.sums(), from.contiguous(), places);
  target.deliver();
  give(stack, result);
}

}  // namespace

bool run_embedding_backward(const OpVariant&, Stack& stack) {
  const Tensor grad = stack[0].toTensor(), indices = stack[1].toTensor();
  const int64_t weights = stack[2].toInt(), padding = stack[3].toInt();
  if (stack[4].toBool() || !indexes(indices) || !added_here(grad.scalar_type())) return false;
  if (grad.dim() != indices.dim() + 1 || grad.sizes().slice(0, indices.dim()) != indices.sizes()) return false;
  const int64_t each = grad.size(-1), n = indices.numel();
  const Tensor result = at::empty({weights, each}, grad.options()), index = indices.contiguous();
  std::vector<int64_t> places(n);
  for_index(index, [&](const auto* at) {
    for (int64_t k = 0; k < n; ++k) places[k] = at[k] == padding || at[k] < 0 || at[k] >= weights ? -1 : at[k];
  });
  auto* const memory = static_cast<char*>(result.mutable_data_ptr());
  const auto row = each * static_cast<int64_t>(result.itemsize());
  share_out(weights, each,
            [&](int64_t begin, int64_t end) { std::memset(memory + begin * row, 0, (end - begin) * row); });
  Scatter{1, weights, n, each}.add_slices(result, grad.contiguous(), places);
  give(stack, result);
  return true;
}

bool run_index_add(const OpVariant& variant, Stack& stack) {
  const Tensor self = stack[0].toTensor(), index = stack[2].toTensor(), source = stack[3].toTensor();
  const bool plain = self.dim() > 1 && self.dim() == source.dim() && index.dim() == 1 && indexes(index) &&
                     self.scalar_type() == source.scalar_type() && added_here(self.scalar_type()) &&
                     stack[4].toScalar().equal(1);
  if (!plain || !apart(variant, self, {&index, &source})) return false;
  const int64_t dim = c10::maybe_wrap_dim(stack[1].toInt(), self.dim());
  const int64_t n = index.numel(), rows = self.size(dim);
  c10::DimVector sizes(self.sizes());
  sizes[dim] = n;
  if (source.sizes() != c10::IntArrayRef(sizes)) return false;
  const Tensor where = index.contiguous();
  std::vector<int64_t> places(n);
  for_index(where, [&](const auto* at) {
    for (int64_t k = 0; k < n; ++k) {
      TORCH_CHECK_INDEX(at[k] >= 0 && at[k] < rows, "index out of range in self: index ", at[k],
                        " is out of bounds for dimension ", dim, " with size ", rows);
      places[k] = at[k];
    }
  });
  const Scatter scatter{product(self.sizes().slice(0, dim)), rows, n, product(self.sizes().slice(dim + 1))};
  add_to_first(variant, stack, scatter, source, places);
  return true;
}

// Of these only what adds: what overwrites is ATen's.

bool run_put(const OpVariant& variant, Stack& stack) {
  const Tensor self = stack[0].toTensor(), index = stack[1].toTensor(), source = stack[2].toTensor();
  const int64_t n = index.numel(), size = self.numel();
  if (!stack[3].toBool() || !indexes(index) || source.numel() != n || self.scalar_type() != source.scalar_type() ||
      !added_here(self.scalar_type()) || !apart(variant, self, {&index, &source}))
    return false;
  std::vector<int64_t> places(n);
  for_index(index.contiguous(), [&](const auto* at) {
    for (int64_t k = 0; k < n; ++k) {
      TORCH_CHECK_INDEX(at[k] >= -size && at[k] < size, "out of range: tried to access index ", at[k],
                        " on a tensor of ", size, " elements.");
      places[k] = at[k] + (at[k] < 0 ? size : 0);
    }
  });
  add_to_first(variant, stack, {1, size, n, 1}, source, places);
  return true;
}

bool run_index_put(const OpVariant& variant, Stack& stack) {
  const Tensor self = stack[0].toTensor(), values = stack[2].toTensor();
  if (!stack[3].toBool() || self.scalar_type() != values.scalar_type() || !added_here(self.scalar_type())) return false;
  std::vector<Tensor> indices;
  std::vector<int64_t> dims, rest;  // those of the indices; the others
  const auto given = stack[1].toOptionalTensorVector();
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (static_cast<size_t>(d) < given.size() && given[d] && given[d]->defined()) {
      if (!indexes(*given[d]) || !apart(variant, self, {&*given[d]})) return false;
      indices.push_back(*given[d]);
      dims.push_back(d);
    } else {
      rest.push_back(d);
    }
  }
  if (indices.empty() || self.numel() == 0 || !apart(variant, self, {&values})) return false;
  if (indices.size() > 1) indices = at::expand_outplace(indices);
  // The dims of indices that are not next to each other come first, in the values as in what they are added to.
  const bool adjacent = dims.back() - dims.front() + 1 == static_cast<int64_t>(dims.size());
  const auto before = rest.begin() + (adjacent ? dims.front() : 0);
  std::vector<int64_t> order(rest.begin(), before), sizes;
  order.insert(order.end(), dims.begin(), dims.end());
  order.insert(order.end(), before, rest.end());
  Scatter scatter{1, 1, indices[0].numel(), 1};
  const auto walk = [&](auto from, auto to, int64_t& count) {
    for (; from != to; ++from) {
      sizes.push_back(self.size(*from));
      count *= sizes.back();
    }
  };
  walk(rest.begin(), before, scatter.outer);
  sizes.insert(sizes.end(), indices[0].sizes().begin(), indices[0].sizes().end());
  walk(before, rest.end(), scatter.inner);
  if (!at::is_expandable_to(values.sizes(), sizes)) return false;
  std::vector<int64_t> places(scatter.n, 0);
  for (size_t j = 0; j < dims.size(); ++j) {
    const int64_t size = self.size(dims[j]);
    scatter.rows *= size;
    const Tensor index = indices[j].contiguous();
    for_index(index, [&](const auto* at) {
      for (int64_t k = 0; k < scatter.n; ++k) {
        TORCH_CHECK_INDEX(at[k] >= -size && at[k] < size, "index ", at[k], " is out of bounds for dimension ", dims[j],
                          " with size ", size);
        places[k] = places[k] * size + at[k] + (at[k] < 0 ? size : 0);
      }
    });
  }
  const Target target(self.permute(order));
  scatter.add_slices(target.sums(), values.expand(sizes).contiguous(), places);
  target.deliver();
  give(stack, self);
  return true;
}

}  // namespace neuron
