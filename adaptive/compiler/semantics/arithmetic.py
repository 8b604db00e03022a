"""Arithmetic: sums, products, quotients, roundings, and the compound forms of them. Formulas follow ATen/native/cpu.

A product and a sum are two ops and two roundings: only `product_plus`, within one op, is a fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from adaptive_eager.compiler.builder import Builder, Val, literal
from adaptive_eager.compiler.conversion import FLOATS, rounded
from adaptive_eager.compiler.semantics import integer
from adaptive_eager.compiler.semantics.registry import EXACT_ALL, row
from adaptive_eager.compiler.vecmath import math


def plus(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    if dtype == "bool":
        return b.or_(x, y)
    return b.fadd(x, y) if dtype in FLOATS else b.add(x, y)


def minus(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    if dtype == "bool":
        return b.xor(x, y)
    return b.fsub(x, y) if dtype in FLOATS else b.sub(x, y)


def times(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    if dtype == "bool":
        return b.and_(x, y)
    return b.fmul(x, y) if dtype in FLOATS else b.mul(x, y)


def product_plus(b: Builder, x: Val, y: Val, z: Val, dtype: str) -> Val:
    """x * y + z, rounded once, as ATen's kernels of one op do it on processors that can."""
    if dtype in FLOATS and b.target.has_fma:
        return b.fma(x, y, z)
    return plus(b, times(b, x, y, dtype), z, dtype)


def _alpha(args) -> Val | None:
    return args[2] if len(args) > 2 else None


def _minus_scaled(b: Builder, x: Val, y: Val, alpha: Val | None, dtype: str) -> Val:
    if alpha is None:
        return minus(b, x, y, dtype)
    if dtype in FLOATS:
        return product_plus(b, y, b.fneg(alpha), x, dtype)
    return minus(b, x, times(b, alpha, y, dtype), dtype)


@row("add", (2, 3))
def _add(b, args, dtype, attrs):
    """a + alpha * b"""
    alpha = _alpha(args)
    if alpha is None:
        return plus(b, args[0], args[1], dtype)
    return product_plus(b, args[1], alpha, args[0], dtype)


@row("sub", (2, 3))
def _sub(b, args, dtype, attrs):
    """a - alpha * b"""
    return _minus_scaled(b, args[0], args[1], _alpha(args), dtype)


@row("rsub", (2, 3))
def _rsub(b, args, dtype, attrs):
    """b - alpha * a"""
    return _minus_scaled(b, args[1], args[0], _alpha(args), dtype)


@row("mul", 2, exact_scalars=EXACT_ALL)
def _mul(b, args, dtype, attrs):
    return times(b, args[0], args[1], dtype)


#: Step of `fmod`'s long way: any two numbers of the type are less than three steps apart, and a step is a number of it.
_STEP = {"float": 2.0**110, "double": 2.0**900}


def fmod(b: Builder, x: Val, y: Val) -> Val:
    """C's fmod. The library's divides, and has no answer where the quotient overflows: there, first by multiples of y,
    which leaves the rest the same."""
    helper = f"fmod_any.{x.ty}"
    if helper not in b.helpers:
        inner = Builder(b.target, b.declarations, b.helpers)
        v, lines = inner.vector(x.ty), inner.streams[0]
        number, divisor = Val("%x", x.ty, 0), Val("%y", x.ty, 0)
        infinite = inner.const(x.ty, inf)
        rest = math(inner, "fmod", number, divisor)
        overflows = inner.fcmp("oeq", inner.fabs(inner.fdiv(number, divisor)), infinite)
        finite = inner.and_(
            inner.fcmp("olt", inner.fabs(number), infinite), inner.fcmp("une", divisor, inner.const(x.ty, 0.0))
        )
        huge = inner.and_(overflows, finite)
        bits = inner.put(0, f"bitcast <{inner.lanes} x i1> {huge.ref} to i{inner.lanes}")
        some = inner.put(0, f"icmp ne i{inner.lanes} {bits}, 0")
        lines.append(f"br i1 {some}, label %long, label %done\ndone:\nret {v} {rest.ref}\nlong:")
        step = inner.const(x.ty, _STEP[x.ty])
        larger = inner.fmul(divisor, step)
        left = number
        for multiple in (inner.fmul(larger, step), larger, divisor):
            is_infinite = inner.fcmp("oeq", inner.fabs(multiple), infinite)
            left = inner.select(is_infinite, left, math(inner, "fmod", left, multiple))
        lines.append(f"ret {v} {inner.select(huge, left, rest).ref}")
        body = "\n".join(lines)
        b.helpers[helper] = f"define internal {v} @{helper}({v} %x, {v} %y) #0 {{\n{body}\n}}"
    return b.call(helper, x.ty, x, y)


