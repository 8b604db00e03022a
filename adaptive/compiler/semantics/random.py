"""Random numbers: each op takes the point's index, a seed and an offset, and what its distribution needs.

float32, bfloat16 and float16 numbers are made of 32 random bits a point, float64 and integers of 64 or 128.
"""

from __future__ import annotations

import math as numbers

from adaptive_eager.compiler.builder import Builder, Val
from adaptive_eager.compiler.philox import bits32, bits64
from adaptive_eager.compiler.polynomial import log_normal_number, normal_quantile
from adaptive_eager.compiler.semantics.arithmetic import product_plus
from adaptive_eager.compiler.semantics.registry import EXACT_ALL, row
from adaptive_eager.compiler.vecmath import math

_PLACE = ("i64", "i64", "i64")
#: Random bits of a uniform number: as many as the dtype's significand has.
_DIGITS = {"f32": 24, "f16": 11, "bf16": 8, "f64": 52}


def _double(b: Builder, bits: Val) -> Val:
    """k / 2**52 for the upper 52 of 64 bits."""
    pattern = b.or_(b.binary("lshr", bits, b.const("i64", 12)), b.const("i64", 0x3FF0000000000000))
    return b.fsub(b.convert("bitcast", pattern, "double"), b.const("double", 1.0))


def _from_zero(b: Builder, place, dtype: str) -> Val:
    """Uniform in [0, 1), of the dtype's own digits."""
    if dtype == "f64":
        return _double(b, bits64(b, *place)[0])
    digits = _DIGITS[dtype]
    word = b.binary("lshr", bits32(b, *place), b.const("i32", 32 - digits))
    return b.fmul(b.convert("sitofp", word, "float"), b.const("float", 2.0**-digits))


def _scaled(b: Builder, word: Val) -> Val:
    """(k + 1/2) / 2**31 for the lower 31 of 32 bits: in (0, 1], fine near 0."""
    whole = b.convert("sitofp", b.and_(word, b.const("i32", 0x7FFFFFFF)), "float")
    return product_plus(b, whole, b.const("float", 2.0**-31), b.const("float", 2.0**-32), "f32")


def _positive(b: Builder, bits: Val) -> Val:
    """(k + 1/2) / 2**52: in (0, 1)."""
    return b.fadd(_double(b, bits), b.const("double", 2.0**-53))


def _signed(b: Builder, size: Val, word: Val) -> Val:
    """The size with the word's highest bit as its sign."""
    sign = b.and_(word, b.const("i32", -(2**31)))
    return b.convert("bitcast", b.or_(b.as_bits(size), sign), "float")


def _standard_normal(b: Builder, place, dtype: str) -> Val:
    if dtype == "f64":
        first, second = bits64(b, *place)
        radius = b.sqrt(b.fmul(math(b, "log", _positive(b, first)), b.const("double", -2.0)))
        return b.fmul(radius, math(b, "cos", b.fmul(_double(b, second), b.const("double", 2 * numbers.pi))))
    word = bits32(b, *place)
    return _signed(b, normal_quantile(b, _scaled(b, word)), word)


def _standard_exponential(b: Builder, place, dtype: str) -> Val:
    """-log(u), never 0."""
    if dtype == "f64":
        return b.fneg(math(b, "log", _positive(b, bits64(b, *place)[0])))
    value = b.fneg(log_normal_number(b, _scaled(b, bits32(b, *place))))
    least = b.const("float", 2.0**-24 if dtype == "f16" else 2.0**-33)
    return b.select(b.fcmp("olt", value, least), least, value)


