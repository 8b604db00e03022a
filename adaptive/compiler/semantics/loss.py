"""Loss: what losses make of an input and its target, and their gradients. Formulas follow ATen/native/cpu and
ATen/native/Loss.cpp."""

from __future__ import annotations

from adaptive_eager.compiler.builder import Builder, Val
from adaptive_eager.compiler.semantics.registry import EXACT_ALL, row
from adaptive_eager.compiler.vecmath import math

#: Least logarithm, and least variance that a gradient is divided by, of binary_cross_entropy.
LEAST_LOG, LEAST_VARIANCE = -100.0, 1e-12


def _scaled(b: Builder, x: Val, factor: float) -> Val:
    return b.fmul(x, b.const(x.ty, factor))


@row("mse_loss", 2, domain="float")
def _mse_loss(b, args, dtype, attrs):
    """(x - t)^2"""
    difference = b.fsub(args[0], args[1])
    return b.fmul(difference, difference)


@row("mse_loss_backward", 4, domain="float", exact_scalars=EXACT_ALL)
def _mse_loss_backward(b, args, dtype, attrs):
    """2 n (x - t) grad"""
    grad, x, target, norm = args
    return b.fmul(b.fmul(_scaled(b, norm, 2.0), b.fsub(x, target)), grad)


@row("smooth_l1_loss", 3, domain="float", exact_scalars=EXACT_ALL)
def _smooth_l1_loss(b, args, dtype, attrs):
    """z^2 / 2 beta below beta, else z - beta / 2, with z = |x - t|."""
    z = b.fabs(b.fsub(args[0], args[1]))
    beta = args[2]
    near = b.fdiv(b.fmul(_scaled(b, z, 0.5), z), beta)
    return b.select(b.fcmp("olt", z, beta), near, b.fsub(z, _scaled(b, beta, 0.5)))


def _outside(b: Builder, distance: Val, limit: Val, near: Val, far: Val) -> Val:
    """`far` from `limit` on, `-far` up to `-limit`, `near` in between."""
    above = b.select(b.fcmp("oge", distance, limit), far, near)
    return b.select(b.fcmp("ole", distance, b.fneg(limit)), b.fneg(far), above)


@row("smooth_l1_loss_backward", 5, domain="float", exact_scalars=EXACT_ALL)
def _smooth_l1_loss_backward(b, args, dtype, attrs):
    """n grad times the distance over beta, at most 1 either way."""
    grad, x, target, norm, beta = args
    distance, slope = b.fsub(x, target), b.fmul(norm, grad)
    near = b.fdiv(b.fmul(b.fmul(norm, distance), grad), beta)
    return _outside(b, distance, beta, near, slope)


@row("huber_loss", 3, domain="float", exact_scalars=EXACT_ALL)
def _huber_loss(b, args, dtype, attrs):
    """z^2 / 2 up to delta, else delta (z - delta / 2), with z = |x - t|."""
    z = b.fabs(b.fsub(args[0], args[1]))
    delta = args[2]
    far = b.fmul(delta, b.fsub(z, _scaled(b, delta, 0.5)))
    return b.select(b.fcmp("ole", z, delta), b.fmul(_scaled(b, z, 0.5), z), far)


@row("huber_loss_backward", 5, domain="float", exact_scalars=EXACT_ALL)
def _huber_loss_backward(b, args, dtype, attrs):
    """n grad times the distance, at most delta either way."""
    grad, x, target, norm, delta = args
    distance = b.fsub(x, target)
    near = b.fmul(b.fmul(norm, distance), grad)
    return _outside(b, distance, delta, near, b.fmul(b.fmul(norm, grad), delta))


def _log(b: Builder, name: str, x: Val) -> Val:
    """A logarithm that is never less than LEAST_LOG; NaN stays."""
    value, least = math(b, name, x), b.const(x.ty, LEAST_LOG)
    return b.select(b.fcmp("olt", value, least), least, value)


@row("binary_cross_entropy", (2, 3), domain="float")
def _binary_cross_entropy(b, args, dtype, attrs):
    """((t - 1) log(1 - x) - t log(x)) weight. An input outside of [0, 1] is a data error."""
    x, target, weight = (*args, None)[:3]
    zero, one = b.const(x.ty, 0.0), b.const(x.ty, 1.0)
    b.report_if_any(b.not_(b.and_(b.fcmp("oge", x, zero), b.fcmp("ole", x, one))))
    far = b.fmul(b.fsub(target, one), _log(b, "log1p", b.fneg(x)))
    value = b.fsub(far, b.fmul(target, _log(b, "log", x)))
    return value if weight is None else b.fmul(value, weight)


@row("binary_cross_entropy_backward", 5, domain="float", exact_scalars=EXACT_ALL)
def _binary_cross_entropy_backward(b, args, dtype, attrs):
    """n weight grad (x - t) / (x (1 - x))"""
    grad, x, target, weight, norm = args
    variance, least = b.fmul(b.fsub(b.const(x.ty, 1.0), x), x), b.const(x.ty, LEAST_VARIANCE)
    variance = b.select(b.fcmp("olt", variance, least), least, variance)
    value = b.fdiv(b.fmul(grad, b.fsub(x, target)), variance)
    if weight is not None:
        value = b.fmul(value, weight)
    return b.fmul(value, norm)
