"""Special: transcendental functions and what is composed of them. Formulas follow ATen/native/cpu."""

from __future__ import annotations

from math import inf, nan

from adaptive_eager.compiler.builder import Builder, Val
from adaptive_eager.compiler.conversion import rounded
from adaptive_eager.compiler.semantics.comparison import maximum
from adaptive_eager.compiler.semantics.registry import row
from adaptive_eager.compiler.vecmath import math


def _math_row(name: str, arity: int) -> None:
    @row(name, arity, domain="float")
    def emit(b, args, dtype, attrs):
        return math(b, name, *args)


for _name in (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma",
):  # fmt: skip
    _math_row(_name, 1)
for _name in ("atan2", "hypot"):
    _math_row(_name, 2)


def _hyperbolic_row(name: str) -> None:
    @row(name, 1, domain="float")
    def emit(b, args, dtype, attrs):
        (x,) = args
        inside = math(b, name, x)
        if x.ty != "float":
            return inside
        # The library's float functions overflow where exp does, a little before their own bound.
        half = b.const(x.ty, 0.5)
        root = math(b, "exp", b.fmul(b.fabs(x), half))
        outside = b.fmul(b.fmul(root, half), root)
        if name == "sinh":
            outside = b.copysign(outside, x)
        return b.select(b.fcmp("ogt", b.fabs(x), b.const(x.ty, 88.0)), outside, inside)


for _name in ("sinh", "cosh"):
    _hyperbolic_row(_name)


@row("xlogy", 2, domain="float")
def _xlogy(b, args, dtype, attrs):
    """x * log(y), 0 where x is 0, NaN where y is."""
    x, y = args
    zero = b.const(x.ty, 0.0)
    product = b.select(b.fcmp("oeq", x, zero), zero, b.fmul(x, math(b, "log", y)))
    return b.select(b.is_nan(y), b.const(x.ty, nan), product)


def _logaddexp(b: Builder, x: Val, y: Val, dtype: str, exp: str, to_base: float | None) -> Val:
    """max + log(1 + exp(-|x - y|)) in the base of `exp`; equal infinities stay themselves."""
    larger = maximum(b, x, y, dtype)
    tail = math(b, "log1p", math(b, exp, b.fneg(b.fabs(b.fsub(x, y)))))
    if to_base is not None:
        tail = b.fmul(tail, b.const(x.ty, to_base))
    same_infinity = b.and_(b.fcmp("oeq", x, y), b.fcmp("oeq", b.fabs(x), b.const(x.ty, inf)))
    return b.select(same_infinity, x, b.fadd(larger, tail))


@row("logaddexp", 2, domain="float")
def _logaddexp_e(b, args, dtype, attrs):
    return _logaddexp(b, args[0], args[1], dtype, "exp", None)


@row("logaddexp2", 2, domain="float")
def _logaddexp_2(b, args, dtype, attrs):
    return _logaddexp(b, args[0], args[1], dtype, "exp2", 1.4426950408889634)


def _bounds(b: Builder, eps: Val, dtype: str) -> tuple[Val, Val]:
    return eps, rounded(b, b.fsub(b.const(eps.ty, 1.0), eps), dtype)


@row("logit", (1, 2), domain="float")
def _logit(b, args, dtype, attrs):
    """log(x / (1 - x)), x first clamped to [eps, 1 - eps] if eps is given. Half types round at each step, as in ATen:
    near 1/2 the logarithm magnifies the difference."""
    x = args[0]
    one = b.const(x.ty, 1.0)
    if len(args) > 1 and args[1] is not None:
        low, high = _bounds(b, args[1], dtype)
        x = b.select(b.fcmp("olt", x, low), low, b.select(b.fcmp("ogt", x, high), high, x))
    return math(b, "log", rounded(b, b.fdiv(x, rounded(b, b.fsub(one, x), dtype)), dtype))


@row("logit_backward", (2, 3), domain="float")
def _logit_backward(b, args, dtype, attrs):
    """grad / (x * (1 - x)); outside the clamp 0 (with eps) or NaN (outside [0, 1] without)."""
    grad, x = args[0], args[1]
    one = b.const(x.ty, 1.0)
    low, high, outside_value = b.const(x.ty, 0.0), one, nan
    if len(args) > 2 and args[2] is not None:
        low, high = _bounds(b, args[2], dtype)
        outside_value = 0.0
    outside = b.or_(b.fcmp("olt", x, low), b.fcmp("ogt", x, high))
    rest = rounded(b, b.fsub(one, x), dtype)
    inside = b.fdiv(grad, rounded(b, b.fmul(x, rest), dtype))
    return b.select(outside, b.const(x.ty, outside_value), inside)