@row("bernoulli", 4, result="bool", domain="float", operands=_PLACE)
def _bernoulli(b, args, dtype, attrs):
    """1 with chance p. A p of a tensor is data: checked here."""
    *place, p = args
    one, zero = b.const(p.ty, 1.0), b.const(p.ty, 0.0)
    if 3 not in b.scalar_operands:
        b.report_if_any(b.not_(b.and_(b.fcmp("oge", p, zero), b.fcmp("ole", p, one))))
        return b.fcmp("olt", _from_zero(b, place, "f64" if dtype == "f64" else "f32"), p)
    limit = b.intrinsic("ceil", b.fmul(p, b.const(p.ty, 2.0**32)))
    least = b.convert("trunc", b.sub(b.convert("fptosi", limit, "i64"), b.const("i64", 1)), "i32")
    return b.and_(b.icmp("ule", bits32(b, *place), least), b.fcmp("ogt", p, zero))


@row("uniform_", 6, domain="float", operands=_PLACE, exact_scalars=EXACT_ALL)
def _uniform(b, args, dtype, attrs):
    """first + u * length, at most `last`"""
    *place, first, length, last = args
    value = product_plus(b, _from_zero(b, place, dtype), length, first, dtype)
    return b.select(b.fcmp("olt", value, last), value, last)


@row("normal_", 5, domain="float", operands=_PLACE, exact_scalars=EXACT_ALL)
def _normal(b, args, dtype, attrs):
    *place, mean, deviation = args
    return product_plus(b, _standard_normal(b, place, dtype), deviation, mean, dtype)


@row("log_normal_", 5, domain="float", operands=_PLACE, exact_scalars=EXACT_ALL)
def _log_normal(b, args, dtype, attrs):
    return math(b, "exp", _normal(b, args, dtype, attrs))


@row("exponential_", 4, domain="float", operands=_PLACE, exact_scalars=EXACT_ALL)
def _exponential(b, args, dtype, attrs):
    *place, rate = args
    return b.fdiv(_standard_exponential(b, place, dtype), rate)


@row("geometric_", 4, domain="float", operands=_PLACE, exact_scalars=EXACT_ALL)
def _geometric(b, args, dtype, attrs):
    """ceil(-log(u) * scale), where scale is -1 / log(1 - p)"""
    *place, scale = args
    value = b.intrinsic("ceil", b.fmul(_standard_exponential(b, place, dtype), scale))
    one = b.const(value.ty, 1.0)
    return b.select(b.fcmp("olt", value, one), one, value)


@row("cauchy_", 5, domain="float", operands=_PLACE, exact_scalars=EXACT_ALL)
def _cauchy(b, args, dtype, attrs):
    """median + scale / tan(pi * d), where d is the chance beyond, on either side"""
    *place, median, scale = args
    if dtype == "f64":
        first, second = bits64(b, *place)
        size = b.fmul(_positive(b, first), b.const("double", numbers.pi / 2))
        sign = b.and_(second, b.const("i64", -(2**63)))
        angle = b.convert("bitcast", b.or_(b.as_bits(size), sign), "double")
    else:
        word = bits32(b, *place)
        angle = _signed(b, b.fmul(_scaled(b, word), b.const("float", numbers.pi / 2)), word)
    return b.fadd(median, b.fdiv(scale, math(b, "tan", angle)))


@row("random_", 5, domain="integer", operands=_PLACE)
def _random(b, args, dtype, attrs):
    """base + the upper half of the 128-bit product of 64 random bits and the range; a range of 0 is 2**64."""
    *place, base, count = args
    bits = bits64(b, *place)[0]

    def low(x: Val) -> Val:
        return b.and_(x, b.const("i64", 0xFFFFFFFF))

    def high(x: Val) -> Val:
        return b.binary("lshr", x, b.const("i64", 32))

    def times(x: Val, y: Val) -> Val:
        return b.mul(low(x), low(y))

    middle = b.add(times(high(bits), count), high(times(bits, count)))
    other = b.add(times(bits, high(count)), low(middle))
    upper = b.add(b.add(times(high(bits), high(count)), high(middle)), high(other))
    return b.add(base, b.select(b.icmp("eq", count, b.const("i64", 0)), bits, upper))
