// Random fills: recorded like any pointwise op. A call takes a stream of its generator, and its number and the position
// of an element make the element's value; so it is the same whoever computes it, and when.
//
// The checks are ATen's own: its templates of the fills, around kernels that record.

#include "random_ops.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "generator.h"
#include "recorder.h"
#include "tensor_ops.h"

namespace neuron {
namespace {

using at::Tensor;
using at::TensorIteratorBase;
using c10::ScalarType;
using Generator = std::optional<at::Generator>;
namespace templates = at::native::templates;

const OpRow kBernoulli = map_row("bernoulli");
const OpRow kUniform = map_row("uniform_");
const OpRow kNormal = map_row("normal_");
const OpRow kLogNormal = map_row("log_normal_");
const OpRow kExponential = map_row("exponential_");
const OpRow kGeometric = map_row("geometric_");
const OpRow kCauchy = map_row("cauchy_");
const OpRow kIntegers = map_row("random_");

// A generator of the device brings a tensor of another one here.
void check_device(const Tensor& self) {
  TORCH_CHECK(self.device().type() == kNeuron, "Expected a '", self.device().type(),
              "' device type for generator but found 'neuron'");
}

// Records a fill of `self`; `more` adds what comes after seed and offset.
template <typename More>
void record(const Tensor& self, const OpRow& row, const Generator& generator, ScalarType compute, ScalarType result,
            const More& more) {
  check_device(self);
  at::assert_no_internal_overlap(self);
  const int device = self.device().index();
  const Draw d = draw(generator, device);
  Recording r(recorder(device), row);
  r.scalar(d.seed);
  r.scalar(d.offset);
  more(r);
  r.overwritten(self.unsafeGetTensorImpl());
  r.finish(compute, result);
}

// Fills what no kernel is compiled for (more dims, other integers) by way of a tensor of `dtype` in logical order.
template <typename Fill>
void by_way_of(const Tensor& self, ScalarType dtype, const Fill& fill) {
  check_device(self);
  Tensor flat = at::empty({self.numel()}, self.options().dtype(dtype));
  fill(flat);
  self.copy_(flat.view(self.sizes()));
}

// A fill by numbers alone, of a float dtype.
void fill_float(const Tensor& self, const OpRow& row, const Generator& generator, std::initializer_list<double> numbers,
                const char* name) {
  const ScalarType dtype = self.scalar_type();
  if (!at::isFloatingType(dtype)) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, '"', name, "\" not implemented for '", c10::toString(dtype), "'");
  }
  if (!mapped(self)) {
    return by_way_of(self, dtype, [&](const Tensor& flat) { fill_float(flat, row, generator, numbers, name); });
  }
  record(self, row, generator, dtype, dtype, [&](Recording& r) {
    for (double n : numbers) r.scalar(n);
  });
}

// Each template takes a kernel class by the generator's type; ours know one generator.
struct Any;

// ---- floats ----

// The largest value of a half type below `x`.
template <typename T>
double half_below(double x) {
  T top = static_cast<T>(static_cast<float>(x));
  if (static_cast<double>(top) < x) return top;
  const bool negative = top.x & 0x8000, zero = (top.x & 0x7fff) == 0;
  top.x = zero ? 0x8001 : negative ? top.x + 1 : top.x - 1;
  return top;
}

// The largest value of a dtype below `x`.
double below(ScalarType dtype, double x) {
  if (dtype == ScalarType::Half) return half_below<c10::Half>(x);
  if (dtype == ScalarType::BFloat16) return half_below<c10::BFloat16>(x);
  constexpr double kDown = -std::numeric_limits<double>::infinity();
  if (dtype != ScalarType::Float) return std::nextafter(x, kDown);
  const auto top = static_cast<float>(x);
  return top < x ? top : std::nextafter(top, static_cast<float>(kDown));
}

template <typename>
struct Uniform {
  void operator()(TensorIteratorBase& iter, double from, double to, const Generator& generator) const {
    const Tensor& self = iter.tensor(0);
    const double last = std::max(from, below(self.scalar_type(), to));
    fill_float(self, kUniform, generator, {from, to - from, last}, "uniform");
  }
};
Tensor& uniform_(Tensor& self, double from, double to, Generator generator) {
  return templates::uniform_impl_<Uniform, Any>(self, from, to, std::move(generator));
}

template <typename>
struct Normal {
  void operator()(const Tensor& self, double mean, double std, const Generator& generator) const {
    fill_float(self, kNormal, generator, {mean, std}, "normal_kernel_cpu");
  }
};
Tensor& normal_(Tensor& self, double mean, double std, Generator generator) {
  return templates::normal_impl_<Normal, Any>(self, mean, std, std::move(generator));
}
template <typename Mean, typename Std>
Tensor normal(Mean mean, Std std, Generator generator) {
  return templates::normal_impl<Normal, Any>(mean, std, std::move(generator));
}
template <typename Mean, typename Std>
Tensor& normal_out(Mean mean, Std std, Generator generator, Tensor& out) {
  return templates::normal_out_impl<Normal, Any>(out, mean, std, std::move(generator));
}

