#include "number.h"

#include <ATen/OpMathType.h>

namespace neuron {
namespace {

using c10::Scalar;
using c10::ScalarType;

ScalarType held_in(const OpRow& row, ScalarType compute) {
  return row.is(kOpmathNumbers) ? at::toOpMathType(compute) : compute;
}

// Float and double exponents stay double.
bool checked(const OpRow& row, ScalarType compute) {
  if (!row.is(kHeldNumbers) && !row.is(kOpmathNumbers)) return false;
  return !(compute == ScalarType::Float && row.name == "pow");
}

bool negative(const Scalar& s) { return s.isIntegral(false) && s.toLong() < 0; }

template <typename T>
bool holds(const Scalar& s) {
  if (s.isBoolean()) return true;
  if (s.isFloatingPoint()) return !c10::overflows<T>(s.toDouble());
  return !c10::overflows<T>(s.toLong());
}

// f(a value of the dtype's C++ type); true for dtypes that hold every number.
template <typename F>
bool in_type(ScalarType dtype, const F& f) {
  switch (dtype) {
    case ScalarType::Byte:
      return f(uint8_t{});
    case ScalarType::Char:
      return f(int8_t{});
    case ScalarType::Short:
      return f(int16_t{});
    case ScalarType::Int:
      return f(int32_t{});
    case ScalarType::Long:
      return f(int64_t{});
    case ScalarType::Half:
      return f(c10::Half{});
    case ScalarType::BFloat16:
      return f(c10::BFloat16{});
    case ScalarType::Float:
      return f(float{});
    default:
      return true;
  }
}

bool holds(ScalarType dtype, const Scalar& s) {
  return in_type(dtype, [&](auto zero) { return holds<decltype(zero)>(s); });
}

}  // namespace

void check_number(ScalarType dtype, const Scalar& number) {
  in_type(dtype, [&](auto zero) {
    number.to<decltype(zero)>();
    return true;
  });
}

void check_number(const OpRow& row, ScalarType compute, const Scalar& number) {
  if (checked(row, compute)) check_number(held_in(row, compute), number);
}

bool takes_number(const OpRow& row, ScalarType compute, const Scalar& number) {
  if (!checked(row, compute)) return true;
  if (!holds(held_in(row, compute), number)) return false;
  return !(c10::isIntegralType(compute, true) && negative(number) && row.name == "pow");
}

}  // namespace neuron