def _float_div_floor(b: Builder, x: Val, y: Val) -> Val:
    """Python's // on floats, by way of fmod so that the quotient is not rounded up over a whole number
    (c10::div_floor_floating)."""
    zero, one = b.const(x.ty, 0.0), b.const(x.ty, 1.0)
    rest = fmod(b, x, y)
    quotient = b.fdiv(b.fsub(x, rest), y)
    other_sign = b.xor(b.fcmp("olt", y, zero), b.fcmp("olt", rest, zero))
    inexact = b.and_(b.fcmp("une", rest, zero), other_sign)
    quotient = b.select(inexact, b.fsub(quotient, one), quotient)
    floored = b.intrinsic("floor", quotient)
    too_low = b.fcmp("ogt", b.fsub(quotient, floored), b.const(x.ty, 0.5))
    floored = b.select(too_low, b.fadd(floored, one), floored)
    plain = b.fdiv(x, y)
    floored = b.select(b.fcmp("oeq", quotient, zero), b.copysign(zero, plain), floored)
    # Division by zero, and quotients too large for the type (fmod has no answer then).
    too_large = b.and_(b.fcmp("oeq", b.fabs(plain), b.const(x.ty, inf)), b.fcmp("olt", b.fabs(x), b.const(x.ty, inf)))
    return b.select(b.or_(b.fcmp("oeq", y, zero), too_large), plain, floored)


