"""Comparison: ordering, selection, and the ops that look at a value's class. Formulas follow ATen/native/cpu."""

from __future__ import annotations

import math

from adaptive_eager.compiler.builder import Builder, Val
from adaptive_eager.compiler.conversion import FLOATS
from adaptive_eager.compiler.semantics.registry import row


def compare(b: Builder, predicate: str, x: Val, y: Val, dtype: str) -> Val:
    """Ordered comparison (`ne` is unordered): eq ne lt le gt ge; NaN compares false but for ne."""
    if dtype in FLOATS:
        return b.fcmp("une" if predicate == "ne" else f"o{predicate}", x, y)
    if predicate in ("eq", "ne"):
        return b.icmp(predicate, x, y)
    return b.icmp(("u" if dtype in ("u8", "bool") else "s") + predicate, x, y)


def nonzero(b: Builder, x: Val, dtype: str) -> Val:
    if dtype == "bool":
        return x
    zero = b.const(x.ty, 0)
    return b.fcmp("une", x, zero) if dtype in FLOATS else b.icmp("ne", x, zero)


def maximum(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    """Larger of two; NaN of either wins. `llvm.maxnum` would lose it."""
    return _extreme(b, "gt", x, y, dtype)


def minimum(b: Builder, x: Val, y: Val, dtype: str) -> Val:
    return _extreme(b, "lt", x, y, dtype)


def _extreme(b: Builder, predicate: str, x: Val, y: Val, dtype: str) -> Val:
    if dtype == "bool":
        return b.or_(x, y) if predicate == "gt" else b.and_(x, y)
    picked = b.select(compare(b, predicate, x, y, dtype), x, y)
    # Comparisons with NaN are false and so pick y: right when y is the NaN, to be corrected when x is.
    return b.select(b.is_nan(x), x, picked) if dtype in FLOATS else picked


def _comparison_row(name: str) -> None:
    @row(name, 2, result="bool")
    def emit(b, args, dtype, attrs):
        return compare(b, name, args[0], args[1], dtype)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison_row(_name)


@row("maximum", 2)
def _maximum(b, args, dtype, attrs):
    return maximum(b, args[0], args[1], dtype)


@row("minimum", 2)
def _minimum(b, args, dtype, attrs):
    return minimum(b, args[0], args[1], dtype)


def _ignoring_nan(b: Builder, predicate: str, x: Val, y: Val, dtype: str) -> Val:
    if dtype not in FLOATS:
        return _extreme(b, predicate, x, y, dtype)
    return b.select(b.or_(compare(b, predicate, x, y, dtype), b.is_nan(y)), x, y)


@row("fmax", 2)
def _fmax(b, args, dtype, attrs):
    return _ignoring_nan(b, "gt", args[0], args[1], dtype)


@row("fmin", 2)
def _fmin(b, args, dtype, attrs):
    return _ignoring_nan(b, "lt", args[0], args[1], dtype)


def clamp(b: Builder, x: Val, low: Val | None, high: Val | None, dtype: str) -> Val:
    """min(max(x, low), high): the upper bound wins when the bounds cross; NaN in any operand gives NaN."""
    if low is not None:
        x = maximum(b, low, x, dtype)
    if high is not None:
        x = minimum(b, high, x, dtype)
    return x


@row("clamp", (2, 3), domain="number")
def _clamp(b, args, dtype, attrs):
    return clamp(b, args[0], args[1], args[2] if len(args) > 2 else None, dtype)


@row("clamp_min", 2)
def _clamp_min(b, args, dtype, attrs):
    return clamp(b, args[0], args[1], None, dtype)


@row("clamp_max", 2)
def _clamp_max(b, args, dtype, attrs):
    return clamp(b, args[0], None, args[1], dtype)


@row("where", 3, operands=("bool", "", ""))
def _where(b, args, dtype, attrs):
    return b.select(*args)


@row("masked_fill", 3, operands=("", "bool", ""))
def _masked_fill(b, args, dtype, attrs):
    return b.select(args[1], args[2], args[0])


@row("heaviside", 2)
def _heaviside(b, args, dtype, attrs):
    x, at_zero = args
    zero = b.const(x.ty, 0)
    step = b.select(compare(b, "gt", x, zero, dtype), b.const(x.ty, 1), zero)
    return b.select(compare(b, "eq", x, zero, dtype), at_zero, step)


@row("logical_not", 1, result="bool")
def _logical_not(b, args, dtype, attrs):
    return b.not_(nonzero(b, args[0], dtype))


def _logical_row(name: str, combine: str) -> None:
    @row(name, 2, result="bool")
    def emit(b, args, dtype, attrs):
        return b.binary(combine, nonzero(b, args[0], dtype), nonzero(b, args[1], dtype))


for _name in ("and", "or", "xor"):
    _logical_row(f"logical_{_name}", _name)


@row("isnan", 1, result="bool")
def _isnan(b, args, dtype, attrs):
    return b.is_nan(args[0]) if dtype in FLOATS else b.const("i1", False)


def _infinity_row(name: str, value: float, magnitude: bool) -> None:
    @row(name, 1, result="bool")
    def emit(b, args, dtype, attrs):
        if dtype not in FLOATS:
            return b.const("i1", False)
        x = b.fabs(args[0]) if magnitude else args[0]
        return b.fcmp("oeq", x, b.const(x.ty, value))


_infinity_row("isinf", math.inf, True)
_infinity_row("isposinf", math.inf, False)
_infinity_row("isneginf", -math.inf, False)


@row("signbit", 1, result="bool")
def _signbit(b, args, dtype, attrs):
    (x,) = args
    if dtype in ("u8", "bool"):
        return b.const("i1", False)
    bits = b.as_bits(x) if dtype in FLOATS else x
    return b.icmp("slt", bits, b.const(bits.ty, 0))


@row("sign", 1)
def sign(b, args, dtype, attrs):
    """-1, 0 or 1; NaN gives 0, as torch's CPU kernel."""
    (x,) = args
    if dtype == "bool":
        return x
    zero, one = b.const(x.ty, 0), b.const(x.ty, 1)
    positive = b.select(compare(b, "gt", x, zero, dtype), one, zero)
    if dtype == "u8":
        return positive
    return b.select(compare(b, "lt", x, zero, dtype), b.const(x.ty, -1), positive)


row("sgn", 1)(sign)


#: Largest finite value of each float dtype.
_LARGEST = {
    "f16": 65504.0,
    "bf16": float.fromhex("0x1.FEp127"),
    "f32": float.fromhex("0x1.FFFFFEp127"),
    "f64": float.fromhex("0x1.FFFFFFFFFFFFFp1023"),
}


@row("nan_to_num", (1, 4))
def _nan_to_num(b, args, dtype, attrs):
    """Defaults: 0 for NaN, the dtype's largest and lowest finite value for the infinities."""
    x = args[0]
    if dtype not in FLOATS:
        return x
    nan, posinf, neginf = (*args[1:], None, None, None)[:3]
    out = b.select(b.is_nan(x), nan or b.const(x.ty, 0.0), x)
    for infinity, given, default in ((math.inf, posinf, _LARGEST[dtype]), (-math.inf, neginf, -_LARGEST[dtype])):
        at_infinity = b.fcmp("oeq", x, b.const(x.ty, infinity))
        out = b.select(at_infinity, given or b.const(x.ty, default), out)
    return out
