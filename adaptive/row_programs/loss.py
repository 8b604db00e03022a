"""Loss: losses and their gradients.

Each compares an input with a target, point by point, and then takes the mean or the sum of all points, if not neither.
"""

from __future__ import annotations

from adaptive_eager.expansion import Parts
from adaptive_eager.row_programs.registry import ROW_PROGRAMS, row_program

#: What is done to the points (ATen/core/Reduction.h): attribute 0.
NONE, MEAN, SUM = 0, 1, 2

_POINTWISE = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")


@row_program(*_POINTWISE)
def _loss(p: Parts) -> None:
    """Inputs: input and target of one shape, and a weight where the op has one. Scalar: its
    threshold, where it has one. The result of all points has a dim of size one for each of theirs."""
    (result,) = p.results(1)
    assert result is not None
    scalars = [p.scalar(k) for k in range(p.n_scalars)]
    each = p.map(p.op, *p.inputs, *scalars, into=result if p.attr(0) == NONE else None)
    if p.attr(0) != NONE:
        p.reduce("mean" if p.attr(0) == MEAN else "sum", each, (1 << p.rank) - 1, into=result)


@row_program(*(f"{name}_backward" for name in _POINTWISE))
def _loss_backward(p: Parts) -> None:
    """Inputs: the gradient, then those of the loss. Scalars: what the gradient is multiplied by, one over the number of
    points for their mean, then those of the loss."""
    (result,) = p.results(1)
    assert result is not None
    p.map(p.op, *p.inputs, *(p.scalar(k) for k in range(p.n_scalars)), into=result)


@row_program("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(p: Parts) -> None:
    """-input * weight at each target, or the sum of it, or that over the sum of the weights; and that sum.

    Inputs: the input and the weight at the targets, and the targets. Targets equal to scalar 0 count as nothing.
    """
    result, total_weight = p.results(2)
    assert result is not None
    assert total_weight is not None
    weight, target = p.inputs[1], p.input(2)
    each = p.map("neg", p.input(0))
    if weight is not None:
        each = p.map("mul", each, weight)
    counts = p.map("ne", target, p.scalar(0), compute="i64")
    each = p.map("where", counts, each, 0.0, into=result if p.attr(0) == NONE else None)
    if p.attr(0) == NONE:
        p.map("copy", 0.0, into=total_weight)
        return
    everything = (1 << p.rank) - 1
    total = p.reduce("sum", p.map("where", counts, 1.0 if weight is None else weight, 0.0), everything)
    p.deliver(total, total_weight)
    if p.attr(0) == SUM:
        p.reduce("sum", each, everything, into=result)
    else:
        p.map("div", p.reduce("sum", each, everything), total, into=result)


def _nll_loss_backward(p: Parts) -> None:
    """-grad * weight / total weight at each target, else 0.

    Inputs: grad, targets as indices along dim attribute 0 (which is of size one in them), weight, total weight.
    Attribute 1: whether there is a gradient for each target, or of their mean or sum. Targets equal to scalar 0 get
    none.
    """
    (result,) = p.results(1)
    assert result is not None
    grad, target, total = p.input(0), p.input(1), p.input(3)
    weight = p.inputs[2]
    each = p.map("neg", grad)
    if p.attr(1) == MEAN:
        each = p.map("div", each, total)
    counts = p.map("ne", target, p.scalar(0), compute="i64")
    each = p.map("where", counts, each, 0.0, shape=target)
    if weight is not None:
        each = p.map("mul", each, weight, shape=result)
    hit = p.map("is_index", target, shape=result, compute="i64", attrs=(p.attr(0),))
    p.map("where", hit, each, 0.0, into=result)


ROW_PROGRAMS["nll_loss_backward"] = ROW_PROGRAMS["nll_loss2d_backward"] = _nll_loss_backward
