#include "row_hooks.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/strides.h>

#include "activations.h"
#include "host_call.h"
#include "indexing.h"
#include "infer.h"
#include "losses.h"
#include "movement_ops.h"
#include "nested.h"
#include "normalization.h"
#include "op_table.h"
#include "reductions.h"
#include "scatter.h"

namespace neuron {
namespace {

using at::Tensor;
using c10::IValue;
using c10::ScalarType;
using torch::jit::Stack;

bool given(const IValue& v) { return v.isTensor() && v.toTensor().defined(); }

// ---- checks ----

void check_where(const OpVariant&, const Stack& args, const Tensor&) {
  const ScalarType condition = args[0].toTensor().scalar_type();
  TORCH_CHECK(condition == ScalarType::Bool || condition == ScalarType::Byte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ",
              c10::toString(condition));
}

void check_gelu(const OpVariant&, const Stack& args, const Tensor&) {
  const auto& approximate = args.back().toStringRef();
  TORCH_CHECK(approximate == "none" || approximate == "tanh", "approximate argument must be either none or tanh.");
}

void check_masked_fill(const OpVariant&, const Stack& args, const Tensor&) {
  const Tensor mask = args[1].toTensor();
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.dtype());
  if (!given(args[2])) return;
  TORCH_CHECK(args[2].toTensor().dim() == 0,
              "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", args[2].toTensor().dim(),
              " dimension(s).");
}

// Lets the CPU's kernel check the arguments: it does so before it computes, also on a tensor without elements.
void try_without_elements(const OpVariant& variant, Stack stack) {
  stack[0] = at::empty({0}, stack[0].toTensor().options().device(c10::kCPU));
  const BackendOnlyGuard guard;
  variant.handle.callBoxed(stack);
}

void check_softshrink(const OpVariant& variant, const Stack& args, const Tensor&) {
  const double lambda = args[1].toScalar().toDouble();
  const bool usual = lambda >= 0 && lambda < 1e4;
  if (!usual && variant.kind == VariantKind::kFunctional) try_without_elements(variant, args);
}

void check_extremum(const OpVariant& variant, const Stack& args, const Tensor& written) {
  const ScalarType dtype = args[0].toTensor().scalar_type();
  TORCH_CHECK(variant.kind != VariantKind::kOut || written.scalar_type() == dtype,
              "Expected the dtype for input and out to match, but got ", c10::toString(dtype),
              " for input's dtype and ", c10::toString(written.scalar_type()), " for out's dtype.");
}

void check_cat(const OpVariant&, const Stack& args, const Tensor& written) {
  if (!written.defined()) return;
  const ScalarType out = written.scalar_type();
  TORCH_CHECK_TYPE(c10::canCast(at::native::result_type(args[0].toTensorVector()), out),
                   "torch.cat(): input types can't be cast to the desired output type ", out);
  at::assert_no_internal_overlap(written);
  for (const Tensor& t : args[0].toTensorVector()) at::assert_no_overlap(written, t);
}

// What a look-up writes: of the table's dtype, each element once, and none that it reads.
void check_look_up(const OpVariant& variant, const Stack& args, const Tensor& written) {
  if (variant.kind != VariantKind::kOut) return;
  const Tensor table = args[0].toTensor();
  if (written.scalar_type() != table.scalar_type()) {
    const std::string& op = variant.row->name;
    TORCH_CHECK(op != "index_select", "index_select(): self and result must have the same scalar type");
    TORCH_CHECK(op != "index", "index_out: self (", table.scalar_type(), ") and result (", written.scalar_type(),
                ") must have the same scalar type");
    TORCH_CHECK(op != "take",
                "take(): self and out expected to have the same dtype, but got self.dtype = ", table.scalar_type(),
                " and out.dtype = ", written.scalar_type());
    TORCH_CHECK(false, "Expected out tensor to have dtype ", table.dtype(), ", but got ", written.dtype(), " instead");
  }
  at::assert_no_internal_overlap(written);
  for (const IValue& v : args) {
    for_each_tensor(v, [&](const Tensor& t) {
      if (t.defined() && t.device() == written.device()) at::assert_no_overlap(written, t);
    });
  }
}

// ---- corrections ----

// The statistics have the dtype of the parameters, where there are some: float32 beside half inputs, in mixed training.
void set_statistics(Inference& inference, const Stack& args, std::initializer_list<size_t> parameters) {
  ScalarType dtype = args[0].toTensor().scalar_type();
  for (size_t i : parameters) {
    if (!given(args[i])) continue;
    dtype = args[i].toTensor().scalar_type();
    break;
  }
  inference.results[1].dtype = inference.results[2].dtype = dtype;
}

void set_contiguous(ResultMeta& result, c10::MemoryFormat format = c10::MemoryFormat::Contiguous) {
  if (format == c10::MemoryFormat::ChannelsLast) {
    result.strides = c10::get_channels_last_strides_2d(result.sizes);
  } else if (format == c10::MemoryFormat::ChannelsLast3d) {
    result.strides = c10::get_channels_last_strides_3d(result.sizes);
  } else {
    const auto strides = c10::contiguous_strides(result.sizes);
    result.strides.assign(strides.begin(), strides.end());
  }
}

void correct_masked_fill(Inference& inference, const Stack&) { set_contiguous(inference.results[0]); }

void correct_layer_norm(Inference& inference, const Stack& args) {
  set_statistics(inference, args, {2, 3});
  set_contiguous(inference.results[0]);
}

void correct_group_norm(Inference& inference, const Stack& args) {
  set_statistics(inference, args, {1, 2});
  set_contiguous(inference.results[0], args[0].toTensor().suggest_memory_format());
}

void correct_layer_norm_backward(Inference& inference, const Stack&) {
  if (inference.results[0].defined) set_contiguous(inference.results[0]);
}

// CPU saves no statistics in evaluation.
void correct_batch_norm(Inference& inference, const Stack& args) {
  set_statistics(inference, args, {1, 2, 3, 4});
  set_contiguous(inference.results[0], args[0].toTensor().suggest_memory_format());
  if (args[5].toBool()) return;
  for (size_t k : {1, 2}) {
    inference.results[k].sizes = {0};
    inference.results[k].strides = {1};
  }
}

// torch's meta function looks at the first slice, which need not exist.
bool infer_index_add(Inference& inference, const Stack& args) {
  const Tensor self = args[0].toTensor(), source = args[3].toTensor();
  const int64_t dim = c10::maybe_wrap_dim(args[1].toInt(), self.dim());
  if (self.dim() == 0 || dim >= source.dim() || (self.size(dim) != 0 && source.size(dim) != 0)) return false;
  inference.results = {{true, self.scalar_type(), self.sizes().vec(), {}}};
  set_contiguous(inference.results[0]);
  return true;
}

using Table = ska::flat_hash_map<std::string, RowHooks>;

Table make_table() {
  Table table;
  table["where"].check = &check_where;
  table["gelu"].check = &check_gelu;
  table["softshrink"].check = &check_softshrink;
  for (const char* name : {"amax", "amin"}) table[name].check = &check_extremum;
  table["masked_fill"] = {&check_masked_fill, &correct_masked_fill};
  table["cat"].check = &check_cat;
  table["cat"].compose = &compose_cat;
  for (const char* name : {"embedding", "gather", "index", "index_select", "take"}) table[name].check = &check_look_up;
  table["embedding"].compose = &compose_embedding;
  table["gather"].compose = &compose_gather;
  table["index"].compose = &compose_index;
  table["index_select"].compose = &compose_index_select;
  table["take"].compose = &compose_take;
  table["index_add"].infer = &infer_index_add;
  table["embedding_dense_backward"].run = &run_embedding_backward;
  table["index_add"].run = &run_index_add;
  table["put"].run = &run_put;
  table["_index_put_impl_"].run = &run_index_put;
  table["native_layer_norm"] = {nullptr, &correct_layer_norm, &arrange_layer_norm};
  table["native_group_norm"] = {nullptr, &correct_group_norm, &arrange_group_norm, 1};
  table["native_batch_norm"] = {nullptr, &correct_batch_norm, &arrange_batch_norm};
  for (const char* name : {"nll_loss_backward", "nll_loss2d_backward"})
    table[name].arrange = &arrange_nll_loss_backward;
  table["nll_loss_forward"] = {&check_nll_loss, nullptr, &arrange_nll_loss, 1};
  table["nll_loss2d_forward"] = {&check_nll_loss, nullptr, &arrange_nll_loss, 0, nullptr, &infer_nll_loss2d};
  for (const char* name : {"mse_loss", "smooth_l1_loss"}) table[name].arrange = &arrange_loss;
  table["huber_loss"] = {&check_huber_loss, nullptr, &arrange_loss, 0, nullptr, &infer_huber_loss};
  table["binary_cross_entropy"] = {nullptr, nullptr, &arrange_loss, 0, nullptr, &infer_loss};
  for (const char* name :
       {"mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward"})
    table[name] = {nullptr, nullptr, &arrange_loss_backward, 0, nullptr, &infer_loss_backward};
  table["log_sigmoid_forward"] = {nullptr, nullptr, &arrange_log_sigmoid, 0, nullptr, &infer_log_sigmoid};
  table["log_sigmoid_backward"] = {nullptr, nullptr, &arrange_log_sigmoid_backward,
                                   0,       nullptr, &infer_log_sigmoid_backward};
  // The CPU would be asked about one element, which has no halves.
  table["glu"] = {nullptr, nullptr, &arrange_glu, 0, nullptr, nullptr, true};
  table["glu_backward"] = {nullptr, nullptr, &arrange_glu_backward, 0, nullptr, &infer_glu_backward, true};
  table["_prelu_kernel_backward"].infer = &infer_prelu_backward;
  table["native_layer_norm_backward"] = {nullptr, &correct_layer_norm_backward, &arrange_layer_norm_backward};
  table["native_group_norm_backward"] = {nullptr, nullptr, &arrange_group_norm_backward, 1};
  table["native_batch_norm_backward"].arrange = &arrange_batch_norm_backward;
  for (const char* name : {"var", "std"})
    table[name] = {&check_moments, nullptr, &arrange_moments, 0, nullptr, &infer_moments, true};
  for (const char* name : {"var_mean", "std_mean"})
    table[name] = {&check_moments, nullptr, &arrange_moments, 0, nullptr, &infer_two_moments, true};
  table["logsumexp"] = {nullptr, nullptr, &arrange_logsumexp, 0, nullptr, &infer_logsumexp, true};
  table["nansum"].infer = &infer_nansum;
  table["count_nonzero"].infer = &infer_count_nonzero;
  return table;
}

}  // namespace

const RowHooks& row_hooks(const std::string& name) {
  static const Table table = make_table();
  static const RowHooks none;
  const auto it = table.find(name);
  return it == table.end() ? none : it->second;
}

}  // namespace neuron
