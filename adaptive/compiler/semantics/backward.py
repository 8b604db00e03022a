"""Backward: derivatives of the activation functions. Formulas follow ATen/native/cpu/Activation.cpp."""

from __future__ import annotations

import math as pymath

from adaptive_eager.compiler.conversion import rounded
from adaptive_eager.compiler.semantics.activation import (
    GELU_CUBIC,
    GELU_SCALE,
    gelu_form,
    gelu_inner,
    sigmoid,
    softplus1,
)
from adaptive_eager.compiler.semantics.comparison import compare
from adaptive_eager.compiler.semantics.registry import EXACT_ALL, row
from adaptive_eager.compiler.vecmath import math


@row("sigmoid_backward", 2, domain="float")
def _sigmoid_backward(b, args, dtype, attrs):
    """grad * (1 - y) * y; ATen computes it in float for bf16, but in steps of half for half."""
    grad, y = args
    midway = "f16" if dtype == "f16" else "f32"
    rest = rounded(b, b.fsub(b.const(y.ty, 1.0), y), midway)
    return b.fmul(rounded(b, b.fmul(grad, rest), midway), y)


@row("tanh_backward", 2, domain="float")
def _tanh_backward(b, args, dtype, attrs):
    grad, y = args
    return b.fmul(grad, b.fsub(b.const(y.ty, 1.0), b.fmul(y, y)))


@row("silu_backward", 2, domain="float")
def _silu_backward(b, args, dtype, attrs):
    """grad * s * (1 + x * (1 - s)), s = sigmoid(x)"""
    grad, x = args
    one = b.const(x.ty, 1.0)
    s = sigmoid(b, x)
    return b.fmul(b.fmul(grad, s), b.fadd(one, b.fmul(x, b.fsub(one, s))))


@row("mish_backward", 2, domain="float")
def _mish_backward(b, args, dtype, attrs):
    """grad * (t + x * sigmoid(x) * (1 - t^2)), t = tanh(softplus(x))"""
    grad, x = args
    one = b.const(x.ty, 1.0)
    s = sigmoid(b, x)
    t = math(b, "tanh", softplus1(b, x))
    slope = b.fmul(b.fmul(x, s), b.fsub(one, b.fmul(t, t)))
    return b.fmul(grad, b.fadd(t, slope))


@row("gelu_backward", 2, domain="float")
def _gelu_backward(b, args, dtype, attrs):
    grad, x = args
    half, one = b.const(x.ty, 0.5), b.const(x.ty, 1.0)
    if gelu_form(attrs) == "tanh":
        t = math(b, "tanh", gelu_inner(b, x))
        left, right = b.fmul(half, x), b.fadd(one, t)
        cubic_slope = b.fmul(b.const(x.ty, 3.0 * GELU_CUBIC), b.fmul(x, x))
        inner_slope = b.fmul(b.const(x.ty, GELU_SCALE), b.fadd(one, cubic_slope))
        tanh_slope = b.fsub(one, b.fmul(t, t))
        right_slope = b.fmul(b.fmul(left, tanh_slope), inner_slope)
        return b.fmul(grad, b.fadd(b.fmul(half, right), right_slope))
    cdf = b.fmul(half, b.fadd(one, math(b, "erf", b.fmul(x, b.const(x.ty, pymath.sqrt(0.5))))))
    bell = math(b, "exp", b.fmul(b.fmul(x, x), b.const(x.ty, -0.5)))
    pdf = b.fmul(b.const(x.ty, 1.0 / pymath.sqrt(2.0 * pymath.pi)), bell)
    return b.fmul(grad, b.fadd(cdf, b.fmul(x, pdf)))


@row("threshold_backward", 3, exact_scalars=EXACT_ALL)
def _threshold_backward(b, args, dtype, attrs):
    """0 where self <= threshold, else grad."""
    grad, x, limit = args
    return b.select(compare(b, "le", x, limit, dtype), b.const(x.ty, 0), grad)


@row("elu_backward", 5, domain="float", exact_scalars=EXACT_ALL)
def _elu_backward(b, args, dtype, attrs):
    """attrs = (is_result,): the last operand is elu's result, else its input."""
    grad, alpha, scale, input_scale, x = args
    coefficient = b.fmul(alpha, scale)
    scaled = b.fmul(grad, input_scale)
    if attrs and attrs[0]:
        negative = b.fmul(scaled, b.fadd(x, coefficient))
    else:
        negative = b.fmul(b.fmul(scaled, coefficient), math(b, "exp", b.fmul(x, input_scale)))
    return b.select(b.fcmp("ole", x, b.const(x.ty, 0.0)), negative, b.fmul(grad, scale))


