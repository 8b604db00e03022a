// Making, viewing, resizing and copying tensors.

#include "tensor_ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>

#include "fallback.h"
#include "host_call.h"
#include "number.h"
#include "record_boxed.h"
#include "recorder.h"

namespace neuron {

using at::Scalar;
using at::Tensor;
using c10::ScalarType;

namespace {
bool is_neuron(const Tensor& t) { return t.device().type() == kNeuron; }
}  // namespace

OpRow map_row(const char* name) {
  OpRow row;
  row.name = name;
  row.kind = OpKind::kMap;
  row.id = hash_text(std::string("map ") + name);
  return row;
}

bool mapped(const Tensor& t) {
  return is_neuron(t) && compiled_dtype(t.scalar_type()) && t.dim() <= kMaxRank && t.layout() == c10::kStrided &&
         !t.is_conj() && !t.is_neg();
}

// Host bytes into device memory, read now: the caller may change them as soon as this returns.
void upload(const Tensor& dst, const Tensor& src) {
  Recorder& r = recorder(dst.device().index());
  if (!r.pending(dst.storage().unsafeGetStorageImpl())) {
    GilFreeLock execution(r.execution_mutex());
    const BackendOnlyGuard guard;
    host_alias(dst).copy_(src);
    return;
  }
  Tensor staged = new_contiguous_tensor(src.sizes(), src.scalar_type(), dst.device().index());
  upload(staged, src);
  dst.copy_(staged);
}

namespace {

const OpRow kCopy = map_row("copy");
const OpRow kFill = map_row("fill");

int index_of(std::optional<c10::Device> d) { return d && d->has_index() ? d->index() : current_device(); }

// ---- factories ----

Tensor empty(c10::SymIntArrayRef size, std::optional<ScalarType> dtype, std::optional<c10::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!layout || *layout == c10::kStrided, "empty: the neuron device makes strided tensors; got layout ",
              *layout);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  for (int64_t s : sizes) TORCH_CHECK(s >= 0, "Trying to create tensor with negative dimension ", s, ": ", sizes);
  const ScalarType type = dtype.value_or(c10::typeMetaToScalarType(at::get_default_dtype()));
  Tensor t = new_contiguous_tensor(sizes, type, index_of(device));
  if (format && *format != c10::MemoryFormat::Contiguous && *format != c10::MemoryFormat::Preserve) {
    t.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return t;
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  return new_tensor(sizes, strides, dtype.value_or(c10::typeMetaToScalarType(at::get_default_dtype())),
                    index_of(device));
}

// torch's lazily zero tensors have no memory; a device tensor always has.
Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<ScalarType> dtype, std::optional<c10::Layout> layout,
                       std::optional<c10::Device> device, std::optional<bool> pin) {
  return empty(size, dtype, layout, device, pin, std::nullopt).zero_();
}

// ---- views: metadata over shared storage ----

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}
Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
Tensor unfold(const Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

// ---- storage ----

Tensor& set_storage(Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset.guard_int(__FILE__, __LINE__),
                                      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
Tensor& set_whole_storage(Tensor& self, c10::Storage source) { return at::native::set_(self, std::move(source)); }
Tensor& set_tensor(Tensor& self, const Tensor& source) { return at::native::set_tensor_(self, source); }
// `param.data = tensor`, which Module.to() uses to keep Parameter objects, may change to and from this device, as
// between torch's own: tied weights stay tied, and optimizers keep what they hold.
bool compatible_for_set_data(const Tensor& self, const Tensor& from) {
  const auto plain = [](const Tensor& t) {
    return t.layout() == c10::kStrided && (is_neuron(t) || t.device().is_cpu()) &&
           !t.unsafeGetTensorImpl()->is_python_dispatch();
  };
  return plain(self) && plain(from);
}

Tensor& set_empty(Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocate(0, self.device().index()), allocator(), true);
  return at::native::set_(self, std::move(storage));
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  at::detail::check_size_nonnegative(sizes);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    const auto offset = static_cast<size_t>(self.storage_offset());
    const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    const size_t bytes = empty ? 0 : at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), offset);
    c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
    TORCH_CHECK(bytes <= storage->nbytes() || storage->resizable(), "Trying to resize storage that is not resizable");
    if (bytes > storage->nbytes()) resize_storage(storage, bytes);
    impl->set_sizes_contiguous(sizes);
  }
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

}  // namespace

// ---- copies ----