template <typename>
struct LogNormal {
  void operator()(TensorIteratorBase& iter, double mean, double std, const Generator& generator) const {
    fill_float(iter.tensor(0), kLogNormal, generator, {mean, std}, "log_normal_cpu");
  }
};
Tensor& log_normal_(Tensor& self, double mean, double std, Generator generator) {
  return templates::log_normal_impl_<LogNormal, Any>(self, mean, std, std::move(generator));
}

template <typename>
struct Exponential {
  void operator()(TensorIteratorBase& iter, double lambda, const Generator& generator) const {
    TORCH_CHECK(at::isFloatingType(iter.dtype()),
                "Exponential distribution is a continuous probability distribution. dtype must be a floating point but "
                "you specified ",
                iter.dtype());
    fill_float(iter.tensor(0), kExponential, generator, {lambda}, "exponential_cpu");
  }
};
Tensor& exponential_(Tensor& self, double lambda, Generator generator) {
  return templates::exponential_impl_<Exponential, Any>(self, lambda, std::move(generator));
}

template <typename>
struct Cauchy {
  void operator()(TensorIteratorBase& iter, double median, double sigma, const Generator& generator) const {
    fill_float(iter.tensor(0), kCauchy, generator, {median, sigma}, "cauchy_cpu");
  }
};
Tensor& cauchy_(Tensor& self, double median, double sigma, Generator generator) {
  return templates::cauchy_impl_<Cauchy, Any>(self, median, sigma, std::move(generator));
}

// ---- whole numbers ----

void fill_geometric(const Tensor& self, double p, const Generator& generator) {
  const ScalarType dtype = self.scalar_type();
  if (dtype == ScalarType::Bool || !(at::isFloatingType(dtype) || c10::isIntegralType(dtype, false))) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "\"geometric_cpu\" not implemented for '", c10::toString(dtype), "'");
  }
  const ScalarType compute = at::isFloatingType(dtype) ? dtype : ScalarType::Double;
  if (!mapped(self)) {
    return by_way_of(self, compute, [&](const Tensor& flat) { fill_geometric(flat, p, generator); });
  }
  const double scale = -1 / std::log1p(-p);
  record(self, kGeometric, generator, compute, compute, [&](Recording& r) { r.scalar(scale); });
}

template <typename>
struct Geometric {
  void operator()(TensorIteratorBase& iter, double p, const Generator& generator) const {
    fill_geometric(iter.tensor(0), p, generator);
  }
};
Tensor& geometric_(Tensor& self, double p, Generator generator) {
  return templates::geometric_impl_<Geometric, Any>(self, p, std::move(generator));
}

// `range` numbers from `base` on; 0 stands for 2**64.
void fill_integers(const Tensor& self, uint64_t range, int64_t base, const Generator& generator) {
  if (!mapped(self)) {
    return by_way_of(self, ScalarType::Long, [&](const Tensor& flat) { fill_integers(flat, range, base, generator); });
  }
  record(self, kIntegers, generator, ScalarType::Long, ScalarType::Long, [&](Recording& r) {
    r.scalar(base);
    r.scalar(static_cast<int64_t>(range));
  });
}

// Numbers that random_() draws from: all integers that are not negative, in floats those that are exact.
uint64_t whole_range(ScalarType dtype) {
  if (dtype == ScalarType::Bool) return 2;
  uint64_t range = 0;
  if (at::isFloatingType(dtype)) {
    AT_DISPATCH_FLOATING_TYPES_AND2(ScalarType::Half, ScalarType::BFloat16, dtype, "random_kernel_cpu",
                                    [&] { range = (uint64_t{1} << std::numeric_limits<scalar_t>::digits) + 1; });
  } else {
    AT_DISPATCH_V2(dtype, "random_kernel_cpu",
                   AT_WRAP([&] { range = static_cast<uint64_t>(std::numeric_limits<scalar_t>::max()) + 1; }),
                   AT_EXPAND(AT_INTEGRAL_TYPES_V2));
  }
  return range;
}

