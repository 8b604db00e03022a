"""Activation: forward activation functions. Formulas follow ATen/native/cpu/Activation.cpp."""

from __future__ import annotations

import math as pymath

from adaptive_eager.compiler.builder import Builder, CompileError, Val
from adaptive_eager.compiler.semantics.comparison import clamp, compare
from adaptive_eager.compiler.semantics.registry import EXACT_ALL, row
from adaptive_eager.compiler.vecmath import math

#: sqrt(2 / pi) and the cubic coefficient of the tanh form of gelu.
GELU_SCALE = pymath.sqrt(2.0) * (2.0 / pymath.sqrt(pymath.pi)) * 0.5
GELU_CUBIC = 0.044715


def sigmoid(b: Builder, x: Val) -> Val:
    """1 / (1 + exp(-x))"""
    one = b.const(x.ty, 1.0)
    return b.fdiv(one, b.fadd(one, math(b, "exp", b.fneg(x))))


def softplus1(b: Builder, x: Val) -> Val:
    """log(1 + exp(x))"""
    return math(b, "log1p", math(b, "exp", x))


@row("sigmoid", 1, domain="float")
def _sigmoid(b, args, dtype, attrs):
    return sigmoid(b, args[0])


@row("log_sigmoid", 1, domain="float")
def _log_sigmoid(b, args, dtype, attrs):
    """min(x, 0) - log1p(exp(-|x|))"""
    (x,) = args
    zero = b.const(x.ty, 0.0)
    low = b.select(b.fcmp("olt", zero, x), zero, x)
    return b.fsub(low, softplus1(b, b.fneg(b.fabs(x))))


@row("relu", 1, domain="number")
def _relu(b, args, dtype, attrs):
    """0 only where 0 > x, so that -0.0 and NaN stay."""
    (x,) = args
    zero = b.const(x.ty, 0)
    if dtype == "u8":
        return x
    return b.select(compare(b, "gt", zero, x, dtype), zero, x)


@row("silu", 1, domain="float")
def _silu(b, args, dtype, attrs):
    """x / (1 + exp(-x))"""
    (x,) = args
    return b.fdiv(x, b.fadd(b.const(x.ty, 1.0), math(b, "exp", b.fneg(x))))


@row("mish", 1, domain="float")
def _mish(b, args, dtype, attrs):
    return b.fmul(args[0], math(b, "tanh", softplus1(b, args[0])))


def relu6_plus3(b: Builder, x: Val, dtype: str) -> Val:
    """min(max(x + 3, 0), 6)"""
    shifted = b.fadd(x, b.const(x.ty, 3.0))
    return clamp(b, shifted, b.const(x.ty, 0.0), b.const(x.ty, 6.0), dtype)


@row("hardswish", 1, domain="float")
def _hardswish(b, args, dtype, attrs):
    (x,) = args
    return b.fdiv(b.fmul(x, relu6_plus3(b, x, dtype)), b.const(x.ty, 6.0))


@row("hardsigmoid", 1, domain="float")
def _hardsigmoid(b, args, dtype, attrs):
    (x,) = args
    return b.fdiv(relu6_plus3(b, x, dtype), b.const(x.ty, 6.0))


def gelu_inner(b: Builder, x: Val) -> Val:
    """sqrt(2 / pi) * (x + 0.044715 x^3)"""
    cube = b.fmul(b.fmul(x, x), x)
    return b.fmul(b.const(x.ty, GELU_SCALE), b.fadd(x, b.fmul(b.const(x.ty, GELU_CUBIC), cube)))


def gelu_form(attrs: tuple) -> str:
    """The approximation named by attrs. Raises CompileError for another than none and tanh."""
    form = attrs[0] if attrs else "none"
    if form not in ("none", "tanh"):
        raise CompileError(f"gelu: approximate argument must be either none or tanh, got {form}")
    return form


@row("gelu", 1, domain="float")
def _gelu(b, args, dtype, attrs):
    (x,) = args
    half, one = b.const(x.ty, 0.5), b.const(x.ty, 1.0)
    if gelu_form(attrs) == "tanh":
        return b.fmul(b.fmul(half, x), b.fadd(one, math(b, "tanh", gelu_inner(b, x))))
    cdf = b.fadd(one, math(b, "erf", b.fmul(x, b.const(x.ty, pymath.sqrt(0.5)))))
    return b.fmul(b.fmul(x, half), cdf)


@row("threshold", 3, domain="number", exact_scalars=EXACT_ALL)
def _threshold(b, args, dtype, attrs):
    """value where self <= threshold; NaN stays."""
    x, limit, value = args
    return b.select(compare(b, "le", x, limit, dtype), value, x)


@row("elu", 4, domain="float", exact_scalars=EXACT_ALL)
def _elu(b, args, dtype, attrs):
    """x <= 0: alpha * scale * expm1(x * input_scale); else x * scale."""
    x, alpha, scale, input_scale = args
    negative = b.fmul(math(b, "expm1", b.fmul(x, input_scale)), b.fmul(alpha, scale))
    return b.select(b.fcmp("ole", x, b.const(x.ty, 0.0)), negative, b.fmul(x, scale))


@row("leaky_relu", 2, domain="float", exact_scalars=EXACT_ALL)
def _leaky_relu(b, args, dtype, attrs):
    x, slope = args
    return b.select(b.fcmp("ogt", x, b.const(x.ty, 0.0)), x, b.fmul(x, slope))


@row("hardtanh", 3, domain="signed", exact_scalars=EXACT_ALL)
def _hardtanh(b, args, dtype, attrs):
    return clamp(b, args[0], args[1], args[2], dtype)


@row("softplus", 3, domain="float", exact_scalars=EXACT_ALL)
def _softplus(b, args, dtype, attrs):
    """log1p(exp(x * beta)) / beta, x itself where x * beta > threshold."""
    x, beta, limit = args
    scaled = b.fmul(x, beta)
    return b.select(b.fcmp("ogt", scaled, limit), x, b.fdiv(softplus1(b, scaled), beta))


@row("softshrink", 2, domain="float", exact_scalars=EXACT_ALL)
def _softshrink(b, args, dtype, attrs):
    """x - lambd above lambd, x + lambd below -lambd, else x * 0 (NaN stays)."""
    x, lambd = args
    above, below = b.fcmp("ogt", x, lambd), b.fcmp("olt", x, b.fneg(lambd))
    middle = b.fmul(x, b.const(x.ty, 0.0))
    return b.select(above, b.fsub(x, lambd), b.select(below, b.fadd(x, lambd), middle))


@row("hardshrink", 2, domain="float")
def _hardshrink(b, args, dtype, attrs):
    """0 where -lambd <= x <= lambd."""
    x, lambd = args
    within = b.and_(b.fcmp("oge", x, b.fneg(lambd)), b.fcmp("ole", x, lambd))
    return b.select(within, b.const(x.ty, 0.0), x)


@row("glu", 2, domain="float")
def _glu(b, args, dtype, attrs):
    """a * sigmoid(b)"""
    return b.fmul(args[0], sigmoid(b, args[1]))


@row("_prelu_kernel", 2, domain="float")
def _prelu(b, args, dtype, attrs):
    """x where it is positive, else weight * x."""
    x, weight = args
    return b.select(b.fcmp("ogt", x, b.const(x.ty, 0.0)), x, b.fmul(weight, x))