void copy_part(const Tensor& self, const Tensor& source, Part part) {
  const ScalarType dtype = self.scalar_type();
  Recording rec(recorder(self.device().index()), kCopy);
  rec.input(source.unsafeGetTensorImpl());
  rec.overwritten(self.unsafeGetTensorImpl(), part);
  rec.finish(dtype, dtype);
}

void copy_reversed(const Tensor& self, const Tensor& source, std::bitset<64> dims) {
  c10::DimVector strides(source.strides());
  int64_t offset = source.storage_offset();
  for (int64_t d = 0; d < source.dim(); ++d) {
    if (!dims[d]) continue;
    offset += (source.size(d) - 1) * strides[d];
    strides[d] = -strides[d];
  }
  const ScalarType dtype = self.scalar_type();
  Recording rec(recorder(self.device().index()), kCopy);
  rec.input(source.unsafeGetTensorImpl(), strides, offset);
  rec.overwritten(self.unsafeGetTensorImpl());
  rec.finish(dtype, dtype);
}

namespace {

Tensor& copy(Tensor& self, const Tensor& source, bool) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(self.defined() && source.defined(), "copy_: self and src must be defined tensors");
  const bool same_sizes = source.sizes() == self.sizes();
  if (!same_sizes && !at::is_expandable_to(source.sizes(), self.sizes())) {
    TORCH_CHECK(false, "output with shape ", self.sizes(), " doesn't match the broadcast shape ",
                c10::IntArrayRef(at::infer_size(self.sizes(), source.sizes())));
  }
  at::assert_no_internal_overlap(self);
  const Tensor src = same_sizes ? source : source.expand_as(self);
  if (self.device() == src.device() && mapped(self) && mapped(src)) {
    at::assert_no_partial_overlap(self, src);
    copy_part(self, src, {});
    return self;
  }
  if (is_neuron(src))
    recorder(src.device().index()).flush(is_neuron(self) ? FlushCause::kForeignDevice : FlushCause::kHostRead);
  if (is_neuron(self) && !is_neuron(src)) {
    upload(self, src);
    return self;
  }
  const int device = is_neuron(src) ? src.device().index() : self.device().index();
  if (is_neuron(self)) recorder(self.device().index()).flush(FlushCause::kForeignDevice);
  GilFreeLock execution(recorder(device).execution_mutex());
  const BackendOnlyGuard guard;
  Tensor target = is_neuron(self) ? host_alias(self) : self;
  target.copy_(is_neuron(src) ? host_alias(src) : src);
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  Tensor target = dst;
  return copy(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

Scalar local_scalar_dense(const Tensor& self) {
  Recorder& r = recorder(self.device().index());
  r.flush(FlushCause::kHostRead);
  GilFreeLock execution(r.execution_mutex());
  const BackendOnlyGuard guard;
  return host_alias(self).item();
}

}  // namespace

// ---- fills ----

Tensor& fill(Tensor& self, const Scalar& value) {
  fill_part(self, value, {});
  return self;
}

void fill_part(Tensor& self, const Scalar& value, Part part) {
  // An expanded dim is filled by filling one of it.
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (self.stride(d) == 0 && self.size(d) > 1) {
      Tensor one = self.narrow(d, 0, 1);
      return fill_part(one, value, part);
    }
  }
  at::assert_no_internal_overlap(self);
  // torch fills a single half without a check.
  if (!value.isComplex() && !(self.numel() == 1 && c10::isReducedFloatingType(self.scalar_type())))
    check_number(self.scalar_type(), value);
  if (!mapped(self) || value.isComplex()) {
    recorder(self.device().index()).flush(FlushCause::kFallback);
    const BackendOnlyGuard guard;
    host_alias(self).fill_(value);
    return;
  }
  const ScalarType dtype = self.scalar_type();
  Recording rec(recorder(self.device().index()), kFill);
  rec.scalar(value);
  rec.overwritten(self.unsafeGetTensorImpl(), part);
  rec.finish(dtype, dtype);
}

namespace {

Tensor& zero(Tensor& self) { return fill(self, int64_t{0}); }

Tensor& fill_tensor(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (!is_neuron(value)) return fill(self, value.item());
  return copy(self, value.expand_as(self), false);
}

void no_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zeros);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  m.impl("_has_compatible_shallow_copy_type", &compatible_for_set_data);
  m.impl("resize_", &resize);
  m.impl("copy_", &copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("fill_.Scalar", &fill);
  m.impl("fill_.Tensor", &fill_tensor);
  m.impl("zero_", &zero);
  m.impl("record_stream", torch::CppFunction::makeFromBoxedFunction<&no_operation>());
}

}  // namespace neuron
