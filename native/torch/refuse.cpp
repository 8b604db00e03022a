#include "refuse.h"

#include <torch/library.h>

namespace neuron {
namespace {

struct Words {
  const char *what, *dense;
};
constexpr Words kWords[] = {
    {"sparse", "x.to_dense()"},
    {"quantized", "x.dequantize()"},
    {"nested", "torch.nested.to_padded_tensor(x, 0.0)"},
    {"mkldnn", "x.to_dense()"},
};

template <Special kSpecial>
void refuse_boxed(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(kSpecial, op.schema().name());
}

template <Special kSpecial>
torch::CppFunction refusal() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse_boxed<kSpecial>>();
}

// nn.TransformerEncoder asks this before it takes the path that packs padded batches into nested tensors.
bool not_for_nested(const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace

void refuse(Special special, const std::string& op) {
  const Words& words = kWords[static_cast<size_t>(special)];
  const size_t colons = op.find("::");
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str("[neuron.", colons == std::string::npos ? op : op.substr(colons + 2), "] the neuron device has no ",
               words.what, " tensors: keep this one on cpu, or move it as ", words.dense, ".to(\"neuron\")"));
}

void check_plain(const at::Tensor& t, const std::string& op) {
  if (t.is_nested()) refuse(Special::kNested, op);
  if (t.layout() == c10::kMkldnn) refuse(Special::kMkldnn, op);
  if (t.layout() != c10::kStrided) refuse(Special::kSparse, op);
  if (t.is_quantized()) refuse(Special::kQuantized, op);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(refusal<Special::kSparse>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(refusal<Special::kSparse>()); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  for (const char* name : {"zeros", "_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe",
                           "_sparse_csc_tensor_unsafe", "_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe"}) {
    m.impl(name, refusal<Special::kSparse>());
  }
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) { m.fallback(refusal<Special::kQuantized>()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(refusal<Special::kNested>()); }

// What makes such tensors of dense ones.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr",
                           "_to_sparse_bsc", "sparse_mask"}) {
    m.impl(name, refusal<Special::kSparse>());
  }
  for (const char* name : {"quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
                           "quantize_per_tensor_dynamic", "quantize_per_channel", "_make_per_tensor_quantized_tensor",
                           "_make_per_channel_quantized_tensor"}) {
    m.impl(name, refusal<Special::kQuantized>());
  }
  m.impl("to_mkldnn", refusal<Special::kMkldnn>());
  m.impl("_nested_tensor_from_mask_left_aligned", &not_for_nested);
  m.impl("_nested_tensor_from_mask", refusal<Special::kNested>());
  m.impl("_nested_view_from_buffer", refusal<Special::kNested>());
}

}  // namespace neuron