def _div_floor(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    return _float_div_floor(b, x, y) if dtype in FLOATS else integer.divide_floor(b, x, y, dtype)


@row("div", 2, domain="number", exact_scalars=EXACT_ALL)
def _div(b, args, dtype, attrs):
    """attrs = (), ("floor",) or ("trunc",)."""
    x, y = args
    mode = attrs[0] if attrs else None
    if mode == "floor":
        return _div_floor(b, x, y, dtype)
    if dtype not in FLOATS:
        return integer.divide_trunc(b, x, y, dtype)
    quotient = b.fdiv(x, y)
    if mode == "trunc":  # by a tensor, half types round midway, as in ATen
        return b.intrinsic("trunc", quotient if 1 in b.scalar_operands else rounded(b, quotient, dtype))
    return quotient


@row("floor_divide", 2, domain="number", exact_scalars=frozenset({1}))
def _floor_divide(b, args, dtype, attrs):
    return _div_floor(b, args[0], args[1], dtype)


@row("fmod", 2, domain="number")
def _fmod(b, args, dtype, attrs):
    if dtype in FLOATS:
        return fmod(b, args[0], args[1])
    return integer.remainder_trunc(b, args[0], args[1], dtype)


@row("remainder", 2, domain="number")
def _remainder(b, args, dtype, attrs):
    x, y = args
    if dtype not in FLOATS:
        return integer.remainder_floor(b, x, y, dtype)
    zero = b.const(x.ty, 0.0)
    rest = fmod(b, x, y)
    other_sign = b.xor(b.fcmp("olt", y, zero), b.fcmp("olt", rest, zero))
    return b.select(b.and_(b.fcmp("une", rest, zero), other_sign), b.fadd(rest, y), rest)


@row("abs", 1, domain="number")
def _abs(b, args, dtype, attrs):
    (x,) = args
    if dtype in FLOATS:
        return b.fabs(x)
    if dtype == "u8":
        return x
    zero = b.const(x.ty, 0)
    return b.select(b.icmp("slt", x, zero), b.sub(zero, x), x)


@row("neg", 1, domain="number")
def _neg(b, args, dtype, attrs):
    return b.fneg(args[0]) if dtype in FLOATS else b.sub(b.const(args[0].ty, 0), args[0])


@row("complement", 1, domain="float")
def _complement(b, args, dtype, attrs):
    """1 - x, for adaptive/updates.py: no op of ATen."""
    return b.fsub(b.const(args[0].ty, 1.0), args[0])


@row("reciprocal", 1, domain="float")
def _reciprocal(b, args, dtype, attrs):
    return b.fdiv(b.const(args[0].ty, 1.0), args[0])


@row("sqrt", 1, domain="float")
def _sqrt(b, args, dtype, attrs):
    return b.sqrt(args[0])


@row("rsqrt", 1, domain="float")
def _rsqrt(b, args, dtype, attrs):
    return b.fdiv(b.const(args[0].ty, 1.0), b.sqrt(args[0]))


def _rounding_row(name: str, intrinsic: str) -> None:
    @row(name, 1, domain="number")
    def emit(b, args, dtype, attrs):
        return b.intrinsic(intrinsic, args[0]) if dtype in FLOATS else args[0]


for _name, _intrinsic in (("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc"), ("round", "roundeven")):
    _rounding_row(_name, _intrinsic)


@row("frac", 1, domain="float")
def _frac(b, args, dtype, attrs):
    return b.fsub(args[0], b.intrinsic("trunc", args[0]))


@row("copysign", 2, domain="float")
def _copysign(b, args, dtype, attrs):
    return b.copysign(args[0], args[1])


def _value(b, args, dtype, attrs):
    """The operand itself: the conversions around an op do the work."""
    return args[0]


row("copy", 1)(_value)
row("fill", 1)(_value)


@row("lerp", 3, domain="float", exact_scalars=frozenset({2}))
def _lerp(b, args, dtype, attrs):
    """self + weight * (end - self), from whichever end is nearer."""
    start, end, weight = args
    near = b.fcmp("olt", b.fabs(weight), b.const(start.ty, 0.5))
    base = b.select(near, start, end)
    share = b.select(near, weight, b.fsub(weight, b.const(start.ty, 1.0)))
    return product_plus(b, share, b.fsub(end, start), base, dtype)


@row("addcmul", 4, domain="number", exact_scalars=frozenset({3}))
def _addcmul(b, args, dtype, attrs):
    """self + value * t1 * t2"""
    x, first, second, value = args
    return product_plus(b, times(b, value, first, dtype), second, x, dtype)


@row("addcdiv", 4, domain="float", exact_scalars=frozenset({3}))
def _addcdiv(b, args, dtype, attrs):
    """self + value * t1 / t2"""
    x, first, second, value = args
    return b.fadd(x, b.fdiv(b.fmul(value, first), second))


@row("pow", 2, domain="number")
def _pow(b, args, dtype, attrs):
    x, y = args
    if dtype not in FLOATS:
        return integer.power(b, x, y, dtype)
    # Asked of the program, not of the value's loop level: the choice changes bits, and must not depend on fusion.
    if 1 in b.scalar_operands:
        return _pow_uniform(b, x, y, dtype)
    return math(b, "pow", x, y)


#: Exponents with a cheaper and more exact form (ATen's pow_tensor_scalar), and how to build it.
_POWERS: tuple[tuple[float, Callable[[Builder, Val, Val], Val]], ...] = (
    (2.0, lambda b, x, one: b.fmul(x, x)),
    (3.0, lambda b, x, one: b.fmul(b.fmul(x, x), x)),
    (-2.0, lambda b, x, one: b.fdiv(one, b.fmul(x, x))),
    (0.5, lambda b, x, one: b.sqrt(x)),
    (-0.5, lambda b, x, one: b.fdiv(one, b.sqrt(x))),
    (-1.0, lambda b, x, one: b.fdiv(one, x)),
    (1.0, lambda b, x, one: x),
    (0.0, lambda b, x, one: one),
)


def _pow_uniform(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """Power with one exponent for the whole call: a helper branches on its value. ATen has no roots for half."""
    powers = [(p, form) for p, form in _POWERS if dtype != "f16" or abs(p) != 0.5]
    helper = f"pow_uniform.{x.ty}.{len(powers)}"
    if helper not in b.helpers:
        inner = Builder(b.target, b.declarations, b.helpers)
        v, lines = inner.vector(x.ty), inner.streams[0]
        base, one = Val("%x", x.ty, 0), inner.const(x.ty, 1.0)
        exponent = inner.put(0, f"extractelement {v} %y, i32 0")
        for k, (power, form) in enumerate(powers):
            hit = inner.put(0, f"fcmp oeq {x.ty} {exponent}, {literal(x.ty, power)}")
            lines.append(f"br i1 {hit}, label %form{k}, label %else{k}\nform{k}:")
            lines.append(f"ret {v} {form(inner, base, one).ref}\nelse{k}:")
        lines.append(f"ret {v} {math(inner, 'pow', base, Val('%y', x.ty, 0)).ref}")
        body = "\n".join(lines)
        b.helpers[helper] = f"define internal {v} @{helper}({v} %x, {v} %y) #0 {{\n{body}\n}}"
    return b.call(helper, x.ty, x, y)