template <typename>
struct Random {
  void operator()(TensorIteratorBase& iter, const Generator& generator) const {
    fill_integers(iter.tensor(0), whole_range(iter.dtype()), 0, generator);
  }
};
template <typename>
struct RandomFromTo {
  void operator()(TensorIteratorBase& iter, uint64_t range, int64_t base, const Generator& generator) const {
    fill_integers(iter.tensor(0), range, base, generator);
  }
  void operator()(TensorIteratorBase& iter, const Generator& generator) const {
    TORCH_CHECK(iter.dtype() == ScalarType::Long || at::isFloatingType(iter.dtype()),
                "random_full_64_bits_range_kernel_cpu handles only int64, double, float and bfloat16");
    fill_integers(iter.tensor(0), 0, 0, generator);
  }
};
Tensor& random_(Tensor& self, Generator generator) {
  return templates::random_impl<Random, Any>(self, std::move(generator));
}
Tensor& random_from(Tensor& self, int64_t from, std::optional<int64_t> to, Generator generator) {
  return templates::random_from_to_impl<RandomFromTo, Any>(self, from, to, std::move(generator));
}
Tensor& random_to(Tensor& self, int64_t to, Generator generator) {
  return random_from(self, 0, to, std::move(generator));
}

// ---- bernoulli ----

void fill_bernoulli(const Tensor& self, double p, const Generator& generator) {
  if (!mapped(self)) {
    return by_way_of(self, ScalarType::Bool, [&](const Tensor& flat) { fill_bernoulli(flat, p, generator); });
  }
  record(self, kBernoulli, generator, ScalarType::Double, ScalarType::Bool, [&](Recording& r) { r.scalar(p); });
}

template <typename>
struct Bernoulli {
  void operator()(const Tensor& self, double p, const Generator& generator) const {
    fill_bernoulli(self, p, generator);
  }
};
template <typename>
struct BernoulliOfTensor {
  void operator()(const Tensor& self, const Tensor& chances, const Generator& generator) const {
    const ScalarType dtype = chances.scalar_type();
    if (!at::isFloatingType(dtype)) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "\"bernoulli_tensor_cpu_p_\" not implemented for '", c10::toString(dtype),
                                  "'");
    }
    TORCH_CHECK(chances.dim() == 0 || chances.device() == self.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ", self.device(),
                " and ", chances.device(), "!");
    Tensor p = chances.to(self.device()).expand(self.sizes());
    if (!mapped(self)) {
      return by_way_of(self, ScalarType::Bool, [&](const Tensor& flat) { (*this)(flat, p.reshape({-1}), generator); });
    }
    if (!self.is_same(chances)) at::assert_no_partial_overlap(self, p);
    record(self, kBernoulli, generator, dtype, ScalarType::Bool,
           [&](Recording& r) { r.input(p.unsafeGetTensorImpl()); });
  }
};
Tensor& bernoulli_(Tensor& self, double p, Generator generator) {
  return templates::bernoulli_impl_<Bernoulli, Any>(self, p, std::move(generator));
}
Tensor& bernoulli_of_tensor_(Tensor& self, const Tensor& p, Generator generator) {
  return templates::bernoulli_impl_<BernoulliOfTensor, Any>(self, p, std::move(generator));
}
Tensor& bernoulli_out(const Tensor& self, Generator generator, Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliOfTensor, Any>(out, self, std::move(generator));
}

}  // namespace

Tensor dropout_mask(const Tensor& input, double keep) {
  Tensor mask = at::empty_like(input, input.options().dtype(ScalarType::Bool));
  if (!mapped(input)) return mask.bernoulli_(keep);
  const int device = input.device().index();
  const Draw d = draw(std::nullopt, device);
  Recording r(recorder(device), kBernoulli);
  r.input(input.unsafeGetTensorImpl());
  r.scalar(d.seed);
  r.scalar(d.offset);
  r.scalar(keep);
  r.output(mask.unsafeGetTensorImpl(), true);
  r.finish(ScalarType::Double, ScalarType::Bool);
  return mask;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("uniform_", &uniform_);
  m.impl("normal_", &normal_);
  m.impl("normal.Tensor_float", &normal<const Tensor&, double>);
  m.impl("normal.float_Tensor", &normal<double, const Tensor&>);
  m.impl("normal.Tensor_Tensor", &normal<const Tensor&, const Tensor&>);
  m.impl("normal.Tensor_float_out", &normal_out<const Tensor&, double>);
  m.impl("normal.float_Tensor_out", &normal_out<double, const Tensor&>);
  m.impl("normal.Tensor_Tensor_out", &normal_out<const Tensor&, const Tensor&>);
  m.impl("log_normal_", &log_normal_);
  m.impl("exponential_", &exponential_);
  m.impl("cauchy_", &cauchy_);
  m.impl("geometric_", &geometric_);
  m.impl("random_", &random_);
  m.impl("random_.from", &random_from);
  m.impl("random_.to", &random_to);
  m.impl("bernoulli_.float", &bernoulli_);
  m.impl("bernoulli_.Tensor", &bernoulli_of_tensor_);
  m.impl("bernoulli.out", &bernoulli_out);
}

}  // namespace neuron
