#include "first_use.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/flat_hash_map.h>

#include <mutex>

#include "device.h"
#include "fork.h"
#include "hash.h"
#include "host_call.h"

namespace neuron {
namespace {

using c10::IValue;

// Made when the library is loaded, like every lock: one that is being made during a fork would hang the child.
ForkMutex g_proven_mutex;
auto& g_proven = *new ska::flat_hash_set<uint64_t>;

// Sizes as numbers in order of appearance.
class Kind {
 public:
  explicit Kind(const OpVariant& variant) : key_(reinterpret_cast<uint64_t>(&variant)) {}

  void tensor(const at::Tensor& t) {
    if (!t.defined()) return word('U');
    word('T' | static_cast<uint64_t>(t.scalar_type()) << 8 | static_cast<uint64_t>(t.dim()) << 16);
    for (int64_t s : t.sizes()) size(s);
  }
  void value(const IValue& v) {
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isInt()) return number(v.toInt());
    if (v.isBool()) return word('B' | static_cast<uint64_t>(v.toBool()) << 8);
    if (v.isDouble()) return word('D');
    if (v.isString()) return word(hash_text(v.toStringRef()));
    if (!v.isList()) return word(v.isNone() ? 'N' : 'O');
    word('L');
    for (const IValue& e : v.toListRef()) value(e);
    word('E');
  }
  uint64_t key() const { return key_; }

 private:
  static constexpr int64_t kSmall = 8;

  void word(uint64_t w) { key_ = fold_multiply(key_ ^ w, 0x9E3779B97F4A7C15ull) + w; }
  void size(int64_t s) {
    largest_ = std::max(largest_, s);
    if (s <= 1) return word(static_cast<uint64_t>(s));
    for (size_t i = 0; i < n_; ++i) {
      if (seen_[i] == s) return word(2 + i);
    }
    if (n_ < seen_.size()) seen_[n_++] = s;
    word(1 + n_);
  }
  // A dim, a count, a padding: itself if it is small, else how it stands to the sizes.
  void number(int64_t n) {
    word('I');
    if (n >= -kSmall && n <= kSmall) return word(static_cast<uint64_t>(n));
    word(n < 0 ? 'M' : n > largest_ ? 'G' : 'P');
  }

  uint64_t key_;
  std::array<int64_t, 32> seen_;
  size_t n_ = 0;
  int64_t largest_ = 0;
};

}  // namespace

FirstUse::FirstUse(const OpVariant& variant, const torch::jit::Stack& args, const Inference* inference)
    : inference_(variant.kind == VariantKind::kFunctional ? inference : nullptr),
      proven_(inference && inference->proven) {
  if (proven_) return;
  Kind kind(variant);
  for (const IValue& v : args) kind.value(v);
  key_ = kind.key();
  std::lock_guard<ForkMutex> lock(g_proven_mutex);
  proven_ = g_proven.count(key_) != 0;
  if (proven_ && inference) inference->proven = true;
}

void FirstUse::ran(const torch::jit::Stack& results) const {
  if (inference_) {
    const auto n = static_cast<int64_t>(inference_->results.size());
    if (static_cast<int64_t>(results.size()) < n) return;
    for (int64_t k = 0; k < n; ++k) {
      const ResultMeta& said = inference_->results[k];
      const at::Tensor& t = (results.end() - n + k)->toTensor();
      if (t.defined() != said.defined) return;
      if (said.defined && (t.scalar_type() != said.dtype || t.sizes() != c10::IntArrayRef(said.sizes))) return;
    }
  }
  taken();
}

void FirstUse::taken() const {
  std::lock_guard<ForkMutex> lock(g_proven_mutex);
  g_proven.insert(key_);
}

bool cpu_takes(const OpVariant& variant, const torch::jit::Stack& args) {
  // Of a row program, sizes among the arguments become one, too, and an index is the first.
  const bool rows = variant.row->kind == OpKind::kRowProgram;
  const auto one = [&](const at::Tensor& t) {
    if (!t.defined() || t.device().type() != kNeuron) return t;
    const bool index = rows && t.scalar_type() == c10::ScalarType::Long;
    return at::full(std::vector<int64_t>(t.dim(), 1), index ? 0 : 1, t.options().device(c10::kCPU));
  };
  const BackendOnlyGuard guard;
  torch::jit::Stack stack = args;
  const auto& arguments = variant.functional->schema().arguments();
  for (size_t i = 0; i < stack.size(); ++i) {
    IValue& v = stack[i];
    if (v.isTensor())
      v = one(v.toTensor());
    else if (rows && v.isIntList())
      v = std::vector<int64_t>(v.toListRef().size(), 1);
    else if (rows && v.isInt() &&
             (arguments[i].name() == "N" || arguments[i].name() == "C" || arguments[i].name() == "HxW" ||
              arguments[i].name() == "group"))
      v = 1;
  }
  try {
    variant.functional->callBoxed(stack);
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

}  // namespace neuron