@row("leaky_relu_backward", 3, domain="float", exact_scalars=EXACT_ALL)
def _leaky_relu_backward(b, args, dtype, attrs):
    grad, x, slope = args
    return b.select(b.fcmp("ogt", x, b.const(x.ty, 0.0)), grad, b.fmul(grad, slope))


@row("hardtanh_backward", 4, exact_scalars=EXACT_ALL)
def _hardtanh_backward(b, args, dtype, attrs):
    """grad where min < self < max, else 0 (also at NaN, like ATen's vector loop; its scalar loop passes grad)."""
    grad, x, low, high = args
    inside = b.and_(compare(b, "gt", x, low, dtype), compare(b, "lt", x, high, dtype))
    return b.select(inside, grad, b.const(x.ty, 0))


@row("hardswish_backward", 2, domain="float")
def _hardswish_backward(b, args, dtype, attrs):
    """0 up to -3, grad * (x / 3 + 0.5) up to 3, then grad."""
    grad, x = args
    three = b.const(x.ty, 3.0)
    middle = b.fmul(grad, b.fadd(b.fdiv(x, three), b.const(x.ty, 0.5)))
    upper = b.select(b.fcmp("olt", x, three), middle, grad)
    return b.select(b.fcmp("ole", x, b.const(x.ty, -3.0)), b.const(x.ty, 0.0), upper)


@row("hardsigmoid_backward", 2, domain="float")
def _hardsigmoid_backward(b, args, dtype, attrs):
    """grad / 6 strictly between -3 and 3, else 0."""
    grad, x = args
    between = b.and_(b.fcmp("ogt", x, b.const(x.ty, -3.0)), b.fcmp("olt", x, b.const(x.ty, 3.0)))
    return b.select(between, b.fmul(grad, b.const(x.ty, 1.0 / 6.0)), b.const(x.ty, 0.0))


@row("softplus_backward", 4, domain="float", exact_scalars=EXACT_ALL)
def _softplus_backward(b, args, dtype, attrs):
    """grad * z / (z + 1), z = exp(x * beta); grad itself where x * beta > threshold."""
    grad, x, beta, limit = args
    scaled = b.fmul(x, beta)
    z = math(b, "exp", scaled)
    below = b.fdiv(b.fmul(grad, z), b.fadd(z, b.const(x.ty, 1.0)))
    return b.select(b.fcmp("ogt", scaled, limit), grad, below)


def _shrink_backward(b, args, dtype, attrs):
    """grad where self < -lambd or self > lambd, else 0 (also at NaN, like ATen's vector loop)."""
    grad, x, lambd = args
    outside = b.or_(b.fcmp("olt", x, b.fneg(lambd)), b.fcmp("ogt", x, lambd))
    return b.select(outside, grad, b.const(x.ty, 0.0))


row("softshrink_backward", 3, domain="float")(_shrink_backward)
row("hardshrink_backward", 3, domain="float")(_shrink_backward)


@row("log_sigmoid_backward", 2, domain="float")
def _log_sigmoid_backward(b, args, dtype, attrs):
    """grad * (m - s * z / (1 + z)), z = exp(-|x|); m = s = 1 where x < 0, else 0 and -1."""
    grad, x = args
    zero, one = b.const(x.ty, 0.0), b.const(x.ty, 1.0)
    z = math(b, "exp", b.fneg(b.fabs(x)))
    rest = b.fdiv(z, b.fadd(one, z))
    return b.fmul(grad, b.select(b.fcmp("olt", x, zero), b.fsub(one, rest), rest))


@row("glu_backward_first", 2, domain="float")
def _glu_backward_first(b, args, dtype, attrs):
    """sigmoid(b) * grad"""
    grad, second = args
    return b.fmul(sigmoid(b, second), grad)


@row("glu_backward_second", 3, domain="float")
def _glu_backward_second(b, args, dtype, attrs):
    """(1 - sigmoid(b)) * sigmoid(b) * grad * a"""
    grad, first, second = args
    s = sigmoid(b, second)
    return b.fmul(b.fmul(b.fmul(b.fsub(b.const(s.ty, 1.0), s), s), grad), first)


@row("prelu_backward_input", 3, domain="float")
def _prelu_backward_input(b, args, dtype, attrs):
    grad, x, weight = args
    return b.select(b.fcmp("ogt", x, b.const(x.ty, 0.0)), grad, b.fmul(weight, grad))


@row("prelu_backward_weight", 2, domain="float")
def _prelu_backward_weight(b, args, dtype, attrs):
    grad, x = args
    zero = b.const(x.ty, 0.0)
    return b.select(b.fcmp("ogt", x, zero), zero, b.fmul(x, grad))
