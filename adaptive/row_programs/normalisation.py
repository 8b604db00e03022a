"""Normalisation: layer, group and batch norm, and their backwards.

Variance in two passes, as the mean of the squared distances from the mean, which is accurate whatever the data's
offset. Inputs are x, weight and bias, over the dims of attribute 0 (native/torch/normalization.cpp).
"""

from __future__ import annotations

from adaptive_eager.expansion import Parts
from adaptive_eager.row_programs.registry import ROW_PROGRAMS, row_program
from adaptive_eager.trace import Operand


def _affine(p: Parts, x: Operand, mean: Operand, rstd: Operand, y: Operand) -> None:
    """(x - mean) * rstd * weight + bias"""
    weight, bias = p.inputs[1:3]
    steps = [("sub", mean), ("mul", rstd)]
    if weight is not None:
        steps.append(("mul", weight))
    if bias is not None:
        steps.append(("add", bias))
    value = x
    for k, (op, other) in enumerate(steps):
        value = p.map(op, value, other, into=y if k == len(steps) - 1 else None)


def _normalize(p: Parts) -> tuple[Operand, Operand]:
    """Statistics over the rows, and y. Returns mean and variance."""
    y, mean_out, rstd_out = p.results(3)
    assert y is not None
    x, dims = p.input(0), p.attr(0)
    if mean_out is not None:
        p.declare(x, dims, mean_out)
    mean = p.reduce("mean", x, dims, into=p.exact(mean_out))
    distance = p.map("sub", x, mean)
    variance = p.reduce("mean", p.map("mul", distance, distance), dims)
    rstd = p.map("rsqrt", p.map("add", variance, p.scalar(0)), into=p.exact(rstd_out))
    for value, out in ((mean, mean_out), (rstd, rstd_out)):
        if out is not None and value != out:
            p.deliver(value, out)
    _affine(p, x, mean, rstd, y)
    return mean, variance


def _normalize_only(p: Parts) -> None:
    _normalize(p)


ROW_PROGRAMS["native_layer_norm"] = ROW_PROGRAMS["native_group_norm"] = _normalize_only


@row_program("native_batch_norm")
def _batch_norm(p: Parts) -> None:
    """Training: statistics of the batch, towards which the running ones move. Evaluation: the running ones."""
    mean, variance = p.inputs[3:5]
    if p.attr(0) == 0:
        (y,) = p.results(1)
        assert y is not None
        assert mean is not None
        assert variance is not None
        _affine(p, p.input(0), mean, p.map("rsqrt", p.map("add", variance, p.scalar(0))), y)
        return
    batch_mean, batch_variance = _normalize(p)
    written = iter(p.written())
    if mean is not None:
        p.map("lerp", mean, batch_mean, p.scalar(1), into=next(written))
    if variance is not None:
        p.map("lerp", variance, p.map("mul", batch_variance, p.scalar(2)), p.scalar(1), into=next(written))


def _normalize_backward(p: Parts) -> None:
    """Gradients of x, weight and bias.

    With g = grad * weight and xhat = (x - mean) * rstd:  rstd * (g - mean(g) - xhat * mean(g * xhat));  sums of
    grad * xhat and of grad. Attributes: the dims of the statistics, those that the parameters do not have, and whether
    the statistics are constants.
    """
    grad_x, grad_weight, grad_bias = p.results(3)
    grad, x, mean, rstd = (p.input(k) for k in range(4))
    weight = p.inputs[4]
    dims, parameter_dims, constant = p.attr(0), p.attr(1), p.attr(2)
    xhat = p.map("mul", p.map("sub", x, mean), rstd)
    if grad_x is not None:
        g = grad if weight is None else p.map("mul", grad, weight)
        if constant:
            p.map("mul", g, rstd, into=grad_x)
        else:
            of_g = p.reduce("mean", g, dims)
            of_both = p.reduce("mean", p.map("mul", g, xhat), dims)
            centred = p.map("sub", p.map("sub", g, of_g), p.map("mul", xhat, of_both))
            p.map("mul", centred, rstd, into=grad_x)
    if grad_weight is not None:
        p.reduce("sum", p.map("mul", grad, xhat), parameter_dims, into=grad_weight)
    if grad_bias is not None:
        p.reduce("sum", grad, parameter_dims, into=grad_bias)


for _name in ("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"):
    ROW_PROGRAMS[_name] = _normalize_backward
