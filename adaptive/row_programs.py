"""Row programs: ops over rows, each written as pointwise ops and reductions (see `expansion`).

Formulas are the textbook ones: softmax shifted by the row's maximum; variance in two passes, as the mean of the squared
distances from the mean, which is accurate whatever the data's offset. Statistics are kept in the compute dtype, float32
for half types, and rounded where they are stored.
"""

from __future__ import annotations

from collections.abc import Callable

from adaptive_eager.expansion import Parts
from adaptive_eager.trace import Operand

RowProgram = Callable[[Parts], None]

#: ATen op -> how it is written.
ROW_PROGRAMS: dict[str, RowProgram] = {}


def row_program(name: str) -> Callable[[RowProgram], RowProgram]:
    """Decorator: registers the parts of an ATen op."""

    def register(program: RowProgram) -> RowProgram:
        ROW_PROGRAMS[name] = program
        return program

    return register


# -- softmax -----------------------------------------------------------------------------------------------------------


def _one_dim(p: Parts) -> int:
    return 1 << p.attr(0) & (1 << p.rank) - 1


@row_program("_softmax")
def _softmax(p: Parts) -> None:
    """exp(x - max) / sum(exp(x - max))"""
    (y,) = p.results(1)
    assert y is not None
    x, dims = p.input(0), _one_dim(p)
    e = p.map("exp", p.map("sub", x, p.reduce("amax", x, dims)))
    p.map("mul", e, p.map("reciprocal", p.reduce("sum", e, dims)), into=y)


@row_program("_log_softmax")
def _log_softmax(p: Parts) -> None:
    """(x - max) - log(sum(exp(x - max)))"""
    (y,) = p.results(1)
    assert y is not None
    x, dims = p.input(0), _one_dim(p)
    highest = p.reduce("amax", x, dims)
    total = p.reduce("sum", p.map("exp", p.map("sub", x, highest)), dims)
    p.map("sub", p.map("sub", x, highest), p.map("log", total), into=y)


@row_program("_softmax_backward_data")
def _softmax_backward(p: Parts) -> None:
    """(grad - sum(grad * y)) * y"""
    (result,) = p.results(1)
    assert result is not None
    grad, y, dims = p.input(0), p.input(1), _one_dim(p)
    total = p.reduce("sum", p.map("mul", grad, y), dims)
    p.map("mul", p.map("sub", grad, total), y, into=result)


@row_program("_log_softmax_backward_data")
def _log_softmax_backward(p: Parts) -> None:
    """grad - exp(y) * sum(grad)"""
    (result,) = p.results(1)
    assert result is not None
    grad, y, dims = p.input(0), p.input(1), _one_dim(p)
    total = p.reduce("sum", grad, dims)
    p.map("sub", grad, p.map("mul", p.map("exp", y), total), into=result)


# -- normalisations ----------------------------------------------------------------------------------------------------
#
# Inputs are x, weight and bias, over the dims of attribute 0 (native/torch/normalization.cpp).


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


# -- losses ------------------------------------------------------------------------------------------------------------


def _nll_loss_backward(p: Parts) -> None:
    """-grad * weight / total weight at each target, else 0.

    Inputs: grad, targets as indices along dim attribute 0 (which is of size one in them), weight, total weight.
    Attribute 1: 0 (a gradient for each target), 1 (of the mean), 2 (of the sum). Targets equal to scalar 0 get none.
    """
    (result,) = p.results(1)
    assert result is not None
    grad, target, total = p.input(0), p.input(1), p.input(3)
    weight = p.inputs[2]
    each = p.map("neg", grad)
    if p.attr(1) == 1:
        each = p.map("div", each, total)
    counts = p.map("ne", target, p.scalar(0), compute="i64")
    each = p.map("where", counts, each, 0.0, shape=target)
    if weight is not None:
        each = p.map("mul", each, weight, shape=result)
    hit = p.map("is_index", target, shape=result, compute="i64", attrs=(p.attr(0),))
    p.map("where", hit, each, 0.0, into=result)


ROW_PROGRAMS["nll_loss_backward"] = ROW_PROGRAMS["nll_loss2d_backward"] = _nll_loss_backward
