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

bool holds(ScalarType dtype, const Scalar& s) {
  switch (dtype) {
    case ScalarType::Byte:
      return holds<uint8_t>(s);
    case ScalarType::Char:
      return holds<int8_t>(s);
    case ScalarType::Short:
      return holds<int16_t>(s);
    case ScalarType::Int:
      return holds<int32_t>(s);
    case ScalarType::Long:
      return holds<int64_t>(s);
    case ScalarType::Half:
      return holds<c10::Half>(s);
    case ScalarType::BFloat16:
      return holds<c10::BFloat16>(s);
    case ScalarType::Float:
      return holds<float>(s);
    default:
      return true;
  }
}

}  // namespace

void check_number(ScalarType dtype, const Scalar& number) {
  switch (dtype) {
    case ScalarType::Byte:
      number.toByte();
      break;
    case ScalarType::Char:
      number.toChar();
      break;
    case ScalarType::Short:
      number.toShort();
      break;
    case ScalarType::Int:
      number.toInt();
      break;
    case ScalarType::Long:
      number.toLong();
      break;
    case ScalarType::Half:
      number.toHalf();
      break;
    case ScalarType::BFloat16:
      number.toBFloat16();
      break;
    case ScalarType::Float:
      number.toFloat();
      break;
    default:
      break;
  }
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
